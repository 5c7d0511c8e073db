"""Every data set by its name."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nanode.data.cifar import CIFAR10, CIFAR100
from nanode.data.digits import DIGITS
from nanode.data.idx import FASHION_MNIST, MNIST
from nanode.data.images import ImageData
from nanode.data.source import ANOTHER, DataError, Progress, Source, data_root
from nanode.values import check_choice

SOURCES: dict[str, Source] = {
    source.name: source for source in (CIFAR10, CIFAR100, MNIST, FASHION_MNIST, DIGITS)
}


def load(
    name: str,
    root: str | os.PathLike[str] | None = None,
    *,
    download: bool = True,
    progress: Progress | None = None,
) -> ImageData:
    """The data set called ``name``, on the CPU.

    Files are looked for in ``root``, else in the folder that NANODE_DATA names, else in the user's
    cache; those that are missing are downloaded there unless ``download`` is off. Unpacked official
    folders (``cifar-10-batches-bin/``, ``cifar-100-binary/``, ``mnist/`` with idx files) are used
    as they are.

    >>> data = load("digits").hold_out(137)
    >>> data.train
    Images(digits train: 1,300 of 1×8×8, on cpu)
    """
    check_choice("data", name, SOURCES)
    folder = Path() if SOURCES[name].embedded else data_root(root)
    with usable(folder):
        return SOURCES[name].load(folder, download, progress)


@contextmanager
def usable(folder: Path) -> Iterator[None]:
    """Say of what the file system refuses that it is about the data root."""
    try:
        yield
    except PermissionError as error:
        raise DataError(f"no permission for {error.filename or folder}: {ANOTHER}") from error
    except OSError as error:
        raise DataError(f"the data root {folder} can't be used: {error}") from error
