"""One process at a time at a run: a lock in its folder, which ends with the process in any case.

The file ``.lock`` is there as long as it is held; one that a killed process left is nobody's. Where
the system or the file system knows no such locks (Windows), nothing is locked.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path

from nanode.training.files import check_writable

try:
    import fcntl
except ImportError:
    fcntl = None  # type: ignore[assignment]

LOCK = ".lock"
#: The folders that this thread holds: whoever carries out a plan holds one, and so does ``train``.
_HELD: ContextVar[frozenset[Path]] = ContextVar("_HELD", default=frozenset())


class Busy(ValueError):
    """Another process is at the run."""


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a run folder, which is made; one that was made and stays empty is removed again."""
    check_writable(folder)
    place = folder.resolve()
    if fcntl is None or place in _HELD.get():
        yield
        return
    made = [path for path in (place, *place.parents) if not path.exists()]
    file = _acquire(place, folder)
    before = _HELD.set(_HELD.get() | {place})
    try:
        yield
    finally:
        _HELD.reset(before)
        (place / LOCK).unlink(missing_ok=True)  # while it is held: see ``_acquire``
        os.close(file)
        with suppress(OSError):  # something is in there
            for path in made:
                path.rmdir()


def _acquire(place: Path, folder: Path) -> int:
    """Open and lock the file, anew if it was removed between these two by whoever had it."""
    while True:
        try:
            place.mkdir(parents=True, exist_ok=True)
            file = os.open(place / LOCK, os.O_RDWR | os.O_CREAT, 0o666)
        except (FileNotFoundError, FileExistsError):  # its holder just removed the folder
            continue
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            raise Busy(
                f"the run in {folder} is being trained by another process; wait until that is "
                "done, or name another folder"
            ) from None
        except OSError:  # a file system without locks
            return file
        if _is_at(file, place / LOCK):
            return file
        os.close(file)


def _is_at(file: int, path: Path) -> bool:
    """Whether an open file is the one at a path."""
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except FileNotFoundError:
        return False
