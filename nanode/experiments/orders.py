"""The two figures on the order of the basis, on CIFAR-10.

    figure-order-train/<data>/lr<x>/<model>/seed0     K = 100: how well the training set is fitted
    figure-order-test/<data>/shared/<model>/seed<n>   K = 10: test accuracy by the shared recipe
    figure-order-test/<data>/own/<model>/<candidate>/seed<n>   at the rate and scale of order 10

The second figure takes from Table 1 order 10 and the residual networks, with their candidates.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from nanode.experiments.measurements import measured
from nanode.experiments.plan import (
    DATA,
    Options,
    Planned,
    changed,
    configured,
    read_recipe,
    standing,
)
from nanode.experiments.table1 import candidates, choice, main_columns, own, shared
from nanode.reports.claims import WORDS, Claim, judge
from nanode.reports.figures import Panel, draw
from nanode.reports.markdown import table, write_page
from nanode.reports.records import Cell
from nanode.reports.settings import settings_table
from nanode.reports.statistics import Noise, Spread
from nanode.reports.table1 import TITLES, column_noise

TRAIN_ORDERS = (1, 2, 4, 8, 16, 30)
TRAIN_EPOCHS = 4
TEST_ORDERS = tuple(range(4, 11))
#: With the short budget, of the panel at own rates.
FEW_ORDERS = (4, 6, 8, 10)
LINES = ("con-resnet", "uncon-resnet")
#: The rows of Table 1 whose learning rates and scales the second figure takes.
BASES = ("t-nanode-10", "b-nanode-10", *LINES)
#: Of the first figure: with d waves, of one size, a step of the optimizer moves W(t) up to d + 1
#: times as far as a step of constant weights, so that the order acts as a learning rate, too. At
#: this rate it matters less than at the shared one, which is tried for the ends of the range.
TRAIN_RATE = 0.4
ENDS = (TRAIN_ORDERS[0], TRAIN_ORDERS[-1])


class OrderTrain:
    """Training-set fit against the order of the basis, at K = 100."""

    summary = "training-set fit against the order of the trigonometric basis, K = 100"

    def plan(self, options: Options, root: Path | None = None) -> list[Planned]:
        """All orders at one rate, then the first and the last at the shared one."""
        return [order_train(model, options, lr) for lr in train_rates() for model in models_at(lr)]

    def report(self, root: Path, out: Path, options: Options) -> list[Path]:
        """The figure, with its numbers in a table."""
        runs = {
            (lr, model): order_train(model, options, lr).name
            for lr in train_rates()
            for model in models_at(lr)
        }
        fits = {key: measured("fit", root / name) for key, name in runs.items()}
        cells = {key: Cell.read(root, [name]) for key, name in runs.items()}
        rows = [
            [
                model,
                f"{lr:g}",
                *(("–", "–") if fit is None else _fit(fit)),
                "; ".join(record.status for record in cells[lr, model].records) or "not run",
            ]
            for (lr, model), fit in fits.items()
        ]
        settings = {(model, f"{lr:g}"): cell.records for (lr, model), cell in cells.items()}
        parts = [
            f"How well K = 100 evaluations fit the training images of {TITLES[options.main]} after "
            f"{TRAIN_EPOCHS} epochs without augmentation or label smoothing: final weights in eval "
            "mode on the images trained on. Seed 0. With one learning rate for all orders, higher "
            f"ones take larger steps as well, so that two rates are shown. {WORDS}",
            standing(self.plan(options, root), root, options),
            "![training-set fit by order](figure-order-train.png)",
            table(["model", "learning rate", *(name for name, _ in FITS.values()), "run"], rows),
            *(_train_verdicts(_at(fits, lr), lr) for lr in train_rates()),
            settings_table(settings.items(), ["model", "learning rate"]),
        ]
        figure = draw(out / "figure-order-train.png", [_train_panel(fits, key) for key in FITS])
        page = write_page(out / "figure-order-train.md", "Order and training-set fit", parts)
        return [figure, page]


class OrderTest:
    """Test accuracy against the order of the basis, at K = 10."""

    summary = "test accuracy against the order of the basis, K = 10: waves against buckets"

    def plan(self, options: Options, root: Path | None = None) -> list[Planned]:
        """By the shared recipe; Table 1's candidates; then at the rates and scales they decide."""
        seeds = range(options.seeds if options.budget == "full" else 1)
        runs = [*_column("shared", seeds, options, root)]
        runs += [run for base in BASES for run, _ in candidates(base, options, root)]
        runs += _column("own", seeds, options, root)
        return list({run.name: run for run in runs}.values())

    def report(self, root: Path, out: Path, options: Options) -> list[Path]:
        """The figure, with its numbers in a table."""
        columns = main_columns(root, replace(options, data=DATA))
        panels, parts = [], []
        for column, about in COLUMNS.items():
            models = models_of(column, options)
            cells = {model: _test_cell(root, model, options, column) for model in models}
            orders = orders_of(column, options)
            panels.append(_test_panel(cells, orders, f"K = 10, {columns[column].title}"))
            # By all rows of Table 1, so that no pair of models is judged in two ways.
            noise = column_noise([columns[column], *columns.values()], options.main)
            parts += [f"## {about}", *_test_parts(cells, orders, noise)]
        intro = (
            f"Test accuracy on {TITLES[options.main]} at K = 10, by the recipe of Table 1, "
            "mean ± sample standard deviation over the seeds named behind it. The paper finds "
            "T-NANODE ahead of B-NANODE for every order below the number of steps. Of one order T "
            "has more to learn: 2d + 1 coefficients a weight, where B has d; and at one learning "
            "rate it takes longer steps, the more so the higher the order, which the second panel "
            f"makes up for at order 10 only. {WORDS} s is "
            "that of Table 1's column, or of its first where a column has single seeds only."
        )
        undecided = any(choice(base, options, root) is None for base in BASES)
        still = standing(self.plan(options, root), root, options, undecided)
        image = "![test accuracy by order](figure-order-test.png)"
        figure = draw(out / "figure-order-test.png", panels)
        page = write_page(
            out / "figure-order-test.md", "Order and test accuracy", [intro, still, image, *parts]
        )
        return [figure, page]


