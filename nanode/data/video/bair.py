"""BAIR robot pushing (small): a robot arm among objects, seen by two cameras.

F. Ebert, C. Finn, A. Lee, S. Levine (2017), Self-Supervised Visual Planning with Temporal Skip
Connections. 43,264 sequences to train on and 256 to test on, of 30 frames of 64×64 RGB bytes,
in records of one size. The images of one camera are copied once, verified, to a flat file that is
then mapped: a clip costs the reading of its own bytes and no more.
"""

import contextlib
import hashlib
import math
import os
import re
import secrets
import time
from functools import cached_property
from pathlib import Path
from typing import Literal, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nanode.data.download import STALE
from nanode.data.source import ANOTHER, DataError, Progress
from nanode.data.video.clips import Clips, StoredClips, VideoData
from nanode.data.video.example import MalformedError, byte_features
from nanode.data.video.records import REMEDY, Records
from nanode.values import check_choice

ARCHIVE = "bair_robot_pushing_dataset_v0.tar"
URL = f"http://rail.eecs.berkeley.edu/datasets/{ARCHIVE}"
ARCHIVE_SIZE = 32_274_964_480
ARCHIVE_SHA256 = "c6f8d164ab2be07174ef597e3e070d7466f3142caddc467b6af119b9458cd9cd"
FOLDER = "softmotion30_44k"

FRAMES = 30
SHAPE = (64, 64, 3)
FRAME_BYTES = 64 * 64 * 3
#: A record's payload; 741,610 bytes with its frame.
PAYLOAD = 741_594

View = Literal["aux1", "main"]


def load_bair(
    root: Path,
    device: torch.device,
    *,
    view: View,
    cache: str | os.PathLike[str] | None,
    progress: Progress | None,
) -> VideoData:
    """Both splits from ``root``/softmotion30_44k/{train,test}/traj_A_to_B.tfrecords.

    ``view`` is the camera. The mapped copies (16 GB for all training sequences) are made in the
    folder ``cache``, by default beside the two splits, when frames are first asked for.
    """
    check_choice("view", view, ("aux1", "main"))
    folder = root / FOLDER
    home = folder if cache is None else Path(cache).expanduser()
    train, test = (
        BairClips(folder / split, device, view, home, progress) for split in ("train", "test")
    )
    return VideoData("bair", train, test)


@final
class BairClips(Clips):
    """A split; its copy is made with the first frames, so that what can't be used costs none."""

    def __init__(
        self,
        folder: Path,
        device: torch.device,
        view: View,
        home: Path,
        progress: Progress | None,
    ) -> None:
        self.name = f"bair {folder.name}"
        self.device = device
        self.length, (self.size, _, self.channels) = FRAMES, SHAPE
        self._files = open_split(folder)
        self._place = folder, view, home, progress

    def __len__(self) -> int:
        return sum(len(records) for records in self._files)

    @cached_property
    def _stored(self) -> StoredClips:
        return StoredClips(self.name, _mapped(self._files, *self._place), self.device)

    def _frames(self, indices: Tensor, length: int) -> Tensor:
        return self._stored.frames(indices, length)


def open_split(folder: Path) -> list[Records]:
    """The record files of a split, in the order of their trajectories."""
    found = [
        (int(name[1]), int(name[2]), path)
        for path in folder.glob("*.tfrecords")
        if (name := re.fullmatch(r"traj_(\d+)_to_(\d+)\.tfrecords", path.name))
    ]
    if not found:
        why = "holds no traj_A_to_B.tfrecords" if folder.is_dir() else "does not exist"
        raise DataError(
            f"{folder} {why}.\nGet {URL}\n({ARCHIVE_SIZE:,} bytes, SHA-256 {ARCHIVE_SHA256}) and "
            f"unpack it with\n    tar -xf {ARCHIVE} -C {folder.parent.parent}\n"
            f"or {ANOTHER}."
        )
    opened, before = [], -1
    for first, last, path in sorted(found):
        if last < first:
            raise DataError(f"{path} is not usable: its name counts backwards. {REMEDY}")
        if first <= before:
            raise DataError(
                f"{path} is not usable: it holds trajectory {first} by its name, and so does the "
                f"file before it. {REMEDY}"
            )
        before = last
        records, promised = Records(path, PAYLOAD), last - first + 1
        if len(records) != promised:
            raise DataError(
                f"{path} is not usable: it holds {len(records):,} records, its name promises "
                f"{promised:,}. {REMEDY}"
            )
        opened.append(records)
    return opened


