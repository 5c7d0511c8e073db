"""The paper's figure of training-set fit against the order of the basis: CIFAR-10, K = 100.

figure-order-train/<data>/lr<x>/<model>/seed0
figure-order-train/<data>/lr<x>-scale<s>/<model>/seed0   with whole steps, as residual networks take
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from nanode.experiments.measurements import measured
from nanode.experiments.plan import Options, Planned, configured, read_recipe, standing
from nanode.experiments.selection import Candidate
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
#: Evaluations of f, and the scale with which their steps are whole.
DEPTH = 100


class OrderTrain:
    """Training-set fit against the order of the basis, at K = 100."""

    summary = "training-set fit against the order of the trigonometric basis, K = 100"
    draws = True

    def plan(self, options: Options, root: Path | None = None) -> list[Planned]:
        """All orders at one rate, then the ends at the shared one, then with whole steps."""
        return list(_runs(options).values())

    def report(self, root: Path, out: Path, options: Options) -> list[Path]:
        """The figure, with its numbers in a table."""
        runs = _runs(options)
        fits = {key: measured("fit", root / run.name) for key, run in runs.items()}
        cells = {key: Cell.read(root, [run.name]) for key, run in runs.items()}
        rows = [
            [
                model,
                setting,
                *(("–", "–") if fit is None else _fit(fit)),
                "; ".join(record.status for record in cells[setting, model].records) or "not run",
            ]
            for (setting, model), fit in fits.items()
        ]
        settings = {(model, f"{setting}"): cell.records for (setting, model), cell in cells.items()}
        parts = [
            f"How well K = {DEPTH} evaluations fit the training images of {TITLES[options.main]} "
            f"after {EPOCHS} epochs without augmentation or label smoothing: final weights in eval "
            "mode on the images trained on. Seed 0. With one learning rate for all orders, higher "
            "ones take larger steps as well, so that two rates are shown. T-NANODE's steps are of "
            "length 0.01, as in the paper, the ResNet's of length 1. With scale 100, shown last, "
            "T-NANODE's are of length 1 too; if its weights didn't move it would be the ResNet. "
            "One run each: what seeds vary by isn't known.",
            standing(list(runs.values()), root, options),
            "![training-set fit by order](figure-order-train.png)",
            table(["model", "setting", *(name for name, _ in FITS.values()), "run"], rows),
            *(_verdicts(_at(fits, each), _at(cells, each), each) for each in settings_of(options)),
            settings_table(settings.items(), ["model", "setting"]),
        ]
        figure = draw(out / "figure-order-train.png", [_panel(fits, key, options) for key in FITS])
        page = write_page(out / "figure-order-train.md", "Order and training-set fit", parts)
        return [figure, page]


def settings_of(options: Options) -> list[Candidate]:
    """Learning rates and scales: all orders' rate, the shared one, and whole steps."""
    steps = configured("table1", options, LINE, options.main, DEPTH, {}).options["steps"]
    shared = read_recipe("table1").optimizer.lr
    return [Candidate(RATE), Candidate(shared), Candidate(RATE, scale=float(steps))]


def orders_at(setting: Candidate) -> tuple[int, ...]:
    """All orders that are trained in a setting."""
    return ORDERS if setting == Candidate(RATE) else ENDS


def _runs(options: Options) -> dict[tuple[Candidate, str], Planned]:
    """By setting and model. A residual network takes whole steps anyway."""
    found = {}
    for setting in settings_of(options):
        models = [f"t-nanode-{order}" for order in orders_at(setting)]
        for model in models if setting.scale else (*models, LINE):
            found[setting, model] = planned(model, options, setting)
    return found


def planned(model: str, options: Options, setting: Candidate) -> Planned:
    """Images as they are and plain labels: what is left of the loss is what can't be fitted."""
    changes = setting.changes() | {
        "epochs": 1 if options.tiny else EPOCHS,
        "label_smoothing": 0.0,
        "augment": {},
        "test": False,
    }
    config = configured("table1", options, model, options.main, DEPTH, changes)
    name = f"figure-order-train/{options.main}/{setting}/{model}/seed0"
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
#: By setting and model, what ``fit.json`` holds.
Fits = Mapping[tuple[Candidate, str], Mapping[str, float] | None]


def _at(found: Mapping[tuple[Candidate, str], T | None], setting: Candidate) -> dict[str, T]:
    """What is known in a setting, by model."""
    line = Candidate(setting.lr), LINE
    places = [place for place in found if place[0] == setting or place == line]
    return {place[1]: one for place in places if (one := found[place]) is not None}


def _verdicts(
    fits: Mapping[str, Mapping[str, float]], cells: Mapping[str, Cell], setting: Candidate
) -> str:
    known = {model: Spread(100 * fit["train_accuracy"], None, 1) for model, fit in fits.items()}
    found = [f"- {claim.text}: {verdict(claim, cells, measured=known)}" for claim in FITTED]
    return (
        f"Of the paper's claims, {_words(setting)}, by training accuracy, in points:\n\n"
        + "\n".join(found)
    )


def _words(setting: Candidate) -> str:
    scale = f", scale {setting.scale:g}" if setting.scale else ""
    return f"learning rate {setting.lr:g}{scale}"


def _panel(fits: Fits, key: str, options: Options) -> Panel:
    label, factor = FITS[key]
    series: dict[str, list[tuple[float, Spread | None]]] = {}
    levels: dict[str, float] = {}
    for setting in settings_of(options):
        known = {model: factor * fit[key] for model, fit in _at(fits, setting).items()}
        points = [(order, known.get(f"t-nanode-{order}")) for order in orders_at(setting)]
        series[f"T-NANODE, {_words(setting)}"] = [
            (order, None if value is None else Spread(value, None, 1)) for order, value in points
        ]
        if LINE in known:
            levels[f"{LINE}, learning rate {setting.lr:g}"] = known[LINE]
    return Panel(
        title=f"{label} at K = {DEPTH}",
        x="order of the trigonometric basis",
        y=label,
        series=series,
        levels=levels,
        scale="log",
        ticks=ORDERS,
    )
