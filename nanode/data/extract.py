"""Taking known files out of a tar archive."""

import os
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Mapping
from pathlib import Path

from nanode.data.source import DataError


def extract(archive: Path, members: Mapping[str, int], folder: Path) -> None:
    """Write the members of ``archive`` that are asked for into ``folder``, all or none.

    ``members`` gives the size of each by its name in the archive. A file is written under the last
    part of the name that was asked for: no path from the archive is ever used, links and other
    members are passed over, and what has another size is an error. Files appear by renaming, from
    a folder beside ``folder`` that is gone at the end.
    """
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as scratch:
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