def read_images(records: Records, index: int, view: View) -> bytes:
    """The frames of one record as one camera saw them: bytes of ``(30, 64, 64, 3)``."""
    try:
        features = byte_features(memoryview(records[index]))
    except MalformedError as error:
        raise records.fault(index, f"not a tf.train.Example, {error}") from error
    frames = []
    for t in range(FRAMES):
        key = f"{t}/image_{view}/encoded"
        if key not in features:
            raise records.fault(index, f"it has no {key}, expected frames 0 to {FRAMES - 1}")
        if len(features[key]) != FRAME_BYTES:
            raise records.fault(
                index,
                f"{key} has {len(features[key]):,} bytes, expected {FRAME_BYTES:,} (64×64 RGB)",
            )
        frames.append(features[key])
    return b"".join(frames)


def _mapped(
    files: list[Records], folder: Path, view: View, home: Path, progress: Progress | None
) -> NDArray[np.uint8]:
    """The images of a split, ``(N, T, C, H, W)``, mapped from a copy that is made if missing."""
    content = "\n".join(_mark(records) for records in files)
    mark = hashlib.blake2b(content.encode(), digest_size=6).hexdigest()
    path = home / f"{folder.name}.{view}.{mark}.npy"
    shape = (sum(len(records) for records in files), FRAMES, *SHAPE)
    if not path.exists():
        try:
            _copy(files, view, path, shape, progress)
        except OSError as error:
            raise DataError(
                f"the copy of {folder}, {math.prod(shape):,} bytes at {path}, could not be made: "
                f"{error}. Name another folder with the option cache"
            ) from error
    try:
        mapped: NDArray[np.uint8] = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise _spoilt(path, str(error)) from error
    if mapped.shape != shape or mapped.dtype != np.uint8:
        raise _spoilt(path, f"expected bytes of shape {shape}, found {mapped.dtype} {mapped.shape}")
    return mapped.transpose(0, 1, 4, 2, 3)


def _mark(records: Records) -> str:
    """What tells a file of records from another that is put in its place later."""
    found = records.path.stat()
    return f"{records.path.name} {len(records)} {found.st_size} {found.st_mtime_ns}"


def _copy(
    files: list[Records],
    view: View,
    path: Path,
    shape: tuple[int, ...],
    progress: Progress | None,
) -> None:
    """Write the images of all records to an .npy file that is seen only when whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for left in path.parent.glob(f"{path.name}.*.part"):  # by processes that were killed
        with contextlib.suppress(FileNotFoundError):  # another process was faster
            if time.time() - left.stat().st_mtime > STALE:
                left.unlink()
    part = path.with_name(f"{path.name}.{os.getpid()}-{secrets.token_hex(4)}.part")
    done, total = 0, math.prod(shape)
    try:
        with part.open("wb") as out:
            # Written, not mapped: a full disk is then an error and not the end of the process.
            header = {"descr": "|u1", "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(out, header)
            for records in files:
                for index in range(len(records)):
                    done += out.write(read_images(records, index, view))
                    if progress is not None:
                        progress(path.name, done, total)
            out.flush()
            os.fsync(out.fileno())
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def _spoilt(path: Path, why: str) -> DataError:
    return DataError(f"{path} is damaged: {why}. Remove it and it will be made again")
