"""Batches made on the device that holds the images, with no process beside the training one.

Everything random is a function of (seed, epoch): the order of the images and the numbers of every
augmentation are drawn on the CPU for a whole epoch at once and copied to the device once, so a
step costs no copy and no wait, and step k of an epoch can be made again without the steps before.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, final

import torch
from torch import Generator, Tensor

from nanode.data.augment import Augmentation
from nanode.data.images import Images
from nanode.values import checked_count


@final
class Batches:
    """Goes through ``data`` epoch by epoch, and can be saved and resumed between any two steps.

    A ``for`` loop runs through what is left of the current epoch, and the next loop begins the next
    epoch. ``position`` counts the batches of an epoch that were handed out, up to ``len``.
    ``drop_last`` leaves out the last, smaller batch; by default as ``shuffle`` says.

    Shapes: images are ``(B, C, H, W)``, normalised, of ``dtype``; labels are ``(B,)``, int64.

    >>> from nanode.data import Crop, load
    >>> batches = Batches(load("digits").train, 128, augment=[Crop(1)])
    >>> len(batches)
    11
    >>> x, y = next(iter(batches))
    >>> x.shape, y.shape, batches.position
    (torch.Size([128, 1, 8, 8]), torch.Size([128]), 1)
    >>> again = Batches(load("digits").train, 128, augment=[Crop(1)])
    >>> again.load_state_dict(batches.state_dict())
    >>> torch.equal(next(iter(again))[0], next(iter(batches))[0])
    True
    """

    def __init__(
        self,
        data: Images,
        batch_size: int,
        *,
        seed: int = 0,
        shuffle: bool = True,
        drop_last: bool | None = None,
        augment: Sequence[Augmentation] = (),
        dtype: torch.dtype = torch.float32,
        channels_last: bool = False,
    ) -> None:
        if not isinstance(data, Images):
            raise ValueError(
                f"expected the images of one split, such as data.train, got {type(data).__name__}"
            )
        self.data = data
        self.batch_size = batch_size
        self.seed = seed
        self.shuffle = shuffle
        self.drop_last = shuffle if drop_last is None else drop_last
        self.augment = tuple(augment)
        self.dtype = dtype
        self.channels_last = channels_last
        self.epoch = 0
        self.position = 0
        checked_count("batch_size", batch_size)
        if not len(data) or (self.drop_last and len(data) < batch_size):
            raise ValueError(
                f"{data.name} has {len(data):,} images, fewer than a batch of {batch_size:,}: "
                "take a smaller batch (batch_size)"
            )
        if not dtype.is_floating_point:
            raise ValueError(f"expected a floating-point dtype, got {dtype}")
        for augmentation in self.augment:
            if not isinstance(augmentation, Augmentation):
                raise ValueError(f"expected augmentations, such as Flip(), got {augmentation!r}")
            augmentation.check(data.shape)
        self._labels = hashlib.sha256(data.labels.cpu().numpy().tobytes()).hexdigest()
        self._drawn: tuple[int, Tensor, list[Tensor]] | None = None
        mean, std = (
            torch.tensor(per, dtype=torch.float64, device="cpu") for per in (data.mean, data.std)
        )
        self._mean = (mean * 255).round().to(torch.uint8)[:, None, None].to(data.device)
        self._scale = (1 / (255 * std)).float()[:, None, None].to(data.device)
        self._shift = (-mean / std).float()[:, None, None].to(data.device)

    def __len__(self) -> int:
        """Batches in an epoch."""
        whole, rest = divmod(len(self.data), self.batch_size)
        return whole + (rest > 0 and not self.drop_last)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        epoch = self.epoch
        while self.position < len(self):
            batch = self.batch(epoch, self.position)
            self.position += 1
            yield batch
            if self.epoch != epoch:
                return  # it was moved to another epoch meanwhile
        self.epoch, self.position = epoch + 1, 0

    def batch(self, epoch: int, step: int) -> tuple[Tensor, Tensor]:
        """Step ``step`` of an epoch, whatever came before.

        >>> from nanode.data import load
        >>> Batches(load("digits").test, 100, shuffle=False).batch(0, 3)[1].shape
        torch.Size([60])
        """
        if not 0 <= step < len(self):
            raise ValueError(f"expected a step from 0 to {len(self) - 1}, got {step}")
        order, drawn = self._draw(epoch)
        here = slice(step * self.batch_size, (step + 1) * self.batch_size)
        images = self.data.images.index_select(0, order[here])
        for augmentation, numbers in zip(self.augment, drawn, strict=True):
            images = augmentation.apply(images, numbers[here], self._mean)
        if self.channels_last:
            images = images.contiguous(memory_format=torch.channels_last)
        # Two roundings, never a fused multiply-add: the same bits on every device.
        x = images.float().mul_(self._scale).add_(self._shift).to(self.dtype)
        return x, self.data.labels.index_select(0, order[here])

    def state_dict(self) -> dict[str, Any]:
        """The place in the run, and what must be equal for it to mean the same."""
        return {"epoch": self.epoch, "position": self.position, "settings": self._settings()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to a saved place; the batches from there are bit for bit those of the saved run."""
        saved, own = state["settings"], self._settings()
        for name in own:
            if saved.get(name) != own[name]:
                raise ValueError(
                    f"the saved batches had {name} = {saved.get(name)}, these have {own[name]}: "
                    "resume with the settings of the saved run, or set epoch by hand"
                )
        epoch, position = int(state["epoch"]), int(state["position"])
        if epoch < 0 or not 0 <= position <= len(self):
            raise ValueError(f"expected position 0 to {len(self)}, got {position} (epoch {epoch})")
        self.epoch, self.position = epoch, position

    def _settings(self) -> dict[str, Any]:
        return {
            "data": self.data.name,
            "labels": self._labels,
            "batch_size": self.batch_size,
            "seed": self.seed,
            "shuffle": self.shuffle,
            "drop_last": self.drop_last,
            "augment": [repr(augmentation) for augmentation in self.augment],
        }

    def _draw(self, epoch: int) -> tuple[Tensor, list[Tensor]]:
        """The order of an epoch and the numbers of its augmentations, on the data's device."""
        if self._drawn is None or self._drawn[0] != epoch:
            count = len(self.data)
            order = torch.arange(count, device="cpu")
            if self.shuffle:
                order = torch.randperm(
                    count, generator=stream(self.seed, epoch, "order"), device="cpu"
                )
            drawn = [
                augmentation.draw(count, self.data.shape, stream(self.seed, epoch, str(place)))
                for place, augmentation in enumerate(self.augment)
            ]
            device = self.data.device
            self._drawn = epoch, order.to(device), [numbers.to(device) for numbers in drawn]
        return self._drawn[1:]


def stream(seed: int, epoch: int, purpose: str) -> Generator:
    """A generator on the CPU of its own for each (seed, epoch, purpose).

    The three are hashed: seed + epoch would give run 0 at epoch 1 the numbers of run 1 at epoch 0.

    >>> torch.rand((), generator=stream(0, 1, "order")) == torch.rand(
    ...     (), generator=stream(1, 0, "order")
    ... )
    tensor(False)
    """
    digest = hashlib.blake2b(f"{seed}/{epoch}/{purpose}".encode(), digest_size=8).digest()
    return Generator("cpu").manual_seed(int.from_bytes(digest, "big") >> 1)
