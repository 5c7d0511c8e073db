"""Figures of runs."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nanode.analysis.drawing import new_figure
from nanode.reports.statistics import Spread
from nanode.training.files import write_atomically


@dataclass(frozen=True)
class Panel:
    """Lines with error bars over a common axis, and horizontal lines beside them."""

    title: str
    x: str
    y: str
    #: Points of each line; where one isn't known the line is interrupted.
    series: Mapping[str, Sequence[tuple[float, Spread | None]]] = field(default_factory=dict)
    levels: Mapping[str, float] = field(default_factory=dict)
    #: Whether x runs over powers; ``"symlog"`` has a place for 0.
    scale: str = "linear"
    #: Where the linear part of ``"symlog"`` ends.
    linear: float = 1.0
    #: Show these x alone as ticks; the axis's own by default.
    ticks: Sequence[float] = ()
    y_scale: str = "linear"
    #: Of each name several lines in one colour, such as those of all seeds.
    curves: Mapping[str, Sequence[Sequence[tuple[float, float]]]] = field(default_factory=dict)


def draw(path: Path, panels: Sequence[Panel], columns: int = 2) -> Path:
    """Draw panels into a PNG file, so many side by side."""
    columns = min(columns, len(panels))
    rows = -(-len(panels) // columns)
    figure = new_figure(5.5 * columns, 4.2 * rows)
    for n, panel in enumerate(panels):
        _fill(figure.add_subplot(rows, columns, n + 1), panel)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, lambda half: figure.savefig(half, format="png", dpi=150))
    return path


def _fill(axis: Any, panel: Panel) -> None:
    for label, points in panel.series.items():
        if any(value is not None for _, value in points):
            x = [place for place, _ in points]
            y = [math.nan if value is None else value.mean for _, value in points]
            bars = [0.0 if value is None else value.deviation or 0.0 for _, value in points]
            axis.errorbar(x, y, yerr=bars if any(bars) else None, marker="o", label=label)
    for n, (label, lines) in enumerate(panel.curves.items()):
        for n_line, line in enumerate(lines):  # one entry of the legend for all
            named = {} if n_line else {"label": label}
            axis.plot(
                *zip(*line, strict=True), color=f"C{len(panel.series) + n}", linewidth=1, **named
            )
    for n, (label, level) in enumerate(panel.levels.items()):
        axis.axhline(level, linestyle=("--", ":", "-.")[n % 3], color="grey", label=label)
    options = {"linthresh": panel.linear} if panel.scale == "symlog" else {}
    axis.set_xscale(panel.scale, **options)
    axis.set_yscale(panel.y_scale)
    low, high = axis.get_ylim()
    if panel.y_scale == "log" and high < 10 * low:  # else powers of ten say enough
        axis.yaxis.set_minor_formatter("{x:g}")
    points = [point for points in panel.series.values() for point in points]
    _whole(axis.xaxis, panel.scale, [x for x, _ in points])
    _whole(axis.yaxis, panel.y_scale, [value.mean for _, value in points if value])
    if panel.ticks:
        axis.set_xticks(list(panel.ticks), [f"{tick:g}" for tick in panel.ticks])
        axis.minorticks_off()
    axis.set_title(panel.title, fontsize=10)
    axis.set_xlabel(panel.x)
    axis.set_ylabel(panel.y)
    if axis.get_legend_handles_labels()[1]:
        # Below the axis: matplotlib's own place for it may cover error bars.
        axis.legend(
            fontsize=8, ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.15), frameon=False
        )
    else:
        axis.set(xticks=[], yticks=[])
        axis.text(0.5, 0.5, "nothing to show yet", ha="center", transform=axis.transAxes)


def _whole(axis: Any, scale: str, values: Sequence[float]) -> None:
    """Ticks at whole numbers where values are counts."""
    if scale == "linear" and values and all(value % 1 == 0 for value in values):
        axis.get_major_locator().set_params(integer=True)
