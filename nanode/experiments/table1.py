"""Table 1: every model by one shared recipe, and each at its own best learning rate and scale."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from nanode.experiments.memory import memory_section
from nanode.experiments.plan import Options, Planned, read_recipe, standing
from nanode.experiments.selection import ALL_FAILED, validation_text
from nanode.experiments.table1_runs import (
    DEEP,
    DEEP_EPOCHS,
    DEEPER_SCALES,
    INVERTED,
    LONG,
    MODELS,
    PROFILED,
    RATES,
    RECHOSEN,
    SCALES,
    Grid,
    best_so_far,
    candidates,
    choice,
    every_candidate,
    folder_of,
    is_shared,
    left_to_longer,
    no_choice,
    rechosen,
    scale_of,
    scales_of,
    shared,
    table1_runs,
    tuned,
    undecided,
)
from nanode.reports.marks import Mark, images_per_second, marks_section
from nanode.reports.records import Cell, find_record
from nanode.reports.table1 import TITLES, Choice, Column, write_table1

#: Test accuracy of longer runs, in per cent: an early sketch's, and the paper's.
LONGER = {
    "t-nanode-10": {"cifar10": 91.0, "cifar100": 68.5},
    DEEP: {"cifar10": 93.2, "cifar100": 64.1},
}
#: Why rows are chosen anew.
WHY = {
    "table1": "Planned only after the column before it had been seen",
    "table1-long": "Planned only after all columns before it had been seen: what 16 epochs had "
    "chosen for t-nanode-10 was the worse in 45 (the ResNet wasn't chosen anew in that way). So "
    "this is a third try at one mark",
}
#: Images a second of the early sketch, K = 10, all activations kept.
SPEED = 15_900
#: What a network of constant memory is to be as good as, by the paper.
BESIDE = "uncon-resnet"


class Table1:
    """Every model by one shared recipe, and each at its own best learning rate and scale."""

    summary = "Table 1: accuracy and memory of every model, by a shared recipe and tuned"
    draws = False

    def plan(self, options: Options, root: Path | None = None) -> list[Planned]:
        """The shared column, then candidates, then what their records decide."""
        return table1_runs(options, root)

    def report(self, root: Path, out: Path, options: Options) -> list[Path]:
        """The table, beside the paper's, and which of its claims held."""
        columns = main_columns(root, options)
        columns["constant memory"] = _inverted_column(root, options, columns["own"])
        columns["long"] = _long_column(root, options)
        if rechosen(options):
            columns |= {recipe: _rechosen_column(root, options, recipe) for recipe in RECHOSEN}
        here = Grid(options.main)
        rows = [*((model, here) for model in tuned(options)), *rechosen(options)]
        open_rows = any(undecided(model, options, root, grid) for model, grid in rows)
        rows = [*((model, here) for model in MODELS), *rechosen(options)]
        choices = [_choice_made(model, options, root, grid) for model, grid in rows]
        page = write_table1(
            out / "table1.md",
            [*columns.values()],
            MODELS,
            options.sets,
            [choice for choice in choices if choice is not None],
            standing(self.plan(options, root), root, options, open_rows),
            [_marks(columns, options), memory_section(root)],
        )
        return [page]


def main_columns(root: Path, options: Options) -> dict[str, Column]:
    """The columns that have all rows."""
    return {"shared": _shared_column(root, options), "own": _own_column(root, options)}


def _shared_column(root: Path, options: Options) -> Column:
    cells = {
        data: {model: Cell.seeds(root, shared(model, data, options).row) for model in MODELS}
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
        f"{_superseded(root, options)}"
    )
    cells = {
        data: {model: _own_cell(root, options, data, model) for model in MODELS}
        for data in options.sets
    }
    return Column("own best", about, cells)


def _superseded(root: Path, options: Options) -> str:
    """What had been chosen and tested before a better candidate was added."""
    found = [
        f"{model} on {TITLES[data]} at {candidate}: {cell}"
        for model in tuned(options)
        if (chosen := choice(model, options, root)) is not None
        for candidate in every_candidate(model)
        for data in options.sets
        if candidate != chosen
        and (cell := Cell.seeds(root, folder_of("own", model, data, candidate))).records
    ]
    if not found:
        return ""
    added = f"Scale {SCALES[-1]:g} was tried only after choices without it had been tested"
    return f". {added}: {'; '.join(found)}"


def _listed(numbers: Sequence[float]) -> str:
    return ", ".join(f"{number:g}" for number in numbers)


def _own_cell(root: Path, options: Options, data: str, model: str) -> Cell:
    cell = _chosen_cell("own", model, data, options, root)
    left = left_to_longer(model, options) and not cell.records and cell.note != ALL_FAILED
    return Cell(note="left to the longer run") if left else cell


