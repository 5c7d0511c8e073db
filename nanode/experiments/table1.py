"""Table 1: every model by one shared recipe, and each at its own best learning rate and scale.

    table1/<data>/shared/<model>/seed<n>   one recipe for all
    table1/<data>/select/<model>/lr<x>     candidates, compared on held-out images, never tested
    table1/<data>/select/<model>/lr<x>-scale<s>
    table1/<data>/own/<model>/<candidate>/seed<n>    the chosen one, unless it is the shared recipe
    table1/<data>/constant-memory/<model>/<candidate>/seed<n>   the same by an invertible solver
    table1/<data>/long/<model>/<candidate>/seed<n>   the same for 45 epochs, on all training images

Choices are made on CIFAR-10 and used on CIFAR-100 too. The folders of what follows from them name
the candidate: where another one is chosen later, it doesn't meet the runs of the first.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from nanode.experiments.memory import memory_section
from nanode.experiments.plan import Options, Planned, configured, read_recipe, standing
from nanode.experiments.selection import (
    ALL_FAILED,
    Candidate,
    best,
    is_open,
    validation_text,
)
from nanode.reports.marks import Mark, images_per_second, marks_section
from nanode.reports.records import Cell, find_record
from nanode.reports.table1 import TITLES, Choice, Column, write_table1
from nanode.training import TrainConfig

#: The paper's rows, K = 10 evaluations, then the one with K = 100.
PAPER = ("auto", "appnode", "con-resnet", "uncon-resnet", "b-nanode-10", "t-nanode-10")
DEEP = "b-nanode-100"
#: Rows that the paper mentions, one seed each. Polynomials of degree 4, as in its figure; as many
#: random features as T-10 has waves. And T-10 at base frequency 2π, whose waves are orthogonal.
OTHERS = (
    "anode",
    "monomial-5",
    "chebyshev-5",
    "legendre-5",
    "rff-20",
    "hyper",
    "gated-2",
    "t-nanode-10-periodic",
)
MODELS = (*PAPER, DEEP, *OTHERS)
#: The untied ResNet is what the paper sets B-100 beside.
LONG = ("uncon-resnet", "t-nanode-10", DEEP)
PROFILED = "t-nanode-10"
#: The row that is trained once more by exact gradients at constant memory.
INVERTED = "t-nanode-10"
INVERTIBLE = {"options.solver": "coupled-euler", "options.gradient": "reversal"}
#: Test accuracy of longer runs, in per cent: an early sketch's, and the paper's.
LONGER = {
    "t-nanode-10": {"cifar10": 91.0, "cifar100": 68.5},
    DEEP: {"cifar10": 93.2, "cifar100": 64.1},
}
#: Images a second of the early sketch, K = 10, all activations kept.
SPEED = 15_900
#: Learning rates to choose from; the shared one is among them.
RATES = (0.1, 0.4, 1.0, 2.5)
#: Tried at the best learning rate. A row's own is 1, or 10 for residual networks: the number of
#: steps, with which steps are whole. It is where the scales end, for the deep row at 100.
SCALES = (1.0, 3.0, 10.0)
DEEPER_SCALES = (30.0, 100.0)
#: Candidates of the deep row train for fewer epochs than its final runs, which take ten times as
#: long as the others'.
DEEP_EPOCHS = 4


class Table1:
    """Every model by one shared recipe, and each at its own best learning rate and scale."""

    summary = "Table 1: accuracy and memory of every model, by a shared recipe and tuned"
    draws = False

    def plan(self, options: Options, root: Path | None = None) -> list[Planned]:
        """The shared column, then candidates, then what their records decide."""
        runs = [*_shared(options)]
        for model in tuned(options):
            runs += [run for run, _ in candidates(model, options, root)]
        for model in tuned(options):
            runs += _own(model, options, root)
        runs += _inverted(options, root)
        for model in LONG:
            runs += _long(model, options, root)
        return list({run.name: run for run in runs}.values())

    def report(self, root: Path, out: Path, options: Options) -> list[Path]:
        """The table, beside the paper's, and which of its claims held."""
        columns = [
            *main_columns(root, options).values(),
            _inverted_column(root, options),
            _long_column(root, options),
        ]
        open_rows = any(undecided(model, options, root) for model in tuned(options))
        choices = [_choice_made(model, options, root) for model in MODELS]
        page = write_table1(
            out / "table1.md",
            columns,
            MODELS,
            options.sets,
            [choice for choice in choices if choice is not None],
            standing(self.plan(options, root), root, options, open_rows),
            [_marks(columns, options), memory_section(root)],
        )
        return [page]