# ---- the runs


def train_rates() -> list[float]:
    """The learning rates of the first figure."""
    return [TRAIN_RATE, read_recipe("table1").optimizer.lr]


def models_at(lr: float) -> list[str]:
    """All that the first figure shows at a learning rate."""
    orders = TRAIN_ORDERS if lr == TRAIN_RATE else ENDS
    return [*(f"t-nanode-{order}" for order in orders), LINES[0]]


def order_train(model: str, options: Options, lr: float) -> Planned:
    """Images as they are and plain labels: what is left of the loss is what can't be fitted."""
    changes = {
        "epochs": 1 if options.tiny else TRAIN_EPOCHS,
        "label_smoothing": 0.0,
        "augment": {},
        "test": False,
        "optimizer.lr": lr,
    }
    config = configured("table1", options, model, options.main, 100, changes)
    name = f"figure-order-train/{options.main}/lr{lr:g}/{model}/seed0"
    return Planned(name, config, measure="fit")


#: Panels of the second figure.
COLUMNS = {
    "shared": "By the shared recipe",
    "own": "At the learning rates and scales that Table 1 has chosen for order 10 and ResNets",
}


def orders_of(column: str, options: Options) -> tuple[int, ...]:
    """The orders of a panel."""
    return FEW_ORDERS if column == "own" and options.budget == "short" else TEST_ORDERS


def models_of(column: str, options: Options) -> list[str]:
    """All that a panel shows."""
    orders = orders_of(column, options)
    return [*(f"{kind}-nanode-{n}" for n in orders for kind in "tb"), *LINES]


def _column(
    column: str, seeds: Iterable[int], options: Options, root: Path | None
) -> Iterator[Planned]:
    """The runs of a panel of the second figure that can be planned by now."""
    for seed in seeds:
        for model in models_of(column, options):
            if (run := order_test(model, options, column, root, seed)) is not None:
                yield run


def order_test(
    model: str, options: Options, column: str, root: Path | None, seed: int = 0
) -> Planned | None:
    """A run of the second figure, which may be one of Table 1; None as long as that is open."""
    base = model if model in LINES else f"{model[0]}-nanode-10"
    ours = shared(base, options.main, options, seed)
    theirs = own(base, options.main, options, root, seed) if column == "own" else ours
    if theirs is None or model == base:
        return theirs
    # Where the shared recipe is the choice, the runs of the first column serve as well.
    folder = f"shared/{model}" if theirs == ours else f"own/{model}/{choice(base, options, root)}"
    config = changed(theirs.config, {"model": model, "profile": False})
    return Planned(f"figure-order-test/{options.main}/{folder}/seed{seed}", config)


