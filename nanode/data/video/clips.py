"""Clips: sequences of frames by their index, made or read when they are asked for."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nanode.data.source import DataError


class Clips(ABC):
    """The sequences of one split.

    ``length`` is the number of frames that a sequence has, None where it never ends.
    """

    #: The data set's name, and the split's.
    name: str
    channels: int
    #: Height and width of a frame.
    size: int
    length: int | None
    #: Where frames will be.
    device: torch.device

    @abstractmethod
    def __len__(self) -> int:
        """Sequences in an epoch."""

    def __repr__(self) -> str:
        frames = "any number of" if self.length is None else self.length
        shape = f"{self.channels}×{self.size}×{self.size}"
        return (
            f"{type(self).__name__}({self.name}: {len(self):,} of {frames} frames of {shape}, "
            f"on {self.device})"
        )

    def frames(self, indices: Tensor, length: int) -> Tensor:
        """The first ``length`` frames of the sequences at ``indices``.

        Shapes: indices are ``(N,)``, int64, on any device; the result is ``(N, T, C, H, W)``,
        float32 from 0 to 1, on ``device``.

        >>> from nanode.data.video import load
        >>> clips = load("moving-digits").train
        >>> clips.frames(torch.tensor([5, 3]), 10).shape
        torch.Size([2, 10, 1, 64, 64])
        """
        if indices.dtype != torch.int64 or indices.ndim != 1:
            raise ValueError(
                f"expected indices as int64 of shape (N,), "
                f"got {indices.dtype} of shape {tuple(indices.shape)}"
            )
        if length < 1:
            raise ValueError(f"expected to take at least 1 frame, got {length}")
        if self.length is not None and length > self.length:
            raise ValueError(
                f"{self.name} has {self.length} frames a sequence, {length} were asked for: "
                "take fewer past and future frames"
            )
        return self._frames(indices, length)

    @abstractmethod
    def _frames(self, indices: Tensor, length: int) -> Tensor:
        """As ``frames``, of arguments that fit."""


@final
class StoredClips(Clips):
    """Clips in an array, in memory or mapped from a file; what is asked for is read.

    Shapes: ``array`` is ``(N, T, C, H, W)`` with square frames of an even side, either bytes,
    where 255 counts as 1, or floating point from 0 to 1. A view with its axes moved is as good.

    >>> StoredClips("mine", np.zeros((7, 30, 3, 64, 64), np.uint8))
    StoredClips(mine: 7 of 30 frames of 3×64×64, on cpu)
    """

    def __init__(self, name: str, array: NDArray[Any], device: torch.device | str = "cpu") -> None:
        if array.ndim != 5 or not array.size:
            raise DataError(
                f"{name}: expected an array of shape (N, T, C, H, W) with something in it, "
                f"got {array.shape}"
            )
        height, width = array.shape[3:]
        if height != width or height % 2:
            raise DataError(
                f"{name}: expected square frames of an even side, got {height}×{width}: "
                "crop or resize them first"
            )
        if array.dtype != np.uint8:
            _check_range(name, array)
        self.name = name
        self.device = torch.device(device)
        self.length, self.channels, self.size = array.shape[1], array.shape[2], height
        self._array = array

    def __len__(self) -> int:
        return len(self._array)

    def _frames(self, indices: Tensor, length: int) -> Tensor:
        rows = indices.cpu().numpy()
        wrong = rows[(rows < 0) | (rows >= len(self))]
        if len(wrong):
            raise ValueError(
                f"{self.name}: expected indices from 0 to {len(self) - 1}, got {wrong[0]}"
            )
        # Bytes travel in the order they lie in; the device puts the axes in ours.
        taken = sent(torch.from_numpy(np.asarray(self._array[rows, :length])), self.device)
        frames = taken.to(torch.float32, memory_format=torch.contiguous_format)
        return from_bytes(frames) if taken.dtype == torch.uint8 else frames


@final
@dataclass(frozen=True, eq=False)
class VideoData:
    """A data set: clips to train on, clips to test on.

    >>> from nanode.data.video import load
    >>> load("moving-digits").test
    Stochastic(moving-digits test: 10,000 of any number of frames of 1×64×64, on cpu)
    """

    name: str
    train: Clips
    test: Clips

    def __post_init__(self) -> None:
        train, test = ((clips.channels, clips.size) for clips in (self.train, self.test))
        if train != test:
            raise DataError(
                f"{self.name}: expected the same frames in both splits, got channels and size "
                f"{train} to train on and {test} to test on"
            )


def sent(values: Tensor, device: torch.device) -> Tensor:
    """Values on a device, without waiting for what a GPU is doing.

    A copy from ordinary memory would wait for all of it.
    """
    if device.type != "cuda" or values.is_cuda:
        return values.to(device)
    return values.pin_memory().to(device, non_blocking=True)


def from_bytes(values: Tensor) -> Tensor:
    """Floating-point values of 0..255 scaled to 0..1, in place.

    A product and no quotient: a GPU would divide by another rounding. 255 gives 1 exactly.
    """
    return values.mul_(1 / 255)


def _check_range(name: str, array: NDArray[Any]) -> None:
    if not np.issubdtype(array.dtype, np.floating):
        raise DataError(f"{name}: expected bytes (uint8) or floating point, got {array.dtype}")
    low, high = array.min(), array.max()
    if not (low >= 0 and high <= 1):  # so that NaN is refused too
        raise DataError(
            f"{name}: expected frames from 0 to 1, got {low:.4g} to {high:.4g}: "
            "scale them, or give bytes"
        )
