"""The abstract's trade-off: how smooth the weights are, and how few steps then do.

tradeoff/<data>/order<n>-penalty<w>/seed0
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from nanode.experiments.measurements import TOLERANCE, fewest_steps, measured
from nanode.experiments.plan import DATA, Options, Planned, configured, standing
from nanode.experiments.selection import HELD_OUT, TESTED, error_text
from nanode.experiments.table1 import main_columns
from nanode.experiments.table1_runs import shared
from nanode.reports.claims import NOT_MEASURED, WORDS, Claim, verdict
from nanode.reports.figures import Panel, draw
from nanode.reports.markdown import table, write_page
from nanode.reports.records import Cell
from nanode.reports.settings import settings_table
from nanode.reports.statistics import Noise, Spread
from nanode.reports.table1 import column_noise

ORDER = 10
#: The penalty's largest curvature is 2·160 times its weight (the Gram matrix of order 10): at the
#: recipe's learning rate of 0.1, steps with momentum 0.9 would amplify it from a weight of 0.04 on.
PENALTIES = (0.0, 1e-5, 1e-4, 1e-3, 1e-2)
ORDERS = (1, 2, 4)
#: About what is reached: for the standard errors that the page names.
TYPICAL_ACCURACY = 0.83


ABOUT = (
    "T-NANODE trained at K = 10 by the shared recipe of Table 1 with a penalty on the motion of "
    "its weights, ∫‖W′(t)‖² dt, or at a lower order; seed 0. “Fewest steps”: the coarsest grid "
    "down to which accuracy on held-out images stays within one point of the trained grid's, norm "
    "statistics found anew on training batches; in the last column, within one point of what order "
    f"{ORDER} reaches without a penalty on its trained grid. Test images were read once on the "
    "trained grid and once on the coarsest, if that is another."
)


class Tradeoff:
    """Smoothness of the weights against accuracy and the fewest steps that keep it."""

    summary = "smoothness of the weights against accuracy and the fewest steps that keep it"
    draws = True

    def plan(self, options: Options, root: Path | None = None) -> list[Planned]:
        """Penalties at order 10, then lower orders without."""
        return [planned(order, weight, options) for order, weight in POINTS]

    def report(self, root: Path, out: Path, options: Options) -> list[Path]:
        """The figure, with its numbers in a table."""
        found = {point: _read(root, *point, options) for point in POINTS}
        least = _common(found[ORDER, 0.0])
        shared_column = main_columns(root, replace(options, data=DATA))["shared"]
        rows = [_row(*point, read, least) for point, read in found.items()]
        header = [
            "order",
            "penalty",
            "motion of the weights",
            "test accuracy",
            "fewest steps",
            "test accuracy with these",
            f"fewest steps within a point of order {ORDER}'s",
        ]
        cells = {
            (f"{order}", f"{weight:g}"): read.cell.records
            for (order, weight), read in found.items()
        }
        parts = [
            ABOUT,
            _doubt(root, options),
            standing(self.plan(options, root), root, options),
            "![smoothness, accuracy and steps](tradeoff.png)",
            table(header, rows),
            _judged(found, least, column_noise([shared_column], options.main)),
            _grids(found),
            settings_table(cells.items(), ["order", "penalty"]),
        ]
        figure = draw(out / "tradeoff.png", _panels(found))
        return [figure, write_page(out / "tradeoff.md", "Smoothness and steps", parts)]


#: Order and weight of the penalty of a run.
Point = tuple[int, float]
POINTS: tuple[Point, ...] = (
    *((ORDER, weight) for weight in PENALTIES),
    *((order, 0.0) for order in ORDERS),
)


def planned(order: int, weight: float, options: Options) -> Planned:
    """A run of the figure: the shared recipe of Table 1 with a penalty on the weights' motion."""
    model, changes = f"t-nanode-{order}", {"penalty.name": "smoothness", "penalty.weight": weight}
    config = configured("table1", options, model, options.main, 10, changes)
    folder = f"tradeoff/{options.main}/order{order}-penalty{weight:g}/seed0"
    return Planned(folder, config, measure="steps")


