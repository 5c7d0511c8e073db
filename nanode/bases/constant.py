"""Weights that do not move."""

from typing import final

import torch
from torch import Tensor

from nanode.bases.basis import Basis, one
from nanode.stages import Side
from nanode.values import checked_count


@final
class Constant(Basis):
    r"""The one function z(t) = 1: the autonomous case.

    .. math:: z_0(t) = 1

    Shapes: t of any shape gives ``(*t.shape, 1)``.

    >>> Constant()(torch.tensor([0.0, 0.5]))
    tensor([[1.],
            [1.]])
    """

    size = 1

    def values(self, t: Tensor, side: Side) -> Tensor:
        """1 at every time."""
        return one(t)[..., None]

    def gram(self, m: int = 0) -> Tensor:
        """The interval's length for m = 0, zero above."""
        m = checked_count("m", m, 0)
        return torch.full((1, 1), self.length if m == 0 else 0.0, dtype=torch.float64, device="cpu")

    def unit(self) -> Tensor:
        """The coefficient 1."""
        return torch.ones(1, dtype=torch.float64, device="cpu")
