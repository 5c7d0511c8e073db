"""Table 1 as a page: accuracies beside the paper's, its claims judged, how each row was run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from nanode.reports.claims import judge
from nanode.reports.markdown import table, write_page
from nanode.reports.paper import CITATION, CLAIMS, TABLE1, table1_accuracy
from nanode.reports.records import Cell
from nanode.reports.settings import settings_table

TITLES = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "digits": "digits"}


@dataclass(frozen=True)
class Column:
    """One way of training every row: its cells by data set and model."""

    title: str
    #: What all of its runs have in common, in a sentence or two.
    about: str
    cells: Mapping[str, Mapping[str, Cell]] = field(default_factory=dict)

    def cell(self, data: str, model: str) -> Cell:
        """An empty one where nothing was run."""
        return self.cells.get(data, {}).get(model, Cell())


@dataclass(frozen=True)
class Choice:
    """What a row's own learning rate and scale were chosen from."""

    model: str
    #: Validation accuracy in per cent by candidate, in words where there is none.
    candidates: Mapping[str, str]
    #: None as long as candidates are missing.
    chosen: str | None


def write_table1(
    path: Path,
    columns: Sequence[Column],
    models: Sequence[str],
    sets: Sequence[str],
    choices: Sequence[Choice],
    further: Sequence[str] = (),
) -> Path:
    """Write the page."""
    parts = [
        "Test accuracy in per cent, mean ± sample standard deviation over the seeds named behind "
        f"it; a single seed has no spread. The paper's figures: {CITATION}.",
        "\n".join(f"- **{column.title}**: {column.about}" for column in columns),
        *(_accuracies(columns, models, data) for data in sets),
        _claims(columns, sets),
        _choices(choices),
        *further,
        *(_settings(column, models, sets) for column in columns),
    ]
    return write_page(path, "Table 1: image classification", parts)


def _accuracies(columns: Sequence[Column], models: Sequence[str], data: str) -> str:
    header = ["model", "paper", *(column.title for column in columns)]
    rows = []
    for model in models:
        paper = TABLE1[model].accuracy(data) if model in TABLE1 else None
        shown = "–" if paper is None else f"{paper:.2f}"
        rows.append([model, shown, *(column.cell(data, model) for column in columns)])
    return f"## {TITLES[data]}\n\n" + table(header, rows)


def _claims(columns: Sequence[Column], sets: Sequence[str]) -> str:
    header = ["claim"]
    header += [f"{where}, {TITLES[data]}" for data in sets for where in ("paper", *_names(columns))]
    rows = []
    for claim in CLAIMS:
        row = [claim.text]
        for data in sets:
            row.append(_margin(judge(claim, table1_accuracy(data)).margin))
            for column in columns:
                cells = column.cells.get(data, {})
                measured = {name: cell.accuracy for name, cell in cells.items()}
                row.append(str(judge(claim, measured)))
        rows.append(row)
    return (
        "## Which of the paper's claims held\n\n"
        "Computed from the tables above; in brackets the lead in points (a negative one means that "
        "the order was reversed). “Within the spread”: no larger than the two standard deviations "
        "taken together.\n\n" + table(header, rows)
    )


def _margin(margin: float | None) -> str:
    return "no figure" if margin is None else f"{margin:+.2f}"


def _names(columns: Sequence[Column]) -> list[str]:
    return [column.title for column in columns]


def _choices(choices: Sequence[Choice]) -> str:
    if not choices:
        return ""
    rows = []
    for choice in choices:
        shown = [
            f"**{name}: {accuracy}**" if name == choice.chosen else f"{name}: {accuracy}"
            for name, accuracy in choice.candidates.items()
        ]
        rows.append([choice.model, ", ".join(shown), choice.chosen or "candidates are missing"])
    return (
        "## How learning rates and scales were chosen\n\n"
        "By accuracy on held-out training images, in per cent; test images took no part.\n\n"
        + table(["model", "candidates", "chosen"], rows)
    )


def _settings(column: Column, models: Sequence[str], sets: Sequence[str]) -> str:
    rows = {
        (model, TITLES[data]): column.cell(data, model).records for data in sets for model in models
    }
    found = settings_table(rows.items(), ["model", "data"])
    return f"## How it was run: {column.title}\n\n{found}" if found else ""