# ---- the report


@dataclass(frozen=True)
class Read:
    """What is known about a run of the figure."""

    cell: Cell
    #: What ``steps.json`` holds.
    steps: dict[str, Any] | None


def _doubt(root: Path, options: Options) -> str:
    """What a difference between two runs must exceed to say anything."""
    words = (
        f"The standard error of an accuracy is {error_text(TYPICAL_ACCURACY, HELD_OUT)} on the "
        f"{HELD_OUT:,} held-out images, {error_text(TYPICAL_ACCURACY, TESTED)} on the "
        f"{TESTED:,} of the test set"
    )
    accuracy = Cell.seeds(root, shared(f"t-nanode-{ORDER}", options.main, options).row).accuracy
    if accuracy is not None and accuracy.deviation is not None:
        words += (
            f"; and {accuracy.count} seeds of order {ORDER} without a penalty vary by "
            f"{accuracy.deviation:.2f} points there (sample standard deviation, Table 1)"
        )
    return f"{words}. Smaller differences than these decide nothing."


def _read(root: Path, order: int, weight: float, options: Options) -> Read:
    name = planned(order, weight, options).name
    return Read(Cell.read(root, [name]), measured("steps", root / name))


def _common(plain: Read) -> float | None:
    """What accuracy on held-out images all runs are asked for."""
    if plain.steps is None:
        return None
    accuracy: float = plain.steps["grids"][0]["validation_accuracy"]
    return accuracy - TOLERANCE


def _row(order: int, weight: float, read: Read, least: float | None) -> list[object]:
    found = read.steps
    if found is None:
        return [order, f"{weight:g}", "–", read.cell, "–", "–", "–"]
    fewest = f"{found['fewest_steps']} of {found['trained_steps']}"
    tested = found["fewest_test_accuracy"]
    accuracy = "–" if tested is None else f"{100 * tested:.2f}"
    common = None if least is None else fewest_steps(found["grids"], least)
    reached = "–" if least is None else "none" if common is None else str(common)
    return [order, f"{weight:g}", f"{found['motion']:.3g}", read.cell, fewest, accuracy, reached]


def _judged(found: Mapping[Point, Read], least: float | None, noise: Noise | None) -> str:
    """What became of the abstract's claim."""
    plain = found[ORDER, 0.0]
    others = {
        "the largest penalty": found[ORDER, PENALTIES[-1]],
        f"order {ORDERS[0]}": found[ORDERS[0], 0.0],
    }
    motions = {f"penalty {w:g}": found[ORDER, w] for w in PENALTIES}
    rows = [
        [
            "smoothness is controlled: each larger penalty leaves less motion",
            _fall(motions, lambda steps: steps["motion"]),
        ]
    ]
    for words, other in others.items():
        pair = {f"order {ORDER}": plain, words: other}
        rows += [
            [
                f"it is traded for efficiency: {words} needs fewer steps",
                _fall(pair, lambda steps: steps["fewest_steps"]),
            ],
            [
                f"{words} needs fewer for an accuracy within a point of order {ORDER}'s",
                _fall(pair, lambda steps: _kept(steps, least)),
            ],
            [
                f"and for expressiveness: order {ORDER} without a penalty beats {words}",
                _lead(pair, noise),
            ],
        ]
    return (
        f"{table(['the trade-off of the abstract', 'found'], rows)}\n\n{WORDS} Of accuracies s is "
        "that of Table 1's shared column; of steps and motion none is known."
    )


def _kept(steps: Mapping[str, Any], least: float | None) -> float:
    """The fewest steps that keep a given accuracy; infinity if none do."""
    found = None if least is None else fewest_steps(steps["grids"], least)
    return math.inf if found is None else found


