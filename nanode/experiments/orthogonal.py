"""Weights in polynomials of degree 4: batch norm alone against orthogonal ones as well.

    figure-orthogonal/<data>/lr<x>/<model>/seed<n>

The paper's figure shows one run each, at a learning rate and from a start that it doesn't state.
Here are several rates and two starts: weights held in time, and all coefficients at random, as the
paper's figure of Chebyshev weights has them.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from nanode.experiments.plan import Options, Planned, configured, standing
from nanode.reports.claims import WORDS, Claim, judge
from nanode.reports.figures import Panel, draw
from nanode.reports.markdown import table, write_page
from nanode.reports.records import Cell
from nanode.reports.settings import settings_table
from nanode.reports.table1 import TITLES
from nanode.training import RunRecord, TrainConfig

#: Five coefficients are degree 4.
MODELS = {
    "chebyshev-5": "constant, batch norm only",
    "chebyshev-5-orthogonal": "constant, orthogonal",
    "chebyshev-5-independent": "random, batch norm only",
    "chebyshev-5-independent-orthogonal": "random, orthogonal",
}
PAIRS = (tuple(MODELS)[:2], tuple(MODELS)[2:])
RATES = (0.1, 1.0, 4.0, 16.0)
#: Half of Table 1's: whether learning collapses shows early.
EPOCHS = 8
#: A run that ends below twice the accuracy of guessing among ten classes has learnt nothing.
GUESSING = 0.2

ABOUT = (
    "at several learning rates: with batch norm only, and with every convolution a product of "
    "Householder reflections as well. “Constant” weights start so in time, “random” ones with "
    "all coefficients drawn independently. The paper: with batch norm only learning collapses, "
    "orthogonal weights keep it stable. A run collapsed on the way if its accuracy on held-out "
    "images fell below half of what it had been before at the end of some epoch, and for good if "
    "it diverged or if its final weights are below half of its best epoch or below 20 %. Curves "
    "are means over seeds, as far as all of them came, bars their sample standard deviation. "
    "Weight decay acts on the vectors of reflections, too; of these only directions count, so that "
    "there it raises the learning rate."
)
#: Added where runs are too short to learn.
UNLEARNT = (
    "These runs are so short that some never learn: they count as collapsed for good by the 20 %, "
    "and say nothing about stability."
)


class FigureOrthogonal:
    """Learning curves of polynomial weights, orthogonal or not, over learning rates."""

    summary = "does learning collapse with polynomial weights, and do orthogonal ones help"
    draws = True

    def plan(self, options: Options, root: Path | None = None) -> list[Planned]:
        """Seed by seed, so that an early stop leaves every curve with its first seed."""
        return [
            planned(model, options, lr, seed)
            for seed in range(options.seeds)
            for lr in rates(options)
            for model in MODELS
        ]

    def report(self, root: Path, out: Path, options: Options) -> list[Path]:
        """Curves by learning rate, final accuracies, and who collapsed."""
        cells = {
            (lr, model): Cell.seeds(root, planned(model, options, lr, seed=0).row)
            for lr in rates(options)
            for model in MODELS
        }
        rows = [
            [f"{lr:g}", MODELS[model], cell, *(_count(cell, by) for by in (stumbled, collapsed))]
            for (lr, model), cell in cells.items()
        ]
        header = ["learning rate", "weights", "test accuracy, %", "collapsed on the way"]
        header.append("collapsed for good")
        settings = {(f"{lr:g}", MODELS[model]): c.records for (lr, model), c in cells.items()}
        parts = [
            about(options),
            standing(self.plan(options, root), root, options),
            "![learning curves](figure-orthogonal.png)",
            table(header, rows),
            _verdicts(cells, rates(options)),
            settings_table(settings.items(), ["learning rate", "weights"]),
        ]
        panels = [panel for lr in rates(options) for panel in _panels(cells, lr)]
        figure = draw(out / "figure-orthogonal.png", panels)
        page = write_page(out / "figure-orthogonal.md", "Orthogonal weights", parts)
        return [figure, page]


def rates(options: Options) -> tuple[float, ...]:
    """All of them, or two for seconds on a CPU."""
    return RATES[:2] if options.tiny else RATES


def planned(model: str, options: Options, lr: float, seed: int) -> Planned:
    """A run of the figure."""
    changes = {"optimizer.lr": lr, "seed": seed} | ({} if options.tiny else {"epochs": EPOCHS})
    config = configured("table1", options, model, options.main, 10, changes)
    return Planned(f"figure-orthogonal/{options.main}/lr{lr:g}/{model}/seed{seed}", config)


def about(options: Options) -> str:
    """What was run within a budget, and what counts as a collapse."""
    config = planned(next(iter(MODELS)), options, rates(options)[0], 0).config
    assert isinstance(config, TrainConfig)
    length = "for one epoch" if options.tiny else "with half of its epochs"
    recipe = "the tiny recipe" if options.tiny else "the recipe"
    text = (
        f"On {TITLES[options.main]}. Chebyshev weights of degree 4 at K = "
        f"{config.options['steps']} by {recipe} of Table 1 {length}, {ABOUT}"
    )
    return f"{text} {UNLEARNT}" if options.tiny else text


def stumbled(record: RunRecord) -> bool:
    """Whether a run lost half of what it had learnt at the end of some epoch."""
    known = _held_out(record)
    return any(
        now < max(before) / 2
        for now, before in ((known[n], known[:n]) for n in range(1, len(known)))
    )


def collapsed(record: RunRecord) -> bool:
    """Whether a run that is over lost what it had learnt for good, or never learnt."""
    if record.status == "failed" or record.metrics is None:
        return True
    # Of the final weights, averaged and with norm statistics of their own.
    last = record.metrics.validation_accuracy
    return last is not None and last < max([2 * GUESSING, *_held_out(record)]) / 2


def _held_out(record: RunRecord) -> list[float]:
    found = [point.validation_accuracy for point in record.curves]
    return [accuracy for accuracy in found if accuracy is not None]


# ---- the report

Cells = Mapping[tuple[float, str], Cell]


def _count(cell: Cell, event: Callable[[RunRecord], bool]) -> str:
    """How many runs something happened to."""
    return f"{sum(map(event, cell.records))} of {len(cell.records)}" if cell.records else "–"


def _verdicts(cells: Cells, rates: Sequence[float]) -> str:
    rows = [[f"{lr:g}", *(_verdict(cells, lr, *pair) for pair in PAIRS)] for lr in rates]
    header = [
        "orthogonal ahead (finished runs), at learning rate",
        "constant at first",
        "random at first",
    ]
    return (
        f"{table(header, rows)}\n\n{WORDS} Rows vary tenfold here, so that the two that are "
        "compared are a column."
    )


def _verdict(cells: Cells, lr: float, plain: str, orthogonal: str) -> str:
    pair = {model: cells[lr, model] for model in (plain, orthogonal)}
    lost = [MODELS[model] for model, cell in pair.items() if cell.records and not cell.finished]
    if lost:
        return f"every run diverged: {'; '.join(lost)}"
    claim = Claim("orthogonal weights are ahead", (orthogonal,), (plain,))
    return str(judge(claim, {model: cell.accuracy for model, cell in pair.items()}))


def _panels(cells: Cells, lr: float) -> list[Panel]:
    title = f"learning rate {lr:g}"
    chosen = {name: cells[lr, model] for model, name in MODELS.items()}
    losses = {name: cell.curve("train_loss") for name, cell in chosen.items()}
    accuracies = {name: cell.curve("validation_accuracy", 100) for name, cell in chosen.items()}
    return [
        Panel(title, "epoch", "training loss", losses, y_scale="log"),
        Panel(title, "epoch", "held-out accuracy, %", accuracies),
    ]
