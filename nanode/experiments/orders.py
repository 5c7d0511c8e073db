"""The two figures on the order of the basis, on CIFAR-10.

    figure-order-train/<data>/<model>/seed0       K = 100: how well the training set is fitted
    figure-order-test/<data>/lr<x>/<model>/seed<n>    K = 10: test accuracy

The second figure takes what Table 1 has already: order 10 and the residual networks.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from nanode.experiments.measurements import measured
from nanode.experiments.plan import Options, Planned, configured, read_recipe, standing
from nanode.experiments.table1 import shared
from nanode.reports.claims import Claim, judge
from nanode.reports.figures import Panel, draw
from nanode.reports.markdown import table, write_page
from nanode.reports.records import Cell
from nanode.reports.settings import settings_table
from nanode.reports.statistics import Spread
from nanode.reports.table1 import TITLES

TRAIN_ORDERS = (1, 2, 4, 8, 16, 30)
TRAIN_EPOCHS = 4
TEST_ORDERS = tuple(range(4, 11))
LINES = ("con-resnet", "uncon-resnet")
#: The rate of the second panel, nearer to what most rows like.
OTHER_RATE = 0.4


@dataclass(frozen=True)
class OrderTrain:
    """Training-set fit against the order of the basis, at K = 100."""

    summary: str = "training-set fit against the order of the trigonometric basis, K = 100"

    def plan(self, options: Options, root: Path | None = None) -> list[Planned]:
        """Images as they are and plain labels: what is left of the loss is what can't be fitted."""
        changes = {
            "epochs": 1 if options.tiny else TRAIN_EPOCHS,
            "label_smoothing": 0.0,
            "augment": {},
            "test": False,
        }
        return [
            Planned(
                train_name(model, options),
                configured("table1", options, model, options.main, 100, changes),
                measure="fit",
            )
            for model in train_models()
        ]

    def report(self, root: Path, out: Path, options: Options) -> list[Path]:
        """The figure, with its numbers in a table."""
        folders = {model: root / train_name(model, options) for model in train_models()}
        fits = {model: measured("fit", folder) for model, folder in folders.items()}
        cells = {model: Cell.read(root, [train_name(model, options)]) for model in folders}
        rows = [
            [
                model,
                *(("–", "–") if fit is None else _fit(fit)),
                "; ".join(record.status for record in cells[model].records) or "not run",
            ]
            for model, fit in fits.items()
        ]
        parts = [
            "How well K = 100 evaluations fit the training set after a few epochs without "
            "augmentation or label smoothing: final weights in eval mode on the training images. "
            "One seed.",
            standing(self.plan(options, root), root, options),
            "![training-set fit by order](figure-order-train.png)",
            table(["model", "training accuracy, %", "training loss", "run"], rows),
            _train_verdicts(fits),
            settings_table((((model,), cell.records) for model, cell in cells.items()), ["model"]),
        ]
        figure = draw(out / "figure-order-train.png", [_train_panel(fits, key) for key in FITS])
        page = write_page(out / "figure-order-train.md", "Order and training-set fit", parts)
        return [figure, page]


@dataclass(frozen=True)
class OrderTest:
    """Test accuracy against the order of the basis, at K = 10."""

    summary: str = "test accuracy against the order of the basis, K = 10: waves against buckets"

    def plan(self, options: Options, root: Path | None = None) -> list[Planned]:
        """At the shared learning rate; with the full budget also at a higher one."""
        return [
            order_test(model, options, lr, seed)
            for seed in range(options.seeds if options.budget == "full" else 1)
            for lr in rates(options)
            for model in test_models()
        ]

    def report(self, root: Path, out: Path, options: Options) -> list[Path]:
        """The figure, with its numbers in a table."""
        panels, parts = [], []
        for lr in rates(options):
            cells = {model: _test_cell(root, model, options, lr) for model in test_models()}
            panels.append(_test_panel(cells, lr))
            parts += _test_parts(cells, lr)
        intro = (
            f"Test accuracy on {TITLES[options.main]} at K = 10, by the recipe of Table 1, "
            "mean ± sample standard deviation over the seeds named behind it. The paper finds "
            "T-NANODE ahead of B-NANODE for every order below the number of steps."
        )
        still = standing(self.plan(options, root), root, options)
        image = "![test accuracy by order](figure-order-test.png)"
        figure = draw(out / "figure-order-test.png", panels)
        page = write_page(
            out / "figure-order-test.md", "Order and test accuracy", [intro, still, image, *parts]
        )
        return [figure, page]