def _fall(reads: Mapping[str, Read], value: Callable[[dict[str, Any]], float]) -> str:
    """Whether each value is below the one before."""
    if failed := [words for words, read in reads.items() if read.cell.failed]:
        return f"{NOT_MEASURED}; failed: {', '.join(failed)}"
    known = [value(read.steps) for read in reads.values() if read.steps is not None]
    if len(known) < len(reads):
        return NOT_MEASURED
    word = "for it" if all(b < a for a, b in pairwise(known)) else "against it"
    shown = ("none" if math.isinf(number) else f"{number:.3g}" for number in known)
    return f"{word} ({', '.join(shown)}, one seed)"


def _lead(pair: Mapping[str, Read], noise: Noise | None) -> str:
    """Whether the first is more accurate than the second, on test images."""
    cells = {words: read.cell for words, read in pair.items()}
    better, worse = pair
    return verdict(Claim("", (better,), (worse,)), cells, noise)


def _grids(found: Mapping[Point, Read]) -> str:
    """Held-out accuracy on every grid, with both kinds of norm statistics."""
    known = {point: read.steps for point, read in found.items() if read.steps is not None}
    if not known:
        return ""
    counts = [grid["steps"] for grid in next(iter(known.values()))["grids"]]
    rows = []
    for (order, weight), steps in known.items():
        shown = [
            f"{100 * grid['validation_accuracy']:.1f} ({100 * grid['interpolated_accuracy']:.1f})"
            for grid in steps["grids"]
        ]
        rows.append([f"{order}, {weight:g}", *shown])
    return (
        "Accuracy on held-out images by number of steps, in per cent; in brackets with norm "
        "statistics interpolated in time, nothing found anew:\n\n"
        + table(["order, penalty", *map(str, counts)], rows)
    )


def _panels(found: Mapping[Point, Read]) -> list[Panel]:
    penalties = {weight: found[ORDER, weight] for weight in PENALTIES}
    orders = {order: found[order, 0.0] for order in (*ORDERS, ORDER)}
    smallest = min(weight for weight in PENALTIES if weight > 0)
    by_penalty: dict[str, Any] = {
        "x": f"smoothness penalty, order {ORDER}",
        "scale": "symlog",
        "linear": smallest,
        "ticks": PENALTIES,
    }
    by_order: dict[str, Any] = {"x": "order, no penalty", "ticks": tuple(orders)}
    panels = []
    for reads, axis in ((penalties, by_penalty), (orders, by_order)):
        accuracy = {
            "all steps": [(x, read.cell.accuracy) for x, read in reads.items()],
            "fewest steps": _points(reads, "fewest_test_accuracy", 100.0),
        }
        panels.append(Panel(title="accuracy", y="test accuracy, %", series=accuracy, **axis))
        steps = {"fewest steps": _points(reads, "fewest_steps", 1.0)}
        panels.append(Panel(title="steps that keep it", y="steps", series=steps, **axis))
    return [*panels, _by_steps(found)]


def _by_steps(found: Mapping[Point, Read]) -> Panel:
    """Held-out accuracy on every grid, a line a run."""
    series = {
        f"order {order}, penalty {weight:g}": [
            (grid["steps"], Spread(100 * grid["validation_accuracy"], None, 1))
            for grid in read.steps["grids"]
        ]
        for (order, weight), read in found.items()
        if read.steps is not None
    }
    ticks = sorted({steps for points in series.values() for steps, _ in points})
    return Panel("fewer steps", "steps", "held-out accuracy, %", series, ticks=ticks)


def _points(
    reads: Mapping[Any, Read], key: str, factor: float
) -> list[tuple[float, Spread | None]]:
    values = {x: None if read.steps is None else read.steps[key] for x, read in reads.items()}
    return [
        (x, None if value is None else Spread(factor * value, None, 1))
        for x, value in values.items()
    ]