# ---- the reports

#: What ``fit.json`` holds, how to show it and by how much to multiply it.
FITS = {"train_accuracy": ("training accuracy, %", 100.0), "train_loss": ("training loss", 1.0)}


def _fit(fit: Mapping[str, float]) -> tuple[str, str]:
    return f"{100 * fit['train_accuracy']:.2f}", f"{fit['train_loss']:.4f}"


#: What the paper's two figures show, by training accuracy and by test accuracy.
FITTED = (
    Claim("order 30 fits the training set better than order 1", ("t-nanode-30",), ("t-nanode-1",)),
    Claim("order 30 fits it better than the constrained ResNet", ("t-nanode-30",), LINES[:1]),
)
GROWTH = Claim("order 10 of T is more accurate than order 4", ("t-nanode-10",), ("t-nanode-4",))
EQUALS = Claim("With nine coefficients each, T-4 is ahead of B-9", ("t-nanode-4",), ("b-nanode-9",))
#: By learning rate and model, what ``fit.json`` holds.
Fits = Mapping[tuple[float, str], Mapping[str, float] | None]


def _at(fits: Fits, lr: float) -> dict[str, Mapping[str, float]]:
    """What is known at a learning rate, by model."""
    return {model: fit for (rate, model), fit in fits.items() if rate == lr and fit is not None}


def _train_verdicts(fits: Mapping[str, Mapping[str, float]], lr: float) -> str:
    known = {model: Spread(100 * fit["train_accuracy"], None, 1) for model, fit in fits.items()}
    found = [f"- {claim.text}: {judge(claim, known)}" for claim in FITTED]
    return (
        f"Of the paper's claims at learning rate {lr:g}, by training accuracy, in points:\n\n"
        + "\n".join(found)
    )


def _train_panel(fits: Fits, key: str) -> Panel:
    label, factor = FITS[key]
    series: dict[str, list[tuple[float, Spread]]] = {}
    levels: dict[str, float] = {}
    for lr in train_rates():
        known = {model: factor * fit[key] for model, fit in _at(fits, lr).items()}
        named = {order: f"t-nanode-{order}" for order in TRAIN_ORDERS}
        series[f"T-NANODE, learning rate {lr:g}"] = [
            (order, Spread(known[model], None, 1))
            for order, model in named.items()
            if model in known
        ]
        levels |= {f"{model}, {lr:g}": known[model] for model in LINES if model in known}
    return Panel(
        title=f"{label} at K = 100",
        x="order of the trigonometric basis",
        y=label,
        series=series,
        levels=levels,
        scale="log",
        ticks=TRAIN_ORDERS,
    )


def _test_cell(root: Path, model: str, options: Options, column: str) -> Cell:
    first = order_test(model, options, column, root)
    if first is None:
        return Cell(note="choice still open")
    folder, _, _ = first.name.rpartition("/")
    return Cell.seeds(root, folder)


def _test_panel(cells: Mapping[str, Cell], orders: Sequence[int], title: str) -> Panel:
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


def _test_parts(cells: Mapping[str, Cell], orders: Sequence[int], noise: Noise | None) -> list[str]:
    means = {model: cell.accuracy for model, cell in cells.items()}
    rows = []
    for order in orders:
        t, b = f"t-nanode-{order}", f"b-nanode-{order}"
        verdict = judge(Claim("T outperforms B", (t,), (b,)), means, noise)
        rows.append([order, cells[t], cells[b], verdict])
    lines = [[model, cells[model]] for model in LINES]
    words = [f"The paper: {GROWTH.text}: {judge(GROWTH, means, noise)}."]
    if {*EQUALS.better, *EQUALS.worse} <= set(means):
        words.append(f"{EQUALS.text}: {judge(EQUALS, means, noise)}.")
    return [
        table(["order", "T-NANODE", "B-NANODE", "T ahead of B"], rows),
        " ".join(words),
        table(["baseline", "test accuracy"], lines),
        settings_table((((model,), cell.records) for model, cell in cells.items()), ["model"]),
    ]
