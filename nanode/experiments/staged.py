"""Three stages, for accuracy: NANODEs beside untied ResNets of their size and of their compute.

staged/<data>/select/lr<x>          candidates for the one recipe, compared on held-out images
staged/<data>/<model>-k<K>/seed<n>  final runs, on all training images
"""

from collections.abc import Iterator
from dataclasses import dataclass
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
SELECT_EPOCHS = 30


ABOUT = (
    "Test accuracy in per cent, mean ± sample standard deviation over the seeds named behind it. "
    "All rows share one recipe; its learning rate was chosen for the first row on held-out "
    "CIFAR-10 images, and final runs train on all training images. Of the two untied ResNets the "
    "first has the NANODEs' parameter count, the second their compute. Others, as they report: "
    f"{PEERS}."
)


@dataclass(frozen=True)
class Staged:
    """Three stages, for accuracy, beside untied ResNets."""

    summary: str = "three stages, for accuracy, beside untied ResNets of the same recipe"

    def plan(self, options: Options, root: Path | None = None) -> list[Planned]:
        """Candidates for the learning rate, then all rows at the chosen one."""
        found = candidates(options)
        runs = [run for run, _ in found]
        if (chosen := best(found, root)) is not None:
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


def candidates(options: Options) -> list[tuple[Planned, Candidate]]:
    """Learning rates for the first row, which all rows then share."""
    return [(_candidate(Candidate(lr), options), Candidate(lr)) for lr in RATES]


def name(model: str, steps: int, data: str, seed: int) -> str:
    """The folder of a final run."""
    return f"staged/{data}/{model}-k{steps}/seed{seed}"


def _candidate(candidate: Candidate, options: Options) -> Planned:
    changes = {"epochs": 1 if options.tiny else SELECT_EPOCHS, "test": False}
    model, steps = ROWS[0]
    config = configured(
        "staged", options, model, options.main, steps, changes | candidate.changes()
    )
    return Planned(f"staged/{options.main}/select/{candidate}", config)


def _final(options: Options, chosen: Candidate) -> Iterator[Planned]:
    for seed in range(options.seeds if options.budget == "full" else 1):
        for data in options.sets:
            for model, steps in ROWS:
                # The choice is made: what was held out for it is trained on.
                changes = chosen.changes() | {"seed": seed, "validation": 0}
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
    found = candidates(options)
    chosen = best(found, root)
    shown = [f"{c}: {validation_text(find_record(root, run.name))}" for run, c in found]
    word = "still open" if chosen is None else str(chosen)
    return (
        "The learning rate, by accuracy on held-out images in per cent after "
        f"{SELECT_EPOCHS} epochs: {', '.join(shown)}. Chosen: {word}."
    )
