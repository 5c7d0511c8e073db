"""Images that show a piece of another image, labelled with both."""

from dataclasses import dataclass

import torch
from torch import Generator, Tensor


@dataclass(frozen=True)
class Mixed:
    """A batch whose images show two classes each."""

    images: Tensor
    labels: Tensor
    #: What a part of each image shows, and how large that part is, from 0 to 1.
    others: Tensor
    share: float


def cutmix(images: Tensor, labels: Tensor, generator: Generator) -> Mixed:
    """A box of every image shows the image before it in the batch, at the same place.

    The box is one for the whole batch: its area is uniform between nothing and everything, its
    centre is anywhere, and it is cut at the border, so ``share`` is what is left of it (S. Yun et
    al. (2019), CutMix: Regularization Strategy to Train Strong Classifiers with Localizable
    Features). Drawn on the CPU: a GPU doesn't wait.

    >>> images = torch.arange(2.0)[:, None, None, None].expand(2, 1, 4, 4)
    >>> mixed = cutmix(images, torch.tensor([7, 8]), Generator().manual_seed(2))
    >>> mixed.images[0, 0]
    tensor([[0., 1., 1., 1.],
            [0., 1., 1., 1.],
            [0., 0., 0., 0.],
            [0., 0., 0., 0.]])
    >>> mixed.labels, mixed.others, mixed.share
    (tensor([7, 8]), tensor([8, 7]), 0.375)
    """
    size = images.shape[2:]
    area, *centre = torch.rand(3, dtype=torch.float64, generator=generator, device="cpu").tolist()
    (top, bottom), (left, right) = (
        _cut(middle * side, area**0.5 * side, side)
        for middle, side in zip(centre, size, strict=True)
    )
    mixed = images.clone(memory_format=torch.preserve_format)
    mixed[:, :, top:bottom, left:right] = images[:, :, top:bottom, left:right].roll(1, 0)
    share = (bottom - top) * (right - left) / (size[0] * size[1])
    return Mixed(mixed, labels, labels.roll(1), share)


def _cut(middle: float, length: float, side: int) -> tuple[int, int]:
    """A stretch of so many pixels around a place, inside an image."""
    start, end = round(middle - length / 2), round(middle + length / 2)
    return max(start, 0), min(end, side)
