"""Numbers that were set as marks before anything was run, and what became of them."""

from collections.abc import Sequence
from dataclasses import dataclass

from nanode.reports.markdown import table
from nanode.reports.records import Cell
from nanode.training import RunRecord


@dataclass(frozen=True)
class Mark:
    """A number, and what it should at least be, or at most."""

    text: str
    wanted: float
    #: None if it isn't measured yet.
    found: float | None
    style: str = ",.2f"
    most: bool = False
    #: The cell of a table that it is from, which says more.
    cell: Cell | None = None

    @classmethod
    def accuracy(cls, text: str, wanted: float, cell: Cell) -> "Mark":
        """Of the test accuracy in a cell, in per cent."""
        found = None if cell.accuracy is None else cell.accuracy.mean
        return cls(text, wanted, found, cell=cell)

    @property
    def verdict(self) -> str:
        """In a word."""
        if self.found is None:
            return "failed" if self.cell is not None and self.cell.failed else "not measured"
        found = round(self.found, 9)  # 100 * 0.952 is less than 95.2
        held = found <= self.wanted if self.most else found >= self.wanted
        return "held" if held else "**did not hold**"

    def __str__(self) -> str:
        if self.cell is not None:
            return str(self.cell)
        return "–" if self.found is None else format(self.found, self.style)


def marks_section(marks: Sequence[Mark]) -> str:
    """The marks as a part of a page."""
    rows = [
        [mark.text, f"{'≤' if mark.most else '≥'} {mark.wanted:,.10g}", mark, mark.verdict]
        for mark in marks
    ]
    header = ["", "mark", "found", ""]
    return "## Marks that were set beforehand\n\n" + table(header, rows)


def images_per_second(records: Sequence[RunRecord]) -> float | None:
    """In training, mean over runs."""
    found = [record.times.images_per_second for record in records]
    known = [speed for speed in found if speed is not None]
    return sum(known) / len(known) if known else None
