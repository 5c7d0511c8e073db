"""Three stages, for accuracy: NANODEs beside untied ResNets of their size and of their compute.

staged/<data>/select/lr<x>             candidates for the one recipe, compared on held-out images
staged/<data>/select/lr<x>-scale<s>    at the best rate
staged/<data>/mixing/lr<x>-…cutmix<p>  at the best of these: with and without boxes of other images
staged/<data>/<model>-k<K>/seed<n>     final runs, on all training images

Rates and scales are chosen on CIFAR-10. Whether mixing pays depends on how many images of a class
there are, so that every data set chooses for itself.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from nanode.experiments.plan import Options, Planned, configured, standing
from nanode.experiments.selection import (
    ALL_FAILED,
    HELD_OUT,
    TESTED,
    Candidate,
    Round,
    best,
    error_text,
    is_open,
    validation_text,
)
from nanode.reports.markdown import table, write_page
from nanode.reports.marks import Mark, images_per_second, marks_section
from nanode.reports.paper import PEERS
from nanode.reports.records import Cell, find_record
from nanode.reports.settings import provenance, settings_table
from nanode.reports.table1 import TITLES

#: Models with their evaluations a stage: a NANODE, the ResNet of its parameter count and the one of
#: its compute.
ROWS = (("b-nanode-3", 6), ("uncon-resnet", 3), ("uncon-resnet", 6))
#: In the full budget. Waves at base frequency 2π: at 1 those of order 1 are hardly independent on
#: six stages (their condition number is 56 there, and 1.4 at 2π).
WAVES = ("t-nanode-1-periodic", 6)
#: Test accuracy of the first row in per cent, with at most so many parameters, and images a second.
ACCURACIES = {"cifar10": 95.2, "cifar100": 78.0}
#: What was hoped for.
GOALS = {"cifar10": 96.0, "cifar100": 80.0}
PARAMETERS = 5_000_000
SPEED = 25_000
RATES = (0.2, 0.4, 0.8)
#: Beside the NANODEs' own scale of 1, at the best rate. At 6 every step is one whole dt of 1.
SCALES = (2.5, 6.0)
SELECT_EPOCHS = 30
#: About what is reached on the two data sets: for the standard errors that the page names.
CANDIDATE_ACCURACIES, FINAL_ACCURACIES = (0.94, 0.78), (0.96, 0.78)
#: Shares of batches with boxes of other images; longer, since what keeps from fitting pays late.
MIXING = (0.0, 0.5)
MIXING_EPOCHS = 75


ABOUT = (
    "Test accuracy in per cent, mean ± sample standard deviation over the seeds named behind it. "
    "All rows share one recipe; what is open in it was chosen for the first row on held-out "
    "CIFAR-10 images (the mixing of images on those of each data set), and final runs train on all "
    "training images. The ResNets' own best rate was not sought. A scale so chosen is the NANODEs' "
    "alone: a ResNet's is its depth. Of the two "
    "untied ResNets the first has the NANODEs' parameter count, the second their compute. The "
    f"standard error of an accuracy on {TESTED:,} test images is "
    f"{', '.join(error_text(accuracy, TESTED) for accuracy in FINAL_ACCURACIES)}, seeds apart: "
    f"smaller leads decide nothing. Others, as they report: {PEERS}."
)


class Staged:
    """Three stages, for accuracy, beside untied ResNets."""

    summary = "three stages, for accuracy, beside untied ResNets of the same recipe"
    draws = False

    def plan(self, options: Options, root: Path | None = None) -> list[Planned]:
        """Candidates, round by round, then all rows at the chosen one."""
        rounds = [
            candidates(options, root),
            *(mixing(data, options, root) for data in options.sets),
        ]
        runs = [run for found in rounds for run in found.values()]
        return [*runs, *_final(options, root)]

    def report(self, root: Path, out: Path, options: Options) -> list[Path]:
        """The table."""
        cells = {
            (model, steps, data): Cell.seeds(root, folder_of(model, steps, data))
            for data in options.sets
            for model, steps in rows_of(options)
        }
        accuracies = table(
            ["model, evaluations a stage", "parameters", *(TITLES[data] for data in options.sets)],
            [
                [
                    f"{model}, {steps}",
                    _parameters([cells[model, steps, data] for data in options.sets]),
                    *(cells[model, steps, data] for data in options.sets),
                ]
                for model, steps in rows_of(options)
            ],
        )
        undecided = any(_open(data, options, root) for data in options.sets)
        rows = {
            (f"{model}, {steps}", TITLES[data]): cell.records
            for (model, steps, data), cell in cells.items()
        }
        parts = [
            ABOUT,
            standing(self.plan(options, root), root, options, undecided),
            accuracies,
            "" if options.tiny else _marks({data: cells[*ROWS[0], data] for data in options.sets}),
            _choice(root, options),
            settings_table(rows.items(), ["model", "data"]),
        ]
        return [write_page(out / "staged.md", "Three stages, for accuracy", parts)]


def rows_of(options: Options) -> tuple[tuple[str, int], ...]:
    """Models with their evaluations a stage."""
    return (*ROWS, WAVES) if options.budget == "full" else ROWS


def _marks(cells: Mapping[str, Cell]) -> str:
    found, model = [], ROWS[0][0]
    for data, cell in cells.items():
        found.append(Mark.accuracy(f"{model}, {TITLES[data]}, per cent", ACCURACIES[data], cell))
        found.append(Mark.accuracy(f"the same, as a goal: {TITLES[data]}", GOALS[data], cell))
    every = [record for cell in cells.values() for record in cell.finished]
    counts = [record.costs.parameters for record in every if record.costs is not None]
    text = f"{model}, parameters"
    found.append(Mark(text, PARAMETERS, max(counts, default=None), ",.0f", most=True))
    found.append(Mark("images a second in training", SPEED, images_per_second(every), ",.0f"))
    return marks_section(found)


def candidates(options: Options, root: Path | None) -> Round:
    """What the first row's rate and scale are chosen from: rates, then scales at the best one."""
    return _rates(options) | _scales(options, root)


