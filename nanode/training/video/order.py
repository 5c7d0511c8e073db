"""Which clips a step trains on, and the noise of generated ones: functions of their numbers alone.

So a run can resume anywhere, and a clip is generated alike whatever clips are beside it.
"""

import torch
from torch import Tensor

from nanode.data.batches import stream


class Order:
    """Goes through ``count`` clips in batches, each pass in an order of its own.

    Clips that are made when asked for are ``endless``: no pass has one of an earlier pass.

    >>> order = Order(count=5, batch_size=2, seed=0)
    >>> passes = torch.cat([order.indices(step) for step in (0, 1)])
    >>> len(passes.unique())
    4
    """

    def __init__(self, count: int, batch_size: int, seed: int, endless: bool = False) -> None:
        if count < batch_size:
            raise ValueError(
                f"there are {count:,} clips, fewer than a batch of {batch_size:,}: take a smaller "
                "batch_size"
            )
        self.count, self.batch_size, self.seed, self.endless = count, batch_size, seed, endless
        self._drawn: tuple[int, Tensor] | None = None

    def indices(self, step: int) -> Tensor:
        """The clips of a step; what doesn't fill a batch at the end of a pass is left out."""
        number, place = divmod(step, self.count // self.batch_size)
        if self._drawn is None or self._drawn[0] != number:
            generator = stream(self.seed, number, "clips")
            first = number * self.count if self.endless else 0
            self._drawn = number, first + torch.randperm(self.count, generator=generator)
        return self._drawn[1][place * self.batch_size :][: self.batch_size]


def latent_noise(seed: int, indices: Tensor, samples: int, times: int, latents: int) -> Tensor:
    """Standard normal noise (N, samples, times, latents), on the CPU.

    Each sample of each clip has a stream of its own: others beside it don't change it.

    >>> both = latent_noise(0, torch.tensor([3, 8]), 2, 4, 5)
    >>> torch.equal(both[1:, :1], latent_noise(0, torch.tensor([8]), 1, 4, 5))
    True
    """
    noise = torch.empty(len(indices), samples, times, latents)
    for own, index in zip(noise, indices.tolist(), strict=True):
        for n, row in enumerate(own):
            row.normal_(generator=stream(seed, index, f"latents of sample {n}"))
    return noise