def _chosen_cell(stage: str, model: str, data: str, options: Options, root: Path) -> Cell:
    """The runs of a row's choice; while that is open, of the best of the candidates so far."""
    chosen = choice(model, options, root)
    if chosen is None:
        note = "" if _choice_made(model, options, root) is None else no_choice(model, options, root)
        leads = best_so_far(model, options, root)
        if leads is None or (stage == "own" and is_shared(leads, options)):
            return Cell(note=note)  # what is shared is in its own column already
        return Cell.seeds(root, folder_of(stage, model, data, leads), note)
    if stage == "own" and is_shared(chosen, options):
        return Cell.seeds(root, shared(model, data, options).row, "as shared")
    return Cell.seeds(root, folder_of(stage, model, data, chosen))


def _inverted_column(root: Path, options: Options, own: Column) -> Column:
    about = (
        "the same learning rate and scale, solved by Coupled(Euler) in as many evaluations, whose "
        "steps are undone in the backward pass (Reversal): exact gradients, one state held. Beside "
        f"it {BESIDE} at its own best, which holds all activations"
    )
    cell = _chosen_cell("constant-memory", INVERTED, options.main, options, root)
    cells = {INVERTED: cell}
    if cell.records:
        cells[BESIDE] = replace(own.cell(options.main, BESIDE), note="as own best")
    return Column("constant memory", about, {options.main: cells})


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


def _rechosen_column(root: Path, options: Options, recipe: str) -> Column:
    """Where nothing was tried yet, cells are empty, and the column isn't shown."""
    found = [(model, grid) for model, grid in rechosen(options) if grid.recipe == recipe]
    sets = dict.fromkeys(TITLES[grid.data] for _, grid in found)
    about = (
        f"{' and '.join(RECHOSEN[recipe])} on {' and '.join(sets)}, rate and scale chosen from the "
        "same candidates, trained for so many epochs, on that data set's own held-out images. "
        f"{WHY[recipe]}"
    )
    cells: dict[str, dict[str, Cell]] = {}
    for model, grid in found:
        chosen = choice(model, options, root, grid)
        if chosen is not None:
            note = "the same run" if chosen == choice(model, options, root) else ""
            cell = Cell.seeds(root, folder_of("long", model, grid.data, chosen), note)
        else:
            begun = _choice_made(model, options, root, grid) is not None
            cell = Cell(note=no_choice(model, options, root, grid) if begun else "")
        cells.setdefault(grid.data, {})[model] = cell
    return Column(f"longer run, {_chosen_in(recipe)}", about, cells)


def _chosen_in(recipe: str) -> str:
    return f"chosen there in {read_recipe(recipe).epochs} epochs"


def _marks(columns: Mapping[str, Column], options: Options) -> str:
    if options.tiny:
        return ""
    found = []
    for model, marks in LONGER.items():
        for data in options.sets:
            text = f"{model}, {TITLES[data]}, longer run, per cent"
            found.append(Mark.accuracy(text, marks[data], columns["long"].cell(data, model)))
            found += [
                Mark.accuracy(
                    f"the same, {_chosen_in(grid.recipe)}",
                    marks[data],
                    columns[grid.recipe].cell(data, model),
                )
                for row, grid in rechosen(options)
                if (row, grid.data) == (model, data)
            ]
    fast = [
        record
        for data in options.sets
        for record in columns["shared"].cell(data, PROFILED).finished
    ]
    text = f"{PROFILED}, images a second in training"
    found.append(Mark(text, SPEED, images_per_second(fast), ",.0f"))
    return marks_section(found)


def _choice_made(
    model: str, options: Options, root: Path, grid: Grid | None = None
) -> Choice | None:
    """What a row's choice was made from; None if nothing was tried but the shared recipe."""
    found = candidates(model, options, root, grid)
    records = {candidate: find_record(root, run.name) for candidate, run in found.items()}
    if not any(records[c] for c, run in found.items() if "/shared/" not in run.name):
        return None
    shown = {str(candidate): validation_text(record) for candidate, record in records.items()}
    chosen = choice(model, options, root, grid)
    edges = []
    if chosen is not None:
        scale = chosen.scale or scale_of(model)
        ends = {"rate": (chosen.lr, RATES), "scale": (scale, scales_of(model))}
        edges = [name for name, (value, tried) in ends.items() if value in (tried[0], tried[-1])]
    known = [record for record in records.values() if record is not None]
    short = model == DEEP and not options.tiny
    label = f"{model} ({DEEP_EPOCHS} epochs)" if short else model
    if grid is not None and grid.data != options.main:
        label = f"{model}, {TITLES[grid.data]} ({read_recipe(grid.recipe).epochs} epochs)"
    none = "none so far" if undecided(model, options, root, grid) else f"none: {ALL_FAILED}"
    return Choice(label, shown, str(chosen or none), known, edges)
