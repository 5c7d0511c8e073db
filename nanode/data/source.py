"""Where data come from: official files with known size and checksums, under one root folder."""

import hashlib
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, final

from torch import Tensor

from nanode.data.images import ImageData

#: Names the folder that holds the data, where no root is given.
VARIABLE = "NANODE_DATA"

#: The end of messages about files that are missing or closed.
ANOTHER = (
    f"name another data root (root= in Python, --data-root of commands, or the variable {VARIABLE})"
)

#: Called with a file's name, the bytes that are there, and the bytes there will be.
Progress = Callable[[str, int, int], None]


def show_progress(file: str, there: int, size: int) -> None:
    """How far a download is, on a terminal."""
    if sys.stderr is not None and sys.stderr.isatty():
        end = "\n" if there == size else ""
        print(f"\r{file}  {there / size:4.0%} of {size / 1e6:,.1f} MB", end=end, file=sys.stderr)


CHUNK = 1 << 20


class DataError(ValueError):
    """Data that can't be had or used: what was expected, what was found, the way out."""


class Source(ABC):
    """One data set by name, and how to get it."""

    name: str
    #: Whether it comes with the package, so that no root is needed.
    embedded: ClassVar[bool] = False

    @abstractmethod
    def load(self, root: Path, download: bool, progress: Progress | None) -> ImageData:
        """Read the data set from ``root``, where missing files are put first if allowed."""


@final
@dataclass(frozen=True)
class OfficialFile:
    """A file as its authors publish it."""

    name: str
    size: int
    md5: str
    sha256: str
    #: The same file at one or more addresses, tried in this order.
    urls: tuple[str, ...]

    def fault(self, path: Path) -> str | None:
        """What shows that the file at ``path`` is not this one, by size and checksums."""
        found = path.stat().st_size
        if found != self.size:
            return f"expected {self.size:,} bytes, found {found:,}"
        # The authors publish MD5, which only guards against accidents.
        sums = {"MD5": hashlib.md5(usedforsecurity=False), "SHA-256": hashlib.sha256()}
        with path.open("rb") as file:
            while chunk := file.read(CHUNK):
                for digest in sums.values():
                    digest.update(chunk)
        for (kind, digest), expected in zip(sums.items(), (self.md5, self.sha256), strict=True):
            if digest.hexdigest() != expected:
                return f"expected {kind} {expected}, found {digest.hexdigest()}"
        return None

    def missing(self, folder: Path, why: str) -> DataError:
        """The error that says how to get this file by hand."""
        return DataError(
            f"{self.name} is not in {folder}, {why}.\n"
            f"Get it from {' or '.join(self.urls)}\n"
            f"({self.size:,} bytes, MD5 {self.md5},\nSHA-256 {self.sha256})\n"
            f"and put it at {folder / self.name},\n"
            f"or {ANOTHER}."
        )


def data_root(root: str | os.PathLike[str] | None = None) -> Path:
    """The folder that holds the data: ``root``, or NANODE_DATA, or the user's cache.

    >>> data_root("/somewhere/else").as_posix()
    '/somewhere/else'
    """
    if root is not None and str(root):
        place = Path(root)
    elif named := os.environ.get(VARIABLE):
        place = Path(named)
    else:
        cache = os.environ.get("XDG_CACHE_HOME") or os.environ.get("LOCALAPPDATA") or "~/.cache"
        place = Path(cache) / "nanode"
    try:
        return place.expanduser()
    except RuntimeError as why:  # of a user whom the system doesn't know
        raise DataError(f"there is no home directory for {place}: {ANOTHER}") from why


def check_size(path: Path, expected: int) -> None:
    """Raise DataError unless the file at ``path`` holds ``expected`` bytes."""
    found = path.stat().st_size
    if found != expected:
        raise DataError(
            f"{path} has a wrong size: expected {expected:,} bytes, found {found:,}. "
            "Remove it and it will be made again from the official file"
        )


def check_labels(path: Path, labels: Tensor, classes: int) -> None:
    """Raise DataError at the first label that no class has."""
    wrong = (labels >= classes).nonzero()
    if len(wrong):
        record = int(wrong[0])
        raise DataError(
            f"{path} is damaged: record {record:,} has label {int(labels[record])}, "
            f"expected 0 to {classes - 1}. Remove it and it will be made again"
        )


def check_shares(folder: Path, labels: Tensor, classes: int) -> None:
    """Raise DataError unless every class is there as often as the others.

    So it is in the official files. A copy that broke off after its room was made ends in zeros,
    which are images too, all of one class.
    """
    counts = labels.bincount(minlength=classes)
    least, most = int(counts.min()), int(counts.max())
    if len(labels) % classes == 0 and least != most:
        raise DataError(
            f"the files in {folder} are damaged: classes have {least:,} to {most:,} of "
            f"{len(labels):,} images, expected as many each. Remove the folder and it will be made "
            "again"
        )
