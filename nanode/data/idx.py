"""MNIST and Fashion-MNIST: the idx format.

An idx file is two zero bytes, a byte for the type (8: bytes), a byte for the number of axes, each
axis as a big-endian 32-bit number, then the values. Y. LeCun, C. Cortes, C. Burges, The MNIST
Database of Handwritten Digits; H. Xiao, K. Rasul, R. Vollgraf (2017), Fashion-MNIST.
"""

import gzip
import math
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np
import torch
from torch import Tensor

from nanode.data.download import obtain
from nanode.data.images import ImageData, Images
from nanode.data.source import DataError, OfficialFile, Progress, Source, check_labels

SIDE = 28
BYTES = 0x08  # the type code of unsigned bytes


@final
@dataclass(frozen=True)
class Idx(Source):
    """A set of four idx files, compressed as published or not."""

    name: str
    #: Images and labels of the training split, then of the test split.
    files: tuple[OfficialFile, ...]
    #: Where the files may be; downloads go to the first.
    folders: tuple[str, ...]
    train: int
    test: int
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def load(self, root: Path, download: bool, progress: Progress | None) -> ImageData:
        """Read the four files, compressed or not; those that are missing are downloaded first."""
        paths = [self._find(root, file, download, progress) for file in self.files]
        return ImageData(
            self.name,
            train=self._read(paths[0], paths[1], self.train, "train"),
            test=self._read(paths[2], paths[3], self.test, "test"),
        )

    def _find(
        self, root: Path, file: OfficialFile, download: bool, progress: Progress | None
    ) -> Path:
        for folder in self.folders:
            # The official file first: of what is in the other nothing is known but its size.
            if (root / folder / file.name).exists():
                return obtain(file, root / folder)
            plain = root / folder / file.name.removesuffix(".gz")
            if plain.exists():
                return plain
        return obtain(file, root / self.folders[0], download, progress)

    def _read(self, images: Path, labels: Path, count: int, split: str) -> Images:
        pixels = read_idx(images, (count, SIDE, SIDE))
        values = read_idx(labels, (count,)).long()
        check_labels(labels, values, len(self.classes))
        name = f"{self.name} {split}"
        return Images(name, pixels[:, None], values, self.classes, self.mean, self.std)


def read_idx(path: Path, shape: tuple[int, ...]) -> Tensor:
    """The bytes of an idx file, ``.gz`` or not, that must hold exactly ``shape``."""
    expected = struct.pack(f">BBBB{len(shape)}I", 0, 0, BYTES, len(shape), *shape)
    size = len(expected) + math.prod(shape)
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            raw = file.read(size + 1)  # one more, to see that it ends
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path} is damaged: {error}. Remove it and try again") from error
    remedy = "Remove it and it will be fetched again"
    if len(raw) != size:
        found = f"{len(raw):,}" if len(raw) < size else "more"
        raise DataError(
            f"{path} has a wrong size: expected {size:,} bytes, found {found}. {remedy}"
        )
    if raw[: len(expected)] != expected:
        raise DataError(
            f"{path} is not an idx file of bytes of shape {shape}: expected it to start with "
            f"{expected.hex(' ')}, found {raw[: len(expected)].hex(' ')}. {remedy}"
        )
    values = np.frombuffer(raw, dtype=np.uint8, offset=len(expected))
    return torch.from_numpy(values.copy()).reshape(shape)


def _files(
    homes: tuple[str, ...], facts: tuple[tuple[str, int, str, str], ...]
) -> tuple[OfficialFile, ...]:
    return tuple(
        OfficialFile(name, size, md5, sha256, tuple(home + name for home in homes))
        for name, size, md5, sha256 in facts
    )


MNIST = Idx(
    name="mnist",
    files=_files(
        (
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            "https://storage.googleapis.com/cvdf-datasets/mnist/",
        ),
        (
            (
                "train-images-idx3-ubyte.gz",
                9_912_422,
                "f68b3c2dcbeaaa9fbdd348bbdeb94873",
                "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            ),
            (
                "train-labels-idx1-ubyte.gz",
                28_881,
                "d53e105ee54ea40749a09fcbcd1e9432",
                "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            ),
            (
                "t10k-images-idx3-ubyte.gz",
                1_648_877,
                "9fb629c4189551a2d022fa330f9573f3",
                "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            ),
            (
                "t10k-labels-idx1-ubyte.gz",
                4_542,
                "ec29112dd5afa0611ce80d1b7f02629c",
                "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
            ),
        ),
    ),
    folders=("mnist", "MNIST/raw"),
    train=60_000,
    test=10_000,
    classes=tuple("0123456789"),
    mean=(0.13066048,),
    std=(0.3081078,),
)

FASHION_MNIST = Idx(
    name="fashion-mnist",
    files=_files(
        (
            "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        ),
        (
            (
                "train-images-idx3-ubyte.gz",
                26_421_880,
                "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
                "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
            ),
            (
                "train-labels-idx1-ubyte.gz",
                29_515,
                "25c81989df183df01b3e8a0aad5dffbe",
                "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
            ),
            (
                "t10k-images-idx3-ubyte.gz",
                4_422_102,
                "bef4ecab320f06d8554ea6380940ec79",
                "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
            ),
            (
                "t10k-labels-idx1-ubyte.gz",
                5_148,
                "bb300cfdad3c16e7a12a480ee83cd310",
                "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
            ),
        ),
    ),
    folders=("fashion-mnist", "FashionMNIST/raw"),
    train=60_000,
    test=10_000,
    classes=(
        "T-shirt/top",
        "Trouser",
        "Pullover",
        "Dress",
        "Coat",
        "Sandal",
        "Shirt",
        "Sneaker",
        "Bag",
        "Ankle boot",
    ),
    # Taken from published values (72.94035 and 90.02118 in bytes), not computed from the files.
    mean=(0.2860406,),
    std=(0.35302424,),
)
