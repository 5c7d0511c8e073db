"""CIFAR-10 and CIFAR-100 from their binary archives; nothing is unpickled.

A record is one byte of label (CIFAR-100: coarse, then fine), then 32×32 bytes of red, of green and
of blue. A. Krizhevsky (2009), Learning Multiple Layers of Features from Tiny Images.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np
import torch

from nanode.data.download import obtain
from nanode.data.extract import extract
from nanode.data.images import ImageData, Images
from nanode.data.source import (
    DataError,
    OfficialFile,
    Progress,
    Source,
    check_labels,
    check_shares,
    check_size,
)

SHAPE = (3, 32, 32)
PIXELS = 3 * 32 * 32
HOME = "https://www.cs.toronto.edu/~kriz/"

TEN = "airplane automobile bird cat deer dog frog horse ship truck"
FINE = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly
camel can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup
dinosaur dolphin elephant flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower
leopard lion lizard lobster man maple_tree motorcycle mountain mouse mushroom oak_tree orange
orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine possum rabbit
raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider squirrel
streetcar sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip
turtle wardrobe whale willow_tree wolf woman worm
"""


@final
@dataclass(frozen=True)
class Cifar(Source):
    """One of the two sets: the batch files that its archive holds, and how to read them."""

    name: str
    archive: OfficialFile
    #: The folder that the archive unpacks to.
    folder: str
    #: Records in each file of a split.
    train: dict[str, int]
    test: dict[str, int]
    #: Bytes of label before the pixels; the last one is used.
    label_bytes: int
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def load(self, root: Path, download: bool, progress: Progress | None) -> ImageData:
        """Read the batch files, which are first unpacked or downloaded if they are not there."""
        folder = root / self.folder
        sizes = {name: self._size(records) for name, records in (self.train | self.test).items()}
        absent = {
            f"{self.folder}/{name}": size
            for name, size in sizes.items()
            if not (folder / name).exists()
        }
        if absent:
            try:
                archive = obtain(self.archive, root, download, progress)
            except DataError as why:
                if len(absent) == len(sizes):
                    raise
                raise DataError(f"{root} lacks {', '.join(absent)}.\n{why}") from why
            extract(archive, absent, folder)
        for name, size in sizes.items():
            check_size(folder / name, size)
        return ImageData(
            self.name,
            train=self._read(folder, self.train, "train"),
            test=self._read(folder, self.test, "test"),
        )

    def _size(self, records: int) -> int:
        return records * (self.label_bytes + PIXELS)

    def _read(self, folder: Path, files: dict[str, int], split: str) -> Images:
        count = sum(files.values())
        images = torch.empty(count, *SHAPE, dtype=torch.uint8, device="cpu")
        labels = torch.empty(count, dtype=torch.int64, device="cpu")
        start = 0
        for name, records in files.items():
            raw = torch.from_numpy(np.fromfile(folder / name, dtype=np.uint8))
            rows = raw.reshape(records, self.label_bytes + PIXELS)
            here = slice(start, start + records)
            labels[here] = rows[:, self.label_bytes - 1]
            images[here] = rows[:, self.label_bytes :].reshape(-1, *SHAPE)
            check_labels(folder / name, labels[here], len(self.classes))
            start += records
        check_shares(folder, labels, len(self.classes))
        return Images(f"{self.name} {split}", images, labels, self.classes, self.mean, self.std)


CIFAR10 = Cifar(
    name="cifar10",
    archive=OfficialFile(
        "cifar-10-binary.tar.gz",
        size=170_052_171,
        md5="c32a1d4ab5d03f1284b67883e8d87530",
        sha256="c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
        urls=(HOME + "cifar-10-binary.tar.gz",),
    ),
    folder="cifar-10-batches-bin",
    train={f"data_batch_{number}.bin": 10_000 for number in range(1, 6)},
    test={"test_batch.bin": 10_000},
    label_bytes=1,
    classes=tuple(TEN.split()),
    mean=(0.49139968, 0.48215841, 0.44653091),
    std=(0.24703223, 0.24348513, 0.26158784),
)

CIFAR100 = Cifar(
    name="cifar100",
    archive=OfficialFile(
        "cifar-100-binary.tar.gz",
        size=168_513_733,
        md5="03b5dce01913d631647c71ecec9e9cb8",
        sha256="58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
        urls=(HOME + "cifar-100-binary.tar.gz",),
    ),
    folder="cifar-100-binary",
    train={"train.bin": 50_000},
    test={"test.bin": 10_000},
    label_bytes=2,
    classes=tuple(FINE.split()),
    mean=(0.50707516, 0.48654887, 0.44091784),
    std=(0.26733429, 0.25643846, 0.27615047),
)
