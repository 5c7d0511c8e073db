"""Taking known files out of a tar archive."""

import contextlib
import os
import shutil
import tarfile
import tempfile
import time
import zlib
from collections.abc import Mapping
from pathlib import Path

from nanode.data.download import STALE
from nanode.data.source import DataError

#: Ends the names of folders that are being filled.
UNPACKING = ".unpacking"


def extract(archive: Path, members: Mapping[str, int], folder: Path) -> None:
    """Write the members of ``archive`` that are asked for into ``folder``, all or none.

    ``members`` gives the size of each by its name in the archive. A file is written under the last
    part of the name that was asked for: no path from the archive is ever used, links and other
    members are passed over, and what has another size is an error. Files appear by renaming, from
    a folder beside ``folder`` that is gone at the end.
    """
    _remove_stale(folder)
    with tempfile.TemporaryDirectory(
        prefix=f".{folder.name}.", suffix=UNPACKING, dir=folder.parent
    ) as scratch:
        written: dict[str, Path] = {}
        try:
            with tarfile.open(archive, "r|gz") as tar:
                for member in tar:
                    if member.name not in members or not member.isreg():
                        continue
                    if member.size != members[member.name]:
                        raise DataError(
                            f"{archive}: expected {member.name} with {members[member.name]:,} "
                            f"bytes, found {member.size:,}"
                        )
                    source = tar.extractfile(member)
                    assert source is not None  # a regular file
                    written[member.name] = Path(scratch) / str(len(written))
                    with source, written[member.name].open("wb") as out:
                        shutil.copyfileobj(source, out, 1 << 20)
                    if written.keys() == members.keys():
                        break  # what follows can't be for us
        except (tarfile.TarError, EOFError, zlib.error) as error:
            raise DataError(f"{archive} is damaged: {error}. Remove it and try again") from error
        if absent := sorted(members.keys() - written.keys()):
            raise DataError(f"{archive} is not the official file: it lacks {', '.join(absent)}")
        folder.mkdir(exist_ok=True)
        for name, path in written.items():
            os.replace(path, folder / name.rsplit("/", 1)[-1])


def _remove_stale(folder: Path) -> None:
    """Remove what processes that were killed have left; a live one writes all the time."""
    for scratch in folder.parent.glob(f".{folder.name}.*{UNPACKING}"):
        with contextlib.suppress(OSError):  # another process was faster
            last = max(path.stat().st_mtime for path in (scratch, *scratch.iterdir()))
            if time.time() - last > STALE:
                shutil.rmtree(scratch, ignore_errors=True)
