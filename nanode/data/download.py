"""Getting an official file over HTTP: resumed, verified, and seen only when whole.

A download is written under a name of its own process, ``NAME.PID-TOKEN.part``. When it breaks off
it becomes ``NAME.part``, which the next download claims by renaming it: two processes can't both
succeed at that, so neither needs a lock, and the loser starts from nothing. A process that was
killed leaves its own part behind; once that has been still for ``STALE`` seconds it is claimed too.
Only a file with the right size and checksums gets its final name, in one rename.

(pooch was considered: it verifies and renames, but always starts from the first byte.)
"""

import contextlib
import http.client
import os
import re
import secrets
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from nanode.data.source import CHUNK, DataError, OfficialFile, Progress

#: Seconds without a byte until a connection counts as lost.
TIMEOUT = 30.0
#: A part untouched for this long has no owner: a live one would have timed out.
STALE = 4 * TIMEOUT
#: Attempts in a row that bring no byte until an address is given up, and the pause between them.
TRIES = 3
PAUSE = 1.0
#: Statuses below 500 that ask for another attempt: a timeout, too many requests.
PATIENCE = (408, 429)


class _Broken(Exception):
    """A connection that failed; ``final`` where trying again can't help.

    ``of_the_range`` where asking for the whole may.
    """

    def __init__(self, why: str, final: bool = False, of_the_range: bool = False) -> None:
        super().__init__(why)
        self.final, self.of_the_range = final, of_the_range


def obtain(
    file: OfficialFile, folder: Path, download: bool = True, progress: Progress | None = None
) -> Path:
    """The verified path of ``file`` in ``folder``, where it is downloaded if it is missing."""
    path = folder / file.name
    if path.exists():
        if fault := file.fault(path):
            raise DataError(
                f"{path} is not the official {file.name}: {fault}. "
                f"Remove it and it will be fetched again from {file.urls[0]}"
            )
        return path
    if not download:
        raise file.missing(folder, "and downloads are switched off")
    return fetch(file, folder, progress)


def fetch(file: OfficialFile, folder: Path, progress: Progress | None = None) -> Path:
    """Download ``file`` into ``folder``, going on where an earlier download broke off."""
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f"{file.name}.{os.getpid()}-{secrets.token_hex(4)}.part"
    reasons = []
    try:
        _claim(file, folder, part)
        for url in file.urls:
            if (reason := _get(file, url, part, progress)) is None:
                os.replace(part, folder / file.name)
                return folder / file.name
            reasons.append(f"{url}: {reason}")
    finally:
        _leave(file, folder, part)
        with contextlib.suppress(OSError):  # one isn't empty
            for path in made:
                path.rmdir()
    raise file.missing(folder, f"and could not be downloaded ({'; '.join(reasons)})")


def _get(file: OfficialFile, url: str, part: Path, progress: Progress | None) -> str | None:
    """Make ``part`` the whole, verified file; if that fails, the reason."""
    while True:
        resumed = part.exists()
        try:
            _fill(file, url, part, progress)
        except _Broken as broken:
            return str(broken)
        fault = file.fault(part)
        if fault is None:
            return None
        part.unlink()
        if not resumed:
            return fault
        # The old part may be what was wrong: once more, from the first byte.


def _claim(file: OfficialFile, folder: Path, part: Path) -> None:
    """Take over the longest part that nobody owns, if there is one; others are removed."""
    found = []
    for path in [folder / f"{file.name}.part", *folder.glob(f"{file.name}.*.part")]:
        with contextlib.suppress(FileNotFoundError):
            status = path.stat()
            if path.name == f"{file.name}.part" or time.time() - status.st_mtime > STALE:
                found.append((status.st_size, path))
    for size, path in sorted(found, reverse=True):
        with contextlib.suppress(FileNotFoundError):  # another process was faster
            if size > file.size or part.exists():
                path.unlink()
            else:
                path.rename(part)


def _leave(file: OfficialFile, folder: Path, part: Path) -> None:
    """Keep an unfinished part for the next download; an empty one is removed."""
    with contextlib.suppress(FileNotFoundError):
        if part.stat().st_size:
            os.replace(part, folder / f"{file.name}.part")
        else:
            part.unlink()


def _fill(file: OfficialFile, url: str, part: Path, progress: Progress | None) -> None:
    """Write to ``part`` until it has the file's size, over as many connections as it takes."""
    idle, whole = 0, False
    with part.open("r+b" if part.exists() else "w+b") as out:
        while (start := out.seek(0, os.SEEK_END)) < file.size:
            reached = start
            try:
                for offset, chunk in _chunks(file, url, 0 if whole else start):
                    out.seek(offset)
                    out.write(chunk)
                    reached = max(reached, offset + len(chunk))
                    if progress is not None:
                        progress(file.name, reached, file.size)
            except _Broken as broken:
                idle = 0 if reached > start else idle + 1
                if broken.of_the_range and not whole:
                    whole = True  # once more without asking for one; the part stays
                    continue
                if broken.final or idle == TRIES:
                    raise
                time.sleep(PAUSE * idle)
        out.flush()
        os.fsync(out.fileno())


def _chunks(file: OfficialFile, url: str, start: int) -> Iterator[tuple[int, bytes]]:
    """Pieces of the file with their offsets, from ``start``, or from 0 if the server insists."""
    headers = {"User-Agent": "nanode", "Accept-Encoding": "identity"}
    if start:
        headers["Range"] = f"bytes={start}-"
    request = urllib.request.Request(url, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
            offset, total = _place(answer, start)
            if total not in (None, file.size):
                raise _Broken(f"it has {total:,} bytes there, not {file.size:,}", final=True)
            while chunk := answer.read1(CHUNK):  # what is there: read would drop it at a timeout
                if offset + len(chunk) > file.size:
                    raise _Broken(f"it has more than {file.size:,} bytes there", final=True)
                yield offset, chunk
                offset += len(chunk)
            if offset < file.size:
                raise _Broken(f"the connection closed after {offset:,} bytes")
    except urllib.error.HTTPError as error:
        final = error.code < 500 and error.code not in PATIENCE
        unsatisfied = error.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE
        raise _Broken(f"HTTP {error.code} {error.reason}", final, unsatisfied) from error
    except urllib.error.URLError as error:
        raise _Broken(str(error.reason)) from error
    except (OSError, http.client.HTTPException) as error:
        raise _Broken(str(error) or type(error).__name__) from error
    except ValueError as error:  # of an address that isn't one, to which it was sent on
        raise _Broken(str(error), final=True) from error


def _place(answer: http.client.HTTPResponse, start: int) -> tuple[int, int | None]:
    """Where in the file an answer begins, and the whole file's size if it says so."""
    if answer.status != http.client.PARTIAL_CONTENT:
        length = answer.headers.get("Content-Length", "")
        return 0, int(length) if length.isdecimal() else None
    given = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", answer.headers.get("Content-Range", ""))
    if given is None or int(given[1]) != start:
        why = "it answered with a range that was not asked for"
        raise _Broken(why, final=True, of_the_range=True)
    return start, None if given[2] == "*" else int(given[2])
