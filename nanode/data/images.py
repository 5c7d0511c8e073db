"""Labelled images in memory: one tensor of bytes, one of labels, and what normalises them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor

from nanode.data.strata import stratified


@final
@dataclass(frozen=True, eq=False)
class Images:
    """The images of one split.

    Shapes: ``images`` is ``(N, C, H, W)`` of bytes, ``labels`` is ``(N,)``, int64, below
    ``len(classes)``. ``mean`` and ``std`` are per channel, of the whole training set, where a byte
    255 counts as 1.

    >>> from nanode.data import load
    >>> test = load("digits").test
    >>> len(test), test.shape, test.images.dtype
    (360, (1, 8, 8), torch.uint8)
    """

    #: The data set's name, and the split's.
    name: str
    images: Tensor
    labels: Tensor
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        if self.images.dtype != torch.uint8 or self.images.ndim != 4:
            raise ValueError(
                f"{self.name}: expected images as bytes (uint8) of shape (N, C, H, W), "
                f"got {self.images.dtype} of shape {tuple(self.images.shape)}"
            )
        if self.labels.dtype != torch.int64 or self.labels.shape != self.images.shape[:1]:
            raise ValueError(
                f"{self.name}: expected {len(self.images)} labels (int64), "
                f"got {self.labels.dtype} of shape {tuple(self.labels.shape)}"
            )
        if not len(self.mean) == len(self.std) == self.images.shape[1]:
            raise ValueError(
                f"{self.name}: expected a mean and a std for each of {self.images.shape[1]} "
                f"channels, got {len(self.mean)} and {len(self.std)}"
            )
        if min(self.std) <= 0:
            raise ValueError(f"{self.name}: expected std above 0, got {self.std}")
        wrong = (self.labels < 0) | (self.labels >= len(self.classes))
        if bool(wrong.any()):
            raise ValueError(
                f"{self.name}: expected labels from 0 to {len(self.classes) - 1}, "
                f"got {int(self.labels[wrong][0])}"
            )

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        shape = "×".join(str(size) for size in self.shape)
        return f"Images({self.name}: {len(self):,} of {shape}, on {self.device})"

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of one image."""
        channels, height, width = self.images.shape[1:]
        return channels, height, width

    @property
    def device(self) -> torch.device:
        """Where the images are, and where batches of them will be."""
        return self.images.device

    def to(self, device: torch.device | str) -> "Images":
        """The same images on another device."""
        return replace(self, images=self.images.to(device), labels=self.labels.to(device))

    def take(self, indices: Tensor, name: str | None = None) -> "Images":
        """The images at ``indices``, in that order.

        >>> from nanode.data import load
        >>> load("digits").train.take(torch.arange(100), "a hundred digits")
        Images(a hundred digits: 100 of 1×8×8, on cpu)
        """
        indices = indices.to(self.device)
        return replace(
            self,
            name=self.name if name is None else name,
            images=self.images[indices],
            labels=self.labels[indices],
        )


@final
@dataclass(frozen=True, eq=False)
class ImageData:
    """A data set: images to train on, images to test on and, once held out, to choose by.

    >>> from nanode.data import load
    >>> data = load("digits")
    >>> len(data.train), data.validation, len(data.test)
    (1437, None, 360)
    >>> data.shape, data.classes[3]
    ((1, 8, 8), '3')
    """

    name: str
    train: Images
    test: Images
    validation: Images | None = None

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the labels."""
        return self.train.classes

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of one image."""
        return self.train.shape

    def to(self, device: torch.device | str) -> "ImageData":
        """The same data set on another device."""
        held = None if self.validation is None else self.validation.to(device)
        return replace(
            self, train=self.train.to(device), test=self.test.to(device), validation=held
        )

    def hold_out(self, count: int | None = None, seed: int = 0) -> "ImageData":
        """Move ``count`` training images, by default a tenth, to ``validation``.

        Each class gives its share. The same labels, count and seed give the same images on every
        machine and with every version of torch, so that a choice made on them never leaks.

        >>> from nanode.data import load
        >>> data = load("digits").hold_out(137)
        >>> len(data.train), len(data.validation)
        (1300, 137)
        """
        if self.validation is not None:
            raise ValueError(
                f"{self.name} already holds out {len(self.validation):,} images; "
                "hold out of the data as loaded"
            )
        count = len(self.train) // 10 if count is None else count
        held = stratified(self.train.labels, count, seed)
        kept = torch.ones(len(self.train), dtype=torch.bool, device="cpu")
        kept[held] = False
        return replace(
            self,
            train=self.train.take(kept.nonzero()[:, 0]),
            validation=self.train.take(held, f"{self.name} validation"),
        )


def channel_statistics(images: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel, where a byte 255 counts as 1.

    Counted in whole numbers, so exact up to the last rounding. The constants of CIFAR and MNIST
    in this folder are its result on the whole training set, rounded to 8 digits::

        channel_statistics(load("cifar10").train.images)

    Shapes: images are bytes ``(N, C, H, W)``; the result is two tuples of length C.

    >>> channel_statistics(torch.tensor([0, 255], dtype=torch.uint8).reshape(1, 1, 1, 2))
    ((0.5,), (0.5,))
    """
    means, stds = [], []
    for channel in images.unbind(1):
        counts: Sequence[int] = torch.bincount(channel.reshape(-1), minlength=256).tolist()
        n = sum(counts)
        total = sum(value * count for value, count in enumerate(counts))
        squares = sum(value * value * count for value, count in enumerate(counts))
        means.append(total / n / 255)
        stds.append((squares * n - total * total) ** 0.5 / n / 255)
    return tuple(means), tuple(stds)
