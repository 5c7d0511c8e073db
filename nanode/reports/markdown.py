"""Markdown: tables and whole pages."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from nanode.training.files import write_text


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table; the first column to the left, the others to the right.

    >>> print(table(["model", "accuracy"], [["auto", 84.5]]))
    | model | accuracy |
    |---|--:|
    | auto | 84.5 |
    """
    lines = ["| " + " | ".join(header) + " |", "|---|" + "--:|" * (len(header) - 1)]
    for row in rows:
        cells = [str(cell).replace("|", "\\|") for cell in row]
        assert len(cells) == len(header), f"{len(cells)} cells under {len(header)} headings"
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def write_page(path: Path, title: str, parts: Iterable[str]) -> Path:
    """Write a page, all or nothing; empty parts are left out."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "\n\n".join([f"# {title}", *(part.strip() for part in parts if part.strip())])
    write_text(path, text + "\n")
    return path
