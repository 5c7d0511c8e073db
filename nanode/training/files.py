"""Files that are there whole or not at all."""

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

#: Ends the names of files that are being written.
HALF = ".half"


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Have ``write`` make a file or folder beside ``path``, then put it there in one move.

    What was at ``path`` stays until then, and stays if writing fails.
    """
    half = path.with_name(f".{path.name}.{os.getpid()}{HALF}")
    try:
        with named(path):
            write(half)
            _reach_disk(half)
            _put(half, path)
    finally:
        _remove(half)


@contextmanager
def named(path: Path) -> Iterator[None]:
    """Errors that don't say what couldn't be written, as where a disk is full, say that it was."""
    try:
        yield
    except OSError as why:
        if why.filename is None and why.errno is not None:
            why.filename = str(path)
        raise


def remove_halves(folder: Path) -> None:
    """Remove what an earlier process that was killed while it wrote has left in a folder."""
    for half in folder.glob(f".*{HALF}"):
        _remove(half)


def write_text(path: Path, text: str) -> None:
    """Write text to a file, all or nothing."""
    write_atomically(path, lambda half: half.write_text(text, encoding="utf-8", newline="\n"))


def write_json(path: Path, plain: Any) -> None:
    """Write plain values to a file, all or nothing; what is no finite number is refused."""
    write_text(path, json.dumps(plain, indent=2, allow_nan=False) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """What ``write_json`` has written."""
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as why:
        raise ValueError(f"can't read {path}: {why}; delete it to have it made again") from why
    return found


def check_writable(folder: Path) -> None:
    """Refuse a folder that can't be written to or made; makes nothing."""
    place = folder.absolute()
    # Not Path.exists(), which raises inside of folders that may not be looked into.
    while not os.path.exists(place) and place.parent != place:
        place = place.parent
    if not place.is_dir():
        raise ValueError(f"the folder {folder} can't be made: {place} is a file")
    if not os.access(place, os.W_OK | os.X_OK):
        raise ValueError(f"no permission to write the folder {folder}; name another one")


def _reach_disk(path: Path) -> None:
    """Wait until what was written is on the disk: a move alone may survive a crash without it."""
    parts = [path] if path.is_file() else [part for part in path.rglob("*") if part.is_file()]
    for part in parts:
        with part.open("r+b") as file:  # Windows lets only writers ask for that
            os.fsync(file.fileno())


def _put(half: Path, path: Path) -> None:
    """Move a file into place; Windows refuses while another process has the old one open."""
    for wait in (0.01, 0.03, 0.1, 0.3, 1.0) if os.name == "nt" else ():
        try:
            os.replace(half, path)
        except PermissionError:
            time.sleep(wait)
        else:
            return
    os.replace(half, path)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