def tuned(options: Options) -> tuple[str, ...]:
    """The rows of the own-best column."""
    return (*PAPER, DEEP) if options.budget == "short" else (*PAPER, *OTHERS, DEEP)


# ---- the shared column


def shared(model: str, data: str, options: Options, seed: int = 0) -> Planned:
    """A run by the shared recipe."""
    profile = _profiled(model, data, options, seed)
    config = _config("table1", model, data, options, {"seed": seed, "profile": profile})
    return Planned(f"table1/{data}/shared/{model}/seed{seed}", config)


def _profiled(model: str, data: str, options: Options, seed: int = 0) -> bool:
    """One run of a column tells the flow's share: timing it takes as long as compiling."""
    return (model, data, seed) == (PROFILED, options.main, 0)


def _shared(options: Options) -> Iterator[Planned]:
    """Seed by seed, so that an early stop leaves every row of the paper with its first seed."""
    for seed in range(options.seeds):
        for data in options.sets:
            yield from (shared(model, data, options, seed) for model in PAPER)
    for model in (*OTHERS, DEEP):
        yield from (shared(model, data, options) for data in options.sets)


def _config(
    name: str, model: str, data: str, options: Options, changes: dict[str, Any]
) -> TrainConfig:
    return configured(name, options, model, data, 100 if model == DEEP else 10, changes)


# ---- the own-best column


def candidates(model: str, options: Options, root: Path | None) -> list[tuple[Planned, Candidate]]:
    """What a row's choice is made from: four learning rates, then other scales at the best."""
    data = options.main
    rates = [Candidate(lr=lr) for lr in RATES]
    found = [(_candidate(c, model, data, options), c) for c in rates]
    if (chosen := best(found, root)) is not None:
        found += [(_candidate(c, model, data, options), c) for c in _rescaled(model, chosen.lr)]
    return found


def _rescaled(model: str, lr: float) -> list[Candidate]:
    """The other scales that are tried for a row, at one learning rate."""
    return [Candidate(lr, scale) for scale in scales_of(model) if scale != _scale(model)]


def scales_of(model: str) -> tuple[float, ...]:
    """All that are tried for a row, its own included."""
    return (*SCALES, *DEEPER_SCALES) if model == DEEP else SCALES


def _scale(model: str) -> float:
    """A row's own scale: residual networks take whole steps, ten of them."""
    return 10.0 if model.endswith("resnet") else 1.0


def choice(model: str, options: Options, root: Path | None) -> Candidate | None:
    """A row's best candidate on held-out images; None while it is open, or if all failed."""
    found = candidates(model, options, root)
    return best(found, root) if len(found) > len(RATES) else None


def undecided(model: str, options: Options, root: Path) -> bool:
    """Whether a run is still to come that decides a row's choice."""
    return is_open(candidates(model, options, root), root)


def no_choice(model: str, options: Options, root: Path) -> str:
    """Why a row has none."""
    return "choice still open" if undecided(model, options, root) else ALL_FAILED


def is_shared(candidate: Candidate, options: Options) -> bool:
    """Whether a candidate is the shared recipe."""
    name = "table1-tiny" if options.tiny else "table1"
    return candidate == Candidate(lr=read_recipe(name).optimizer.lr)


def _candidate(candidate: Candidate, model: str, data: str, options: Options) -> Planned:
    if is_shared(candidate, options) and model != DEEP:
        return shared(model, data, options)  # whose held-out images serve as well
    changes = {"test": False} | candidate.changes()
    if model == DEEP and not options.tiny:
        changes["epochs"] = DEEP_EPOCHS
    config = _config("table1", model, data, options, changes)
    return Planned(f"table1/{data}/select/{model}/{candidate}", config)


