"""What results/ shows is what its records say: every page can be made again from them."""

import re
from pathlib import Path

import pytest

from nanode.experiments import EXPERIMENTS, Options

RESULTS = Path(__file__).parent.parent / "results"
#: By experiment, the options of the runs that its page shows.
PAGES = {
    "figure-order-test": Options(),
    "figure-orthogonal": Options(),
    "figure-video": Options(seeds=2),
    "memory": Options(),
    "staged": Options(),
    "table1": Options(),
    "table2": Options(seeds=2),
    "tradeoff": Options(),
}
#: Without runs: computed whenever it is made, and conditions of 1e16 are another machine's others.
COMPUTED = "figure-chebyshev"


@pytest.mark.parametrize("name", PAGES)
def test_pages_are_made_from_records(name, tmp_path):
    EXPERIMENTS[name].report(RESULTS / "runs", tmp_path, PAGES[name])
    page = f"{name}.md"
    assert (tmp_path / page).read_text(encoding="utf-8") == (RESULTS / page).read_text(
        encoding="utf-8"
    )


def test_every_page_is_among_them():
    pages = {path.stem for path in RESULTS.glob("*.md")} - {"README"}
    assert pages == {*PAGES, COMPUTED}
    listed = (RESULTS / "README.md").read_text(encoding="utf-8")
    assert all(f"({name}.md)" in listed for name in pages)


def test_the_computed_page_says_the_same(tmp_path):
    EXPERIMENTS[COMPUTED].report(RESULTS / "runs", tmp_path, Options())
    made, kept = (
        (path / f"{COMPUTED}.md").read_text(encoding="utf-8") for path in (tmp_path, RESULTS)
    )
    numbers = re.compile(r"\d[\d.e+]*")
    assert numbers.sub("", made) == numbers.sub("", kept)
    # Swings and medians, of the first two columns, are far from the limits of float64.
    rows = [
        [line.split("|")[2:4] for line in page.splitlines() if line.startswith("| ")]
        for page in (made, kept)
    ]
    for ours, theirs in zip(rows[0][1:], rows[1][1:], strict=True):
        assert [float(n) for n in ours] == pytest.approx([float(n) for n in theirs], rel=0.1)
