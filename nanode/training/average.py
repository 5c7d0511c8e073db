r"""The running average of a model's weights, which is what gets evaluated.

Note *a short memory at the start*: with a fixed decay of 0.999 a quarter of the average after 1,400
steps would still be the weights before training. The decay of the n-th update is therefore at most
:math:`(1 + n) / (10 + n)`.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class Average:
    r"""An exponential average of parameters, :math:`m \leftarrow m + (1 - \beta_n)(w - m)`.

    Buffers aren't averaged: evaluated with the average, the model uses its own.

    >>> model = nn.Linear(1, 1)
    >>> average = Average(model, decay=0.999)
    >>> before = model.weight.item()
    >>> _ = nn.init.constant_(model.weight, 5.0)
    >>> average.update()
    >>> with average.applied():
    ...     shown = model.weight.item()
    >>> abs(shown - (before + (1 - 1 / 10) * (5.0 - before))) < 1e-6, model.weight.item()
    (True, 5.0)
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay, self.updates = decay, 0
        self._named = dict(model.named_parameters())
        self._mean = {name: p.detach().clone() for name, p in self._named.items()}

    @torch.no_grad()
    def update(self) -> None:
        """Take in the weights as they are now."""
        beta = min(self.decay, (1 + self.updates) / (10 + self.updates))
        self.updates += 1
        torch._foreach_lerp_(list(self._mean.values()), self._weights(), 1 - beta)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The model with its averaged weights, while the context lasts.

        Values are exchanged in place: compiled code and captured graphs keep their addresses.
        """
        kept = [w.clone() for w in self._weights()]
        self._put(list(self._mean.values()))
        try:
            yield
        finally:
            self._put(kept)

    def state(self) -> dict[str, Tensor]:
        """The averaged weights, by name."""
        return dict(self._mean)

    @torch.no_grad()
    def load(self, state: dict[str, Tensor], updates: int) -> None:
        """Go on from an earlier state."""
        self.updates = updates
        for name, mean in self._mean.items():
            mean.copy_(state[name])

    @torch.no_grad()
    def _put(self, values: list[Tensor]) -> None:
        torch._foreach_copy_(self._weights(), values)

    def _weights(self) -> list[Tensor]:
        return [p.detach() for p in self._named.values()]
