"""The paper's figure of training-set fit against the order of the basis: CIFAR-10, K = 100.

figure-order-train/<data>/lr<x>/<model>/seed0
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from nanode.experiments.measurements import measured
from nanode.experiments.plan import Options, Planned, configured, read_recipe, standing
from nanode.reports.claims import Claim, verdict
from nanode.reports.figures import Panel, draw
from nanode.reports.markdown import table, write_page
from nanode.reports.records import Cell
from nanode.reports.settings import settings_table
from nanode.reports.statistics import Spread
from nanode.reports.table1 import TITLES

T = TypeVar("T")

ORDERS = (1, 2, 4, 8, 16, 30)
LINE = "con-resnet"
EPOCHS = 4
#: With d waves, of one size, a step of the optimizer moves W(t) up to d + 1 times as far as a step
#: of constant weights, so that the order acts as a learning rate, too. At this rate it matters less
#: than at the shared one, which is tried for the ends of the range.
RATE = 0.4
ENDS = (ORDERS[0], ORDERS[-1])


class OrderTrain:
    """Training-set fit against the order of the basis, at K = 100."""

    summary = "training-set fit against the order of the trigonometric basis, K = 100"

    def plan(self, options: Options, root: Path | None = None) -> list[Planned]:
        """All orders at one rate, then the first and the last at the shared one."""
        return [planned(model, options, lr) for lr in rates() for model in models_at(lr)]

    def report(self, root: Path, out: Path, options: Options) -> list[Path]:
        """The figure, with its numbers in a table."""
        plan = self.plan(options)
        runs = {(run.config.optimizer.lr, run.config.model): run.name for run in plan}
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
            f"{EPOCHS} epochs without augmentation or label smoothing: final weights in eval "
            "mode on the images trained on. Seed 0. With one learning rate for all orders, higher "
            "ones take larger steps as well, so that two rates are shown. One run each: what seeds "
            "vary by isn't known.",
            standing(plan, root, options),
            "![training-set fit by order](figure-order-train.png)",
            table(["model", "learning rate", *(name for name, _ in FITS.values()), "run"], rows),
            *(_verdicts(_at(fits, lr), _at(cells, lr), lr) for lr in rates()),
            settings_table(settings.items(), ["model", "learning rate"]),
        ]
        figure = draw(out / "figure-order-train.png", [_panel(fits, key) for key in FITS])
        page = write_page(out / "figure-order-train.md", "Order and training-set fit", parts)
        return [figure, page]


def rates() -> list[float]:
    """The learning rate of all orders, and the shared one."""
    return [RATE, read_recipe("table1").optimizer.lr]


def models_at(lr: float) -> list[str]:
    """All that is shown at a learning rate."""
    orders = ORDERS if lr == RATE else ENDS
    return [*(f"t-nanode-{order}" for order in orders), LINE]


def planned(model: str, options: Options, lr: float) -> Planned:
    """Images as they are and plain labels: what is left of the loss is what can't be fitted."""
    changes = {
        "epochs": 1 if options.tiny else EPOCHS,
        "label_smoothing": 0.0,
        "augment": {},
        "test": False,
        "optimizer.lr": lr,
    }
    config = configured("table1", options, model, options.main, 100, changes)
    name = f"figure-order-train/{options.main}/lr{lr:g}/{model}/seed0"
    return Planned(name, config, measure="fit")


# ---- the report

#: What ``fit.json`` holds, how to show it and by how much to multiply it.
FITS = {"train_accuracy": ("training accuracy, %", 100.0), "train_loss": ("training loss", 1.0)}


def _fit(fit: Mapping[str, float]) -> tuple[str, str]:
    return f"{100 * fit['train_accuracy']:.2f}", f"{fit['train_loss']:.4f}"


#: What the paper's figure shows, by training accuracy.
FITTED = (
    Claim("order 30 fits the training set better than order 1", ("t-nanode-30",), ("t-nanode-1",)),
    Claim("order 30 fits it better than the constrained ResNet", ("t-nanode-30",), (LINE,)),
)
#: By learning rate and model, what ``fit.json`` holds.
Fits = Mapping[tuple[float, str], Mapping[str, float] | None]


def _at(found: Mapping[tuple[float, str], T | None], lr: float) -> dict[str, T]:
    """What is known at a learning rate, by model."""
    return {model: one for (rate, model), one in found.items() if rate == lr and one is not None}


def _verdicts(fits: Mapping[str, Mapping[str, float]], cells: Mapping[str, Cell], lr: float) -> str:
    known = {model: Spread(100 * fit["train_accuracy"], None, 1) for model, fit in fits.items()}
    found = [f"- {claim.text}: {verdict(claim, cells, measured=known)}" for claim in FITTED]
    return (
        f"Of the paper's claims at learning rate {lr:g}, by training accuracy, in points:\n\n"
        + "\n".join(found)
    )


def _panel(fits: Fits, key: str) -> Panel:
    label, factor = FITS[key]
    series: dict[str, list[tuple[float, Spread | None]]] = {}
    levels: dict[str, float] = {}
    for lr in rates():
        known = {model: factor * fit[key] for model, fit in _at(fits, lr).items()}
        orders = ORDERS if lr == RATE else ENDS
        points = [(order, known.get(f"t-nanode-{order}")) for order in orders]
        series[f"T-NANODE, learning rate {lr:g}"] = [
            (order, None if value is None else Spread(value, None, 1)) for order, value in points
        ]
        if LINE in known:
            levels[f"{LINE}, {lr:g}"] = known[LINE]
    return Panel(
        title=f"{label} at K = 100",
        x="order of the trigonometric basis",
        y=label,
        series=series,
        levels=levels,
        scale="log",
        ticks=ORDERS,
    )