def train_models() -> list[str]:
    """All that the first figure shows."""
    return [*(f"t-nanode-{order}" for order in TRAIN_ORDERS), LINES[0]]


def train_name(model: str, options: Options) -> str:
    """The folder of a run at K = 100."""
    return f"figure-order-train/{options.main}/{model}/seed0"


def rates(options: Options) -> list[float]:
    """The learning rates of the second figure, the shared one first."""
    own = read_recipe("table1").optimizer.lr
    return [own, OTHER_RATE] if options.budget == "full" else [own]


def test_models() -> list[str]:
    """All that the second figure shows."""
    return [*(f"{kind}-nanode-{n}" for n in TEST_ORDERS for kind in "tb"), *LINES]


def order_test(model: str, options: Options, lr: float, seed: int) -> Planned:
    """A run of the second figure, which may be one of Table 1."""
    ours = shared(model, options.main, options, seed)
    if lr == ours.config.optimizer.lr and model in ("t-nanode-10", "b-nanode-10", *LINES):
        return ours
    changes = {"optimizer.lr": lr, "seed": seed}
    config = configured("table1", options, model, options.main, 10, changes)
    return Planned(f"figure-order-test/{options.main}/lr{lr:g}/{model}/seed{seed}", config)


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


def _train_verdicts(fits: Mapping[str, Mapping[str, float] | None]) -> str:
    known = {m: Spread(100 * fit["train_accuracy"], None, 1) for m, fit in fits.items() if fit}
    found = [f"- {claim.text}: {judge(claim, known)}" for claim in FITTED]
    return "Of the paper's claims, by training accuracy, in points:\n\n" + "\n".join(found)


def _train_panel(fits: Mapping[str, Mapping[str, float] | None], key: str) -> Panel:
    label, factor = FITS[key]
    known = {model: factor * fit[key] for model, fit in fits.items() if fit is not None}
    orders = [(order, known.get(f"t-nanode-{order}")) for order in TRAIN_ORDERS]
    return Panel(
        title=f"{label} at K = 100",
        x="order of the trigonometric basis",
        y=label,
        series={"T-NANODE": [(n, Spread(y, None, 1)) for n, y in orders if y is not None]},
        levels={model: known[model] for model in LINES if model in known},
        scale="log",
        ticks=TRAIN_ORDERS,
    )


def _test_cell(root: Path, model: str, options: Options, lr: float) -> Cell:
    first = order_test(model, options, lr, 0).name
    folders = sorted((root / first).parent.glob("seed*"))
    return Cell.read(root, [str(folder.relative_to(root)) for folder in folders])


def _test_panel(cells: Mapping[str, Cell], lr: float) -> Panel:
    means = {model: cell.accuracy for model, cell in cells.items()}
    series = {
        name: [
            (order, mean)
            for order in TEST_ORDERS
            if (mean := means[f"{kind}-nanode-{order}"]) is not None
        ]
        for kind, name in (("t", "T-NANODE"), ("b", "B-NANODE"))
    }
    levels = {model: mean.mean for model in LINES if (mean := means[model]) is not None}
    return Panel(
        title=f"K = 10, learning rate {lr:g}",
        x="order",
        y="test accuracy, %",
        series=series,
        levels=levels,
        ticks=TEST_ORDERS,
    )


def _test_parts(cells: Mapping[str, Cell], lr: float) -> list[str]:
    means = {model: cell.accuracy for model, cell in cells.items()}
    rows = []
    for order in TEST_ORDERS:
        t, b = f"t-nanode-{order}", f"b-nanode-{order}"
        verdict = judge(Claim("T outperforms B", (t,), (b,)), means)
        rows.append([order, cells[t], cells[b], verdict])
    lines = [[model, cells[model]] for model in LINES]
    return [
        f"## Learning rate {lr:g}",
        table(["order", "T-NANODE", "B-NANODE", "T ahead of B"], rows),
        f"The paper: {GROWTH.text}: {judge(GROWTH, means)}.",
        table(["baseline", "test accuracy"], lines),
        settings_table((((model,), cell.records) for model, cell in cells.items()), ["model"]),
    ]
