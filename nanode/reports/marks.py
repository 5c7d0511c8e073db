"""Numbers that were set as marks before anything was run, and what became of them."""

from collections.abc import Sequence
from dataclasses import dataclass

from nanode.reports.markdown import table
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
    #: How many runs it is the mean of, where that matters.
    seeds: int | None = None

    @property
    def verdict(self) -> str:
        """In a word."""
        if self.found is None:
            return "not measured"
        held = self.found <= self.wanted if self.most else self.found >= self.wanted
        return "held" if held else "**did not hold**"


def marks_section(marks: Sequence[Mark]) -> str:
    """The marks as a part of a page."""
    rows = [
        [mark.text, f"{'≤' if mark.most else '≥'} {mark.wanted:,.10g}", _shown(mark), mark.verdict]
        for mark in marks
    ]
    header = ["", "mark", "found", ""]
    return "## Marks that were set beforehand\n\n" + table(header, rows)


def images_per_second(records: Sequence[RunRecord]) -> float | None:
    """In training, mean over runs."""
    found = [record.times.images_per_second for record in records]
    known = [speed for speed in found if speed is not None]
    return sum(known) / len(known) if known else None


def _shown(mark: Mark) -> str:
    if mark.found is None:
        return "–"
    few = {None: "", 1: " (one seed)"}.get(mark.seeds, f" ({mark.seeds} seeds)")
    return format(mark.found, mark.style) + few