def _rates(options: Options) -> Round:
    return {c: _candidate(c, options.main, options) for c in map(Candidate, RATES)}


def _scales(options: Options, root: Path | None) -> Round:
    """At the best rate: the NANODEs' own scale, then others; nothing as long as that is open."""
    if (chosen := best(_rates(options), root)) is None:
        return {}
    found = [chosen, *(replace(chosen, scale=scale) for scale in SCALES)]
    return {c: _candidate(c, options.main, options) for c in found}


def mixing(data: str, options: Options, root: Path | None) -> Round:
    """At the best of these, without and with mixing; nothing as long as records are missing."""
    if (chosen := best(_scales(options, root), root, HELD_OUT)) is None:
        return {}
    found = [replace(chosen, cutmix=share) for share in MIXING]
    return {c: _candidate(c, data, options) for c in found}


def choice(data: str, options: Options, root: Path | None) -> Candidate | None:
    """What all rows share on a data set; None while it is open, or if all candidates failed."""
    return best(mixing(data, options, root), root, HELD_OUT)


def _open(data: str, options: Options, root: Path) -> bool:
    """Whether a run is still to come that decides what all rows share on a data set."""
    rounds = (candidates(options, root), mixing(data, options, root))
    return any(is_open(found, root) for found in rounds)


def folder_of(model: str, steps: int, data: str) -> str:
    """Where a row's final runs are, a folder a seed."""
    return f"staged/{data}/{model}-k{steps}"


def _candidate(candidate: Candidate, data: str, options: Options) -> Planned:
    (model, steps), mixed = ROWS[0], candidate.cutmix is not None
    epochs = 1 if options.tiny else MIXING_EPOCHS if mixed else SELECT_EPOCHS
    changes = {"epochs": epochs, "test": False} | candidate.changes()
    config = configured("staged", options, model, data, steps, changes)
    folder = "mixing" if mixed else "select"
    return Planned(f"staged/{data}/{folder}/{candidate}", config)


def _final(options: Options, root: Path | None) -> Iterator[Planned]:
    """Seed by seed, on every data set whose choice is made."""
    found = {data: choice(data, options, root) for data in options.sets}
    choices = {data: chosen for data, chosen in found.items() if chosen is not None}
    for seed in range(options.seeds if options.budget == "full" else 1):
        for data, chosen in choices.items():
            for model, steps in rows_of(options):
                own = replace(chosen, scale=None) if model == "uncon-resnet" else chosen
                # The choice is made: what was held out for it is trained on.
                changes = own.changes() | {"seed": seed, "validation": 0}
                changes["profile"] = (model, steps, data, seed) == (*ROWS[0], options.main, 0)
                config = configured("staged", options, model, data, steps, changes)
                yield Planned(f"{folder_of(model, steps, data)}/seed{seed}", config)


def _parameters(cells: list[Cell]) -> str:
    costs = [record.costs for cell in cells for record in cell.records]
    counts = dict.fromkeys(f"{cost.parameters / 1e6:.2f} M" for cost in costs if cost is not None)
    return " / ".join(counts) or "–"


def _choice(root: Path, options: Options) -> str:
    rounds = {TITLES[options.main]: candidates(options, root)}
    rounds |= {f"{TITLES[data]}, mixing": mixing(data, options, root) for data in options.sets}
    shown = [
        f"- {title}: "
        + ", ".join(
            f"{c}: {validation_text(find_record(root, run.name))}" for c, run in found.items()
        )
        for title, found in rounds.items()
        if found
    ]
    chosen = {data: choice(data, options, root) for data in options.sets}
    words = [
        f"{TITLES[data]}: {found or ('still open' if _open(data, options, root) else ALL_FAILED)}"
        for data, found in chosen.items()
    ]
    errors = ", ".join(error_text(accuracy, HELD_OUT) for accuracy in CANDIDATE_ACCURACIES)
    rate, scale = best(_rates(options), root), best(_scales(options, root), root, HELD_OUT)
    edges = ["rate"] if rate is not None and rate.lr in (RATES[0], RATES[-1]) else []
    edges += ["scale"] if scale is not None and scale.scale in (None, SCALES[-1]) else []
    edge = f" At the edge of what was tried: {', '.join(edges)}." if edges else ""
    planned = [run for found in rounds.values() for run in found.values()]
    records = [find_record(root, run.name) for run in planned]
    made = provenance([record for record in records if record is not None])
    return (
        "## How rate, scale and mixing were chosen\n\n"
        f"By accuracy on held-out images in per cent after {SELECT_EPOCHS} epochs, or "
        f"{MIXING_EPOCHS} where the share of mixed batches (cutmix) is named. Another scale than "
        "the NANODEs' own, or mixing, is chosen if it is ahead by more than the standard error of "
        f"{HELD_OUT:,} images ({errors}); of the rates the best is."
        f"{edge} {made}\n\n" + "\n".join(shown) + "\n\n"
        f"Chosen: {'; '.join(words)}."
    )
