"""The paper's figure of test accuracy against the order of the basis: CIFAR-10, K = 10.

    figure-order-test/<data>/shared/<model>/seed<n>            by the shared recipe
    figure-order-test/<data>/own/<model>/<candidate>/seed<n>   at the rate and scale of order 10

Order 10 and the residual networks are taken from Table 1, with their candidates.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from nanode.experiments.plan import DATA, Options, Planned, changed, standing
from nanode.experiments.table1 import main_columns
from nanode.experiments.table1_runs import (
    candidates,
    choice,
    no_choice,
    own,
    shared,
    undecided,
)
from nanode.reports.claims import WORDS, Claim, verdict
from nanode.reports.figures import Panel, draw
from nanode.reports.markdown import table, write_page
from nanode.reports.records import Cell
from nanode.reports.settings import settings_table
from nanode.reports.statistics import Noise
from nanode.reports.table1 import TITLES, column_noise

ORDERS = tuple(range(4, 11))
#: With the short budget, of the panel at own rates.
FEW_ORDERS = (4, 6, 8, 10)
LINES = ("con-resnet", "uncon-resnet")
#: The rows of Table 1 whose learning rates and scales are taken.
BASES = ("t-nanode-10", "b-nanode-10", *LINES)
#: The panels of the figure: what is above each, and the heading of its numbers.
COLUMNS = {
    "shared": ("shared recipe", "By the shared recipe"),
    "own": (
        "order 10's rate and scale",
        "At the learning rates and scales that Table 1 has chosen for order 10 and ResNets",
    ),
}


class OrderTest:
    """Test accuracy against the order of the basis, at K = 10."""

    summary = "test accuracy against the order of the basis, K = 10: waves against buckets"
    draws = True

    def plan(self, options: Options, root: Path | None = None) -> list[Planned]:
        """By the shared recipe; Table 1's candidates; then at the rates and scales they decide."""
        seeds = range(options.seeds if options.budget == "full" else 1)
        runs = [*_column("shared", seeds, options, root)]
        runs += [run for base in BASES for run in candidates(base, options, root).values()]
        runs += _column("own", seeds, options, root)
        return list({run.name: run for run in runs}.values())

    def report(self, root: Path, out: Path, options: Options) -> list[Path]:
        """The figure, with its numbers in a table."""
        columns = main_columns(root, replace(options, data=DATA))
        panels, parts = [], []
        for column, (title, heading) in COLUMNS.items():
            models = models_of(column, options)
            cells = {model: _cell(root, model, options, column) for model in models}
            orders = orders_of(column, options)
            panels.append(_panel(cells, orders, f"K = 10, {title}"))
            # By all rows of Table 1, so that no pair of models is judged in two ways.
            noise = column_noise([columns[column], *columns.values()], options.main)
            parts += [f"## {heading}", *_parts(cells, orders, noise)]
        intro = (
            f"Test accuracy on {TITLES[options.main]} at K = 10, by the recipe of Table 1, "
            "mean ± sample standard deviation over the seeds named behind it. The paper finds "
            "T-NANODE ahead of B-NANODE for every order below the number of steps, and in its "
            "Table 1 also for order 10. Of one order T has more to learn: 2d + 1 coefficients a "
            "weight, where B has d; and at one learning rate it takes longer steps, the more so "
            "the higher the order, which the second panel makes up for at order 10 only. "
            f"{WORDS} s is that of Table 1's column, or of its first where a column has single "
            "seeds only."
        )
        open_rows = any(undecided(base, options, root) for base in BASES)
        still = standing(self.plan(options, root), root, options, open_rows)
        image = "![test accuracy by order](figure-order-test.png)"
        figure = draw(out / "figure-order-test.png", panels)
        page = write_page(
            out / "figure-order-test.md", "Order and test accuracy", [intro, still, image, *parts]
        )
        return [figure, page]


# ---- the runs


def orders_of(column: str, options: Options) -> tuple[int, ...]:
    """The orders of a panel."""
    return FEW_ORDERS if column == "own" and options.budget == "short" else ORDERS


def models_of(column: str, options: Options) -> list[str]:
    """All that a panel shows."""
    orders = orders_of(column, options)
    return [*(f"{kind}-nanode-{n}" for n in orders for kind in "tb"), *LINES]


def _column(
    column: str, seeds: Iterable[int], options: Options, root: Path | None
) -> Iterator[Planned]:
    """The runs of a panel that can be planned by now."""
    for seed in seeds:
        for model in models_of(column, options):
            if (run := planned(model, options, column, root, seed)) is not None:
                yield run


def _base(model: str) -> str:
    """The row of Table 1 whose learning rate and scale a model takes."""
    return model if model in LINES else f"{model[0]}-nanode-10"


def planned(
    model: str, options: Options, column: str, root: Path | None, seed: int = 0
) -> Planned | None:
    """A run, which may be one of Table 1; None without a choice there."""
    base = _base(model)
    ours = shared(base, options.main, options, seed)
    theirs = own(base, options.main, options, root, seed) if column == "own" else ours
    if theirs is None or model == base:
        return theirs
    # Where the shared recipe is the choice, the runs of the first column serve as well.
    folder = f"shared/{model}" if theirs == ours else f"own/{model}/{choice(base, options, root)}"
    config = changed(theirs.config, {"model": model, "profile": False})
    return Planned(f"figure-order-test/{options.main}/{folder}/seed{seed}", config)


# ---- the report

#: What the paper's figure shows, by test accuracy.
GROWTH = Claim("order 10 of T is more accurate than order 4", ("t-nanode-10",), ("t-nanode-4",))
EQUALS = Claim("With nine coefficients each, T-4 is ahead of B-9", ("t-nanode-4",), ("b-nanode-9",))


def _cell(root: Path, model: str, options: Options, column: str) -> Cell:
    first = planned(model, options, column, root)
    if first is None:
        return Cell(note=no_choice(_base(model), options, root))
    return Cell.seeds(root, first.row)


def _panel(cells: Mapping[str, Cell], orders: Sequence[int], title: str) -> Panel:
    means = {model: cell.accuracy for model, cell in cells.items()}
    series = {
        name: [(order, means[f"{kind}-nanode-{order}"]) for order in orders]
        for kind, name in (("t", "T-NANODE"), ("b", "B-NANODE"))
    }
    levels = {model: mean.mean for model in LINES if (mean := means[model]) is not None}
    return Panel(
        title=title,
        x="order",
        y="test accuracy, %",
        series=series,
        levels=levels,
        ticks=tuple(orders),
    )


def _parts(cells: Mapping[str, Cell], orders: Sequence[int], noise: Noise | None) -> list[str]:
    rows = []
    for order in orders:
        t, b = f"t-nanode-{order}", f"b-nanode-{order}"
        found = verdict(Claim("T outperforms B", (t,), (b,)), cells, noise)
        rows.append([order, cells[t], cells[b], found])
    lines = [[model, cells[model]] for model in LINES]
    words = [f"The paper: {GROWTH.text}: {verdict(GROWTH, cells, noise)}."]
    if {*EQUALS.better, *EQUALS.worse} <= set(cells):
        words.append(f"{EQUALS.text}: {verdict(EQUALS, cells, noise)}.")
    return [
        table(["order", "T-NANODE", "B-NANODE", "T ahead of B"], rows),
        " ".join(words),
        table(["baseline", "test accuracy"], lines),
        settings_table((((model,), cell.records) for model, cell in cells.items()), ["model"]),
    ]
