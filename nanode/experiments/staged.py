"""Three stages, for accuracy: NANODEs beside untied ResNets of their size and of their compute.

staged/<data>/select/lr<x>             candidates for the one recipe, compared on held-out images
staged/<data>/select/lr<x>-scale<s>    at the best rate
staged/<data>/mixing/lr<x>-…cutmix<p>  at the best of these: with and without boxes of other images
staged/<data>/<model>-k<K>/seed<n>     final runs, on all training images
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from nanode.experiments.plan import Options, Planned, configured, still_to_come
from nanode.experiments.selection import Candidate, best, validation_text
from nanode.reports.markdown import table, write_page
from nanode.reports.paper import PEERS
from nanode.reports.records import Cell, find_record
from nanode.reports.settings import settings_table
from nanode.reports.table1 import TITLES

#: Models with their evaluations a stage: two NANODEs, the ResNet of their parameter count and the
#: one of their compute.
ROWS = (("b-nanode-3", 6), ("t-nanode-1", 6), ("uncon-resnet", 3), ("uncon-resnet", 6))
RATES = (0.2, 0.4, 0.8)
#: Beside the NANODEs' own scale of 1, at the best rate.
SCALES = (2.5, 6.0)
SELECT_EPOCHS = 30
#: Shares of batches with boxes of other images; longer, since what keeps from fitting pays late.
MIXING = (0.0, 0.5)
MIXING_EPOCHS = 75


ABOUT = (
    "Test accuracy in per cent, mean ± sample standard deviation over the seeds named behind it. "
    "All rows share one recipe; what is open in it was chosen for the first row on held-out "
    "CIFAR-10 images, and final runs train on all training images. A scale so chosen is the "
    "NANODEs' alone: a ResNet's is its depth. Of the two untied ResNets the first has the NANODEs' "
    f"parameter count, the second their compute. Others, as they report: {PEERS}."
)


@dataclass(frozen=True)
class Staged:
    """Three stages, for accuracy, beside untied ResNets."""

    summary: str = "three stages, for accuracy, beside untied ResNets of the same recipe"

    def plan(self, options: Options, root: Path | None = None) -> list[Planned]:
        """Candidates for the learning rate, then all rows at the chosen one."""
        rounds = candidates(options, root)
        runs = [run for found in rounds for run, _ in found]
        if (chosen := choice(options, root)) is not None:
            runs += _final(options, chosen)
        return runs

    def report(self, root: Path, out: Path, options: Options) -> list[Path]:
        """The table."""
        cells = {
            (model, steps, data): _cell(root, model, steps, data)
            for data in options.sets
            for model, steps in ROWS
        }
        accuracies = table(
            ["model, evaluations a stage", "parameters", *(TITLES[data] for data in options.sets)],
            [
                [
                    f"{model}, {steps}",
                    _parameters([cells[model, steps, data] for data in options.sets]),
                    *(cells[model, steps, data] for data in options.sets),
                ]
                for model, steps in ROWS
            ],
        )
        rows = {
            (f"{model}, {steps}", TITLES[data]): cell.records
            for (model, steps, data), cell in cells.items()
        }
        parts = [
            ABOUT,
            still_to_come(self.plan(options, root), root),
            accuracies,
            _choice(root, options),
            settings_table(rows.items(), ["model", "data"]),
        ]
        return [write_page(out / "staged.md", "Three stages, for accuracy", parts)]


Round = list[tuple[Planned, Candidate]]


def candidates(options: Options, root: Path | None) -> list[Round]:
    """What the first row's choice is made from, in rounds that begin at the best so far.

    Learning rates, scales beside them, and whether to mix images; a round is left out as long as
    records of the one before are missing.
    """
    rates = [_candidate(Candidate(lr), options) for lr in RATES]
    if (chosen := best(rates, root)) is None:
        return [rates]
    scales = [_candidate(replace(chosen, scale=scale), options) for scale in SCALES]
    if (chosen := best([*rates, *scales], root)) is None:
        return [rates, scales]
    mixing = [_candidate(replace(chosen, cutmix=share), options) for share in MIXING]
    return [rates, scales, mixing]


def choice(options: Options, root: Path | None) -> Candidate | None:
    """What all rows share; None as long as records are missing."""
    rounds = candidates(options, root)
    return best(rounds[-1], root) if len(rounds) == 3 else None


def name(model: str, steps: int, data: str, seed: int) -> str:
    """The folder of a final run."""
    return f"staged/{data}/{model}-k{steps}/seed{seed}"


def _candidate(candidate: Candidate, options: Options) -> tuple[Planned, Candidate]:
    (model, steps), mixing = ROWS[0], candidate.cutmix is not None
    epochs = 1 if options.tiny else MIXING_EPOCHS if mixing else SELECT_EPOCHS
    changes = {"epochs": epochs, "test": False} | candidate.changes()
    config = configured("staged", options, model, options.main, steps, changes)
    folder = "mixing" if mixing else "select"
    return Planned(f"staged/{options.main}/{folder}/{candidate}", config), candidate


def _final(options: Options, chosen: Candidate) -> Iterator[Planned]:
    for seed in range(options.seeds if options.budget == "full" else 1):
        for data in options.sets:
            for model, steps in ROWS:
                own = replace(chosen, scale=None) if model == "uncon-resnet" else chosen
                # The choice is made: what was held out for it is trained on.
                changes = own.changes() | {"seed": seed, "validation": 0}
                changes["profile"] = (model, steps, data, seed) == (*ROWS[0], options.main, 0)
                config = configured("staged", options, model, data, steps, changes)
                yield Planned(name(model, steps, data, seed), config)


def _cell(root: Path, model: str, steps: int, data: str) -> Cell:
    folders = sorted((root / name(model, steps, data, 0)).parent.glob("seed*"))
    return Cell.read(root, [str(folder.relative_to(root)) for folder in folders])


def _parameters(cells: list[Cell]) -> str:
    costs = [record.costs for cell in cells for record in cell.records]
    counts = dict.fromkeys(f"{cost.parameters / 1e6:.2f} M" for cost in costs if cost is not None)
    return " / ".join(counts) or "–"


def _choice(root: Path, options: Options) -> str:
    shown = [
        f"{candidate}: {validation_text(find_record(root, run.name))}"
        for found in candidates(options, root)
        for run, candidate in found
    ]
    chosen = choice(options, root)
    word = "still open" if chosen is None else str(chosen)
    return (
        f"The choice, by accuracy on held-out images in per cent after {SELECT_EPOCHS} epochs, or "
        f"{MIXING_EPOCHS} where the share of mixed batches (cutmix) is named: {', '.join(shown)}. "
        f"Chosen: {word}."
    )
