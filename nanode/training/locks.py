"""One process at a time at a run: a lock in its folder, which ends with the process.

The file ``.lock`` is there as long as it is held; one that a killed process left holds nobody up
(unless that process has left children, which share its lock). Where the system or the file system
knows no such locks (Windows), nothing is locked.
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
#: How often it may be removed by others just before it is locked.
TRIES = 1000
#: The folders that this thread holds: whoever carries out a plan holds one, and so does ``train``.
_HELD: ContextVar[frozenset[Path]] = ContextVar("_HELD", default=frozenset())


class Busy(ValueError):
    """Another process is at the run."""


def check_alone() -> None:
    """Refuse to be one of several processes that were started to train together."""
    size = os.environ.get("WORLD_SIZE", "")
    if size.isdecimal() and int(size) > 1:
        raise ValueError(
            f"WORLD_SIZE is {size}, as under torchrun, and a run is trained by one process on one "
            "device; start it without torchrun, or unset that variable (several runs may be "
            "trained at once, each by a process of its own)"
        )


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a run folder, which is made; one that was made and stays empty is removed again."""
    check_writable(folder)
    place = folder.resolve()
    if fcntl is None or place in _HELD.get():
        yield
        return
    made = [path for path in (place, *place.parents) if not path.exists()]
    before = _HELD.get()
    file = _acquire(place, folder)
    try:
        _HELD.set(before | {place})
        yield
    finally:
        _HELD.set(before)
        with suppress(OSError):  # a file that stays holds nobody up
            (place / LOCK).unlink()  # while it is held: see ``_acquire``
        os.close(file)
        with suppress(OSError):  # something is in there
            for path in made:
                path.rmdir()


def _acquire(place: Path, folder: Path) -> int:
    """Open and lock the file, anew if it was removed between these two by whoever had it."""
    for _ in range(TRIES):
        try:
            place.mkdir(parents=True, exist_ok=True)
            file = _open(place / LOCK)
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
    raise Busy(f"others come and go in {folder}, or its {LOCK} can't be made; remove that file")


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except PermissionError:  # another user's, which can be locked all the same
        return os.open(path, os.O_RDONLY)


def _is_at(file: int, path: Path) -> bool:
    """Whether an open file is the one at a path."""
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except FileNotFoundError:
        return False