def own(
    model: str, data: str, options: Options, root: Path | None, seed: int = 0
) -> Planned | None:
    """A row's run at its own best, which may be the shared one; None without a choice."""
    chosen = choice(model, options, root)
    if chosen is None:
        return None
    if is_shared(chosen, options):
        return shared(model, data, options, seed)
    config = _config("table1", model, data, options, chosen.changes() | {"seed": seed})
    return Planned(f"{_folder('own', model, data, chosen)}/seed{seed}", config)


def _folder(stage: str, model: str, data: str, chosen: Candidate) -> str:
    """Where the runs of a chosen candidate are, a folder a seed."""
    return f"table1/{data}/{stage}/{model}/{chosen}"


def _own(model: str, options: Options, root: Path | None) -> Iterator[Planned]:
    if _left_to_longer(model, options):
        return
    seeds = options.seeds if options.budget == "full" and model in PAPER else 1
    for seed in range(seeds):
        for data in options.sets:
            if (run := own(model, data, options, root, seed)) is not None:
                yield run


def _left_to_longer(model: str, options: Options) -> bool:
    """The deep row's longer run says more than a short one, and takes long enough."""
    return model == DEEP and options.budget == "short"


# ---- constant memory


def _inverted(options: Options, root: Path | None) -> Iterator[Planned]:
    """One row at its own best, with as many evaluations, by a solver that can be undone."""
    chosen = choice(INVERTED, options, root)
    if chosen is None:
        return
    changes = chosen.changes() | INVERTIBLE
    if options.tiny:
        changes["options.steps"] = 4  # of two evaluations each
    config = _config("table1", INVERTED, options.main, options, changes)
    folder = _folder("constant-memory", INVERTED, options.main, chosen)
    yield Planned(f"{folder}/seed0", config)


# ---- longer runs


def _long(model: str, options: Options, root: Path | None) -> Iterator[Planned]:
    chosen = choice(model, options, root)
    if chosen is None:
        return
    for data in options.sets:
        # All choices are made: what was held out for them is trained on.
        profile = _profiled(model, data, options)
        changes = chosen.changes() | {"validation": 0, "profile": profile}
        config = _config("table1-long", model, data, options, changes)
        yield Planned(f"{_folder('long', model, data, chosen)}/seed0", config)


# ---- the report


def main_columns(root: Path, options: Options) -> dict[str, Column]:
    """The columns that have all rows."""
    return {"shared": _shared_column(root, options), "own": _own_column(root, options)}


def _shared_column(root: Path, options: Options) -> Column:
    cells = {
        data: {model: Cell.seeds(root, f"table1/{data}/shared/{model}") for model in MODELS}
        for data in options.sets
    }
    lr = read_recipe("table1").optimizer.lr
    about = (
        f"one recipe for all rows, learning rate {lr:g}, the lowest of those tried for the next "
        "column; each row at its own scale, 1, or for residual networks the number of steps. At "
        "one learning rate a basis of d waves takes longer steps as well: W(t) moves up to d + 1 "
        "times as far as constant weights do. The rest of the recipe was settled beforehand, by "
        "sketches whose learning rates were compared on test images"
    )
    return Column("shared recipe", about, cells)


def _own_column(root: Path, options: Options) -> Column:
    about = (
        f"a row at the best of the learning rates {_listed(RATES)} and then of the scales "
        f"{_listed(SCALES)}, chosen on held-out {TITLES[options.main]} images and used on all data "
        f"sets (candidates of {DEEP} train for {DEEP_EPOCHS} epochs, also with the scales "
        f"{_listed(DEEPER_SCALES)}); the other settings are the shared recipe's. On "
        f"{TITLES[options.main]} seed 0 of the other rows is the chosen candidate again, now tested"
    )
    cells = {
        data: {model: _own_cell(root, options, data, model) for model in MODELS}
        for data in options.sets
    }
    return Column("own best", about, cells)


