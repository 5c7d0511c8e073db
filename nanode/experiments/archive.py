"""Records below a root as one file, to carry results from one machine to another.

An archive holds what runs wrote about themselves, not their weights: run.json, log.jsonl, what was
measured, films. A second one may hold runs that aren't over yet, with their last checkpoints. It is
a file of its own because these are large: model, average and momentum make three times the weights,
18 MB for t-nanode-10 and 84 MB for b-nanode-100, which hardly shrink.
"""

import gzip
import io
import json
import os
import re
import shutil
import tarfile
import time
import zlib
from collections.abc import Collection, Iterable, Iterator
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from nanode.experiments.measurements import FILM, MEASUREMENTS
from nanode.training.checkpoints import CHECKPOINT, last_checkpoint
from nanode.training.files import check_writable, write_atomically

RECORD, MEMORY, TRIVIAL = "run.json", "memory.json", "trivial.json"
WEIGHTS = ("best.safetensors", "final.safetensors")
#: How often a run may move on while it is being read.
TRIES = 10
File = tuple[Path, bytes]
#: Folders that can't lead out of the root.
_FOLDERS = re.compile(r"\w[\w.-]*(/\w[\w.-]*)*", re.ASCII)
_CHECKPOINT = re.compile(r".*/checkpoints/step-\d{8,}", re.ASCII)


def write_records(path: Path, root: Path) -> None:
    """Write an archive of all records below a root, all or nothing."""
    paths = (folder / name for folder in _folders(root) for name in _files())
    _write(path, root, ((file, file.read_bytes()) for file in paths if file.exists()))


def write_unfinished(path: Path, root: Path, unmeasured: Collection[str] = ()) -> None:
    """Write an archive of the runs that aren't over, with their weights.

    Of a run that is only still to be measured these are the final ones. If there is no such run,
    neither is the archive: an earlier one is removed.
    """
    names = {folder: folder.relative_to(root).as_posix() for folder in _folders(root)}
    runs = (_read_unfinished(folder, name in unmeasured) for folder, name in names.items())
    files = chain.from_iterable(runs)
    first = next(files, None)
    if first is None:
        path.unlink(missing_ok=True)
    else:
        _write(path, root, chain([first], files), effort=1)


def _read_unfinished(folder: Path, unmeasured: bool) -> list[File]:
    """All that a run goes on from, read at once: its process may write a later checkpoint."""
    for _ in range(TRIES):
        try:
            return _unfinished(folder, unmeasured)
        except FileNotFoundError:
            time.sleep(0.1)
    raise ValueError(f"can't archive {folder}: its checkpoint lacks a file, or keeps changing")


def _unfinished(folder: Path, unmeasured: bool) -> list[File]:
    """What a run goes on from; of one that is only still to be measured, final weights."""
    path, log, *weights = (folder / name for name in (RECORD, "log.jsonl", *WEIGHTS))
    if not path.exists():
        return []
    content = path.read_bytes()  # the first of its files, which decides
    record, checkpoint, (best, final) = _known(path, content), last_checkpoint(folder), weights
    if unmeasured and final.exists():
        needed = [final]
    elif checkpoint is not None and record["status"] == "running":
        needed = [checkpoint / name for name in CHECKPOINT]
        needed += [best] if record["config"].get("select") == "best" and best.exists() else []
    else:
        return []
    needed += [log] if log.exists() else []
    return [(path, content), *((file, file.read_bytes()) for file in needed)]


def restore(path: Path, root: Path) -> list[str]:
    """Unpack an archive below a root; returns the folders whose files were taken.

    A run replaces one of the same name only if it is further: over, ended later, measured, or at a
    later checkpoint; a measurement without a run, if a GPU's comes in place of a CPU's. An archive
    that holds anything unexpected is refused, and nothing is written.
    """
    taken = []
    with _opened(path) as archive:
        _check_names(archive, path)
        root.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=".restored-", dir=root) as half:
            archive.extractall(half, filter="data")
            for folder in _folders(Path(half)):
                name = folder.relative_to(half)
                if _place(folder) > _place(root / name):
                    _move(folder, root / name)
                    taken.append(name.as_posix())
    return taken


def check_target(path: Path) -> None:
    """Refuse a place where no archive can be written, before hours are spent."""
    if not path.name.endswith(".tar.gz") or path.is_dir():
        raise ValueError(f"an archive is a file .tar.gz, got {path}")
    if not path.absolute().parent.is_dir():
        raise ValueError(f"the archive {path} can't be written: its folder doesn't exist")
    check_writable(path.absolute().parent)


