"""Random changes to images, for a whole batch at once on its own device.

Chance and effect are apart: ``draw`` makes small whole numbers on the CPU, ``apply`` maps bytes to
bytes given those numbers. The same numbers give the same images on every device.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal, final

import torch
from torch import Generator, Tensor

from nanode.values import check_choice, checked_count

Shape = tuple[int, int, int]


class Augmentation(ABC):
    """A random map from bytes ``(B, C, H, W)`` to bytes of the same shape."""

    def check(self, shape: Shape) -> None:
        """Raise ValueError where images of ``shape`` = (C, H, W) can't be changed so."""
        return

    @abstractmethod
    def draw(self, count: int, shape: Shape, generator: Generator) -> Tensor:
        """Chance for ``count`` images: int64 ``(count, k)``, on the CPU."""

    @abstractmethod
    def apply(self, images: Tensor, drawn: Tensor, mean: Tensor) -> Tensor:
        """The changed images; ``mean`` is the data's mean as bytes ``(C, 1, 1)``."""


@final
@dataclass(frozen=True)
class Crop(Augmentation):
    """Shift by up to ``padding`` pixels each way: a random crop of the padded image.

    What comes in from outside is black (``"zero"``) or the mirrored image (``"reflect"``).

    >>> image = torch.arange(9, dtype=torch.uint8).reshape(1, 1, 3, 3)
    >>> Crop(padding=1).apply(image, torch.tensor([[0, 1]]), image)
    tensor([[[[0, 0, 0],
              [0, 1, 2],
              [3, 4, 5]]]], dtype=torch.uint8)
    """

    padding: int = 4
    mode: Literal["zero", "reflect"] = "zero"

    def __post_init__(self) -> None:
        checked_count("padding", self.padding)
        check_choice("mode", self.mode, ("zero", "reflect"))

    def check(self, shape: Shape) -> None:
        """Padding must stay below the image's side."""
        if self.padding >= min(shape[1:]):
            raise ValueError(
                f"expected padding (crop) below the image's side, {min(shape[1:])} pixels, "
                f"got {self.padding}"
            )

    def draw(self, count: int, shape: Shape, generator: Generator) -> Tensor:
        """The corner (row, column) of each crop in its padded image."""
        return torch.randint(2 * self.padding + 1, (count, 2), generator=generator, device="cpu")

    def apply(self, images: Tensor, drawn: Tensor, mean: Tensor) -> Tensor:
        """Gather each pixel from where it was; no padded copy is made."""
        batch, channels, height, width = images.shape
        rows = torch.arange(height, device=images.device) + drawn[:, :1] - self.padding
        columns = torch.arange(width, device=images.device) + drawn[:, 1:] - self.padding
        # One index a pixel for all channels: five times faster on a CPU than four index tensors.
        source = _reflected(rows, height)[:, :, None] * width + _reflected(columns, width)[:, None]
        source = source.reshape(batch, 1, -1).expand(-1, channels, -1)
        cropped = images.reshape(batch, channels, -1).gather(2, source).reshape(images.shape)
        if self.mode == "zero":
            inside = _inside(rows, height)[:, :, None] & _inside(columns, width)[:, None]
            cropped = cropped * inside[:, None]
        return cropped


@final
@dataclass(frozen=True)
class Flip(Augmentation):
    """Mirror left and right, one image in two.

    >>> image = torch.tensor([1, 2, 3], dtype=torch.uint8).reshape(1, 1, 1, 3)
    >>> Flip().apply(image, torch.tensor([[1]]), image)
    tensor([[[[3, 2, 1]]]], dtype=torch.uint8)
    """

    def draw(self, count: int, shape: Shape, generator: Generator) -> Tensor:
        """1 for each image to mirror, else 0."""
        return torch.randint(2, (count, 1), generator=generator, device="cpu")

    def apply(self, images: Tensor, drawn: Tensor, mean: Tensor) -> Tensor:
        """Mirror where a 1 was drawn."""
        return torch.where(drawn[:, :, None, None] == 1, images.flip(3), images)


@final
@dataclass(frozen=True)
class Cutout(Augmentation):
    """Blank a square of ``size`` pixels around a random pixel with the data's mean.

    The square is cut at the border, so less may be blanked (T. DeVries, G. Taylor (2017),
    Improved Regularization of Convolutional Neural Networks with Cutout). The mean is rounded to
    a byte: after normalisation the square is within 1/(510 std) of zero.

    >>> image = torch.ones(1, 1, 3, 3, dtype=torch.uint8)
    >>> Cutout(size=2).apply(image, torch.tensor([[1, 1]]), torch.zeros_like(image[0, :, :1, :1]))
    tensor([[[[0, 0, 1],
              [0, 0, 1],
              [1, 1, 1]]]], dtype=torch.uint8)
    """

    size: int = 16

    def __post_init__(self) -> None:
        checked_count("size", self.size)

    def check(self, shape: Shape) -> None:
        """The square must be smaller than the image."""
        if self.size >= min(shape[1:]):
            raise ValueError(
                f"expected cutout below the image's side, {min(shape[1:])} pixels, got {self.size}"
            )

    def draw(self, count: int, shape: Shape, generator: Generator) -> Tensor:
        """The pixel (row, column) around which each square lies."""
        _, height, width = shape
        rows = torch.randint(height, (count, 1), generator=generator, device="cpu")
        columns = torch.randint(width, (count, 1), generator=generator, device="cpu")
        return torch.cat([rows, columns], 1)

    def apply(self, images: Tensor, drawn: Tensor, mean: Tensor) -> Tensor:
        """The mean inside each square, the image outside."""
        height, width = images.shape[2:]
        corner = drawn - self.size // 2
        rows = torch.arange(height, device=images.device) - corner[:, :1]
        columns = torch.arange(width, device=images.device) - corner[:, 1:]
        square = _inside(rows, self.size)[:, :, None] & _inside(columns, self.size)[:, None, :]
        return torch.where(square[:, None], mean, images)


def _inside(index: Tensor, size: int) -> Tensor:
    return (index >= 0) & (index < size)


def _reflected(index: Tensor, size: int) -> Tensor:
    """Indices outside 0..size-1 mirrored back, without repeating the border."""
    return (size - 1) - ((size - 1) - index.abs()).abs()
