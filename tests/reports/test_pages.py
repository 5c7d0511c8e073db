import math
import sys

import pytest

from nanode.analysis.drawing import new_figure
from nanode.reports import Spread
from nanode.reports.figures import Panel, _fill, draw
from nanode.reports.markdown import table, write_page


def test_a_table():
    assert table(["a", "b"], [["x|y", 1], ["z", "–"]]) == (
        "| a | b |\n|---|--:|\n| x\\|y | 1 |\n| z | – |"
    )


def test_a_page(tmp_path):
    path = write_page(tmp_path / "new" / "page.md", "Title", ["one", "", "  two\n"])
    assert path.read_text(encoding="utf-8") == "# Title\n\none\n\ntwo\n"
    assert [entry.name for entry in path.parent.iterdir()] == ["page.md"]


def test_a_figure(tmp_path):
    series = {"T": [(1, Spread(80.0, 1.0, 3)), (4, Spread(85.0, None, 1))], "B": []}
    panels = [
        Panel("one", "order", "accuracy", series, {"ResNet": 82.0}, ticks=(1, 4)),
        Panel("nothing", "penalty", "steps", scale="symlog", linear=1e-5),
        Panel("powers", "order", "loss", series, scale="log"),
    ]
    path = draw(tmp_path / "new" / "figure.png", panels)
    assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert int.from_bytes(path.read_bytes()[16:20], "big") == 2 * 5.5 * 150  # two side by side


def test_axes():
    """Unknown points interrupt a line, counts have whole ticks."""
    points = [(1, Spread(3.0, None, 1)), (2, None), (3, Spread(6.0, None, 1))]
    axis = new_figure(5, 4).add_subplot()
    _fill(axis, Panel("steps", "order", "steps", {"T": points, "B": [(1, None)]}, ticks=(1, 3, 9)))
    line = axis.get_lines()[0]
    assert [math.isnan(y) for y in line.get_ydata()] == [False, True, False]
    assert axis.get_legend_handles_labels()[1] == ["T"]
    assert all(tick == int(tick) for tick in axis.get_yticks())


def test_without_matplotlib(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"pip install nanode\[plots\]"):
        draw(tmp_path / "figure.png", [Panel("title", "x", "y")])