# ---- folders of runs


def _folders(root: Path) -> list[Path]:
    """All that hold a record, or a measurement that belongs to no run."""
    found = []
    for folder, inside, names in os.walk(root):  # not rglob: other processes remove checkpoints
        inside[:] = [name for name in inside if name[0] != "."]
        if not {RECORD, MEMORY, TRIVIAL}.isdisjoint(names):
            found.append(Path(folder))
    return sorted(found)


def _measured() -> Iterator[str]:
    yield from (f"{name}.json" for name in MEASUREMENTS)
    yield from (FILM, MEMORY, TRIVIAL)


def _files() -> list[str]:
    return [*_measured(), "log.jsonl", RECORD]


def _document(folder: Path) -> dict[str, Any]:
    """What a folder's record says."""
    path = folder / RECORD
    try:
        return _known(path, path.read_bytes())
    except OSError as why:
        raise ValueError(f"can't read the run record {path}: {why!r}") from why


def _known(path: Path, content: bytes) -> dict[str, Any]:
    """A record, as far as it must be known here, for any kind of run."""
    try:
        found = json.loads(content)
        known = {"status": found["status"], "config": dict(found["config"])}
        return known | {at: found.get(at) or "" for at in ("started", "ended")}
    except (ValueError, KeyError, TypeError) as why:
        raise ValueError(f"can't read the run record {path}: {why!r}") from why


def _place(folder: Path) -> tuple[bool, str, int, str, bool]:
    """How far a run is: over, and when; its measurements, its checkpoint, final weights."""
    record = _document(folder) if (folder / RECORD).exists() else None
    over = record is not None and record["status"] != "running"
    ended = record["ended"] if record is not None and over else ""
    known = sum((folder / name).exists() for name in (*_measured(), RECORD)) + _on_gpu(folder)
    checkpoint = last_checkpoint(folder)
    final = (folder / WEIGHTS[1]).exists()
    return over, ended, known, "" if checkpoint is None else checkpoint.name, final


def _on_gpu(folder: Path) -> bool:
    """Whether what was measured without a run was measured on a GPU."""
    try:
        found = json.loads((folder / MEMORY).read_text(encoding="utf-8"))
        return bool(found["hardware"]["device"] == "cuda")
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _started(folder: Path) -> str:
    return str(_document(folder)["started"])


# ---- in and out


def _write(path: Path, root: Path, files: Iterable[File], effort: int = 6) -> None:
    def write(half: Path) -> None:
        with tarfile.open(half, "w:gz", compresslevel=effort) as archive:
            for file, content in files:
                member = tarfile.TarInfo(file.relative_to(root).as_posix())
                member.size, member.mtime = len(content), int(time.time())
                archive.addfile(member, io.BytesIO(content))

    write_atomically(path, write)


def _opened(path: Path) -> tarfile.TarFile:
    """The archive, once all of it was read: what is cut off or damaged shows here."""
    try:
        with gzip.open(path) as stream:
            while stream.read(1 << 20):
                pass
        return tarfile.open(path, "r:gz")
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as why:
        raise ValueError(f"can't read the archive {path}: {why}; copy it again") from why


def _check_names(archive: tarfile.TarFile, path: Path) -> None:
    for member in archive:
        folder, _, file = member.name.rpartition("/")
        resume = file in CHECKPOINT and _CHECKPOINT.fullmatch(folder)
        known = resume or file in (*_files(), *WEIGHTS)
        if not (member.isreg() and known and _FOLDERS.fullmatch(folder)):
            raise ValueError(f"the archive {path} holds {member.name!r}, which isn't expected")


def _move(folder: Path, to: Path) -> None:
    """Files one by one, the record last: until then the one before it counts.

    What another run of this name left is removed first, its record last.
    """
    to.mkdir(parents=True, exist_ok=True)
    if all((f / RECORD).exists() for f in (folder, to)) and _started(folder) != _started(to):
        shutil.rmtree(to / "checkpoints", ignore_errors=True)
        for name in (*WEIGHTS, *_files()):
            (to / name).unlink(missing_ok=True)
    if (checkpoint := last_checkpoint(folder)) is not None:
        target = to / "checkpoints" / checkpoint.name
        target.parent.mkdir(exist_ok=True)
        if not target.exists():
            os.replace(checkpoint, target)
    for name in (*WEIGHTS, *_files()):
        if (folder / name).exists():
            os.replace(folder / name, to / name)