def _listed(numbers: Sequence[float]) -> str:
    return ", ".join(f"{number:g}" for number in numbers)


def _own_cell(root: Path, options: Options, data: str, model: str) -> Cell:
    cell = _chosen_cell("own", model, data, options, root)
    left = _left_to_longer(model, options) and not cell.records and cell.note != ALL_FAILED
    return Cell(note="left to the longer run") if left else cell


def _chosen_cell(stage: str, model: str, data: str, options: Options, root: Path) -> Cell:
    """The runs of a row's choice; while that is open, of the best of the candidates so far."""
    chosen = choice(model, options, root)
    if chosen is None:
        note = "" if _choice_made(model, options, root) is None else no_choice(model, options, root)
        leads = _best_so_far(model, options, root)
        if leads is None or (stage == "own" and is_shared(leads, options)):
            return Cell(note=note)  # what is shared is in its own column already
        return Cell.seeds(root, _folder(stage, model, data, leads), note)
    if stage == "own" and is_shared(chosen, options):
        return Cell.seeds(root, f"table1/{data}/shared/{model}", "as shared")
    return Cell.seeds(root, _folder(stage, model, data, chosen))


def _best_so_far(model: str, options: Options, root: Path) -> Candidate | None:
    """Of the candidates that are over, also of scales at what was the best rate once."""
    every = [c for lr in RATES for c in (Candidate(lr), *_rescaled(model, lr))]
    runs = [(_candidate(c, model, options.main, options), c) for c in every]
    return best([(run, c) for run, c in runs if find_record(root, run.name)], root)


def _inverted_column(root: Path, options: Options) -> Column:
    about = (
        "the same learning rate and scale, solved by Coupled(Euler) in as many evaluations, whose "
        "steps are undone in the backward pass (Reversal): exact gradients, one state held"
    )
    cell = _chosen_cell("constant-memory", INVERTED, options.main, options, root)
    return Column("constant memory", about, {options.main: {INVERTED: cell}})


def _long_column(root: Path, options: Options) -> Column:
    about = (
        f"{read_recipe('table1-long').epochs} epochs at the chosen learning rate and scale, on all "
        "training images, those that served the choice included"
    )
    cells = {
        data: {model: _chosen_cell("long", model, data, options, root) for model in LONG}
        for data in options.sets
    }
    return Column("longer run", about, cells)


def _marks(columns: Sequence[Column], options: Options) -> str:
    shared, *_, long = columns
    if options.tiny:
        return ""
    found = []
    for model, marks in LONGER.items():
        for data in options.sets:
            text = f"{model}, {TITLES[data]}, longer run, per cent"
            found.append(Mark.accuracy(text, marks[data], long.cell(data, model)))
    fast = [record for data in options.sets for record in shared.cell(data, PROFILED).finished]
    text = f"{PROFILED}, images a second in training"
    found.append(Mark(text, SPEED, images_per_second(fast), ",.0f"))
    return marks_section(found)


def _choice_made(model: str, options: Options, root: Path) -> Choice | None:
    """What a row's choice was made from; None if nothing was tried but the shared recipe."""
    found = candidates(model, options, root)
    records = {run.name: find_record(root, run.name) for run, _ in found}
    if not any(record for name, record in records.items() if "/select/" in name):
        return None
    shown = {str(candidate): validation_text(records[run.name]) for run, candidate in found}
    chosen = choice(model, options, root)
    edges = []
    if chosen is not None:
        scale = chosen.scale or _scale(model)
        ends = {"rate": (chosen.lr, RATES), "scale": (scale, scales_of(model))}
        edges = [name for name, (value, tried) in ends.items() if value in (tried[0], tried[-1])]
    known = [record for record in records.values() if record is not None]
    short = model == DEEP and not options.tiny
    label = f"{model} ({DEEP_EPOCHS} epochs)" if short else model
    none = "none so far" if undecided(model, options, root) else f"none: {ALL_FAILED}"
    return Choice(label, shown, str(chosen or none), known, edges)
