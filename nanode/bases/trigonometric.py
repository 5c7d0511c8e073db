"""Trigonometric polynomials in time (T-NANODE)."""

import math
from typing import final

import torch
from torch import Tensor

from nanode.bases.basis import Basis, Interval, one
from nanode.bases.waves import wave_gram
from nanode.doubles import widened
from nanode.stages import Side
from nanode.values import checked_count, checked_positive


@final
class Trigonometric(Basis):
    r"""A constant, then cosines, then sines of the multiples of one base frequency ω.

    .. math:: z(t) = (1, \cos \omega t, \dots, \cos N \omega t,
                  \sin \omega t, \dots, \sin N \omega t)

    Shapes: t of any shape gives ``(*t.shape, 2 * order + 1)``. t is the raw time. The paper has
    ω = 1 on [0, 1], where these functions are nearly dependent; ω = 2π / (t1 − t0) makes them
    orthogonal there, and periodic.

    >>> Trigonometric(order=1, frequency=math.pi)(torch.tensor([0.0, 1.0])).round(decimals=4)
    tensor([[ 1.,  1.,  0.],
            [ 1., -1., -0.]])
    """

    def __init__(self, order: int, frequency: float = 1.0, interval: Interval = (0.0, 1.0)) -> None:
        super().__init__(interval)
        hint = "; for weights that do not move use Constant()"
        self.order = checked_count("order", order, 1, hint)
        self.frequency = checked_positive("frequency", frequency, hint)
        self.size = 2 * self.order + 1

    def values(self, t: Tensor, side: Side) -> Tensor:
        """Cosines and sines of nωt."""
        time = widened(t)[..., None]
        n = torch.arange(1, self.order + 1, dtype=time.dtype, device=t.device)
        phase = time * (self.frequency * n)
        return torch.cat([one(time), phase.cos(), phase.sin()], dim=-1).to(t.dtype)

    def gram(self, m: int = 0) -> Tensor:
        """Products of waves turned into sums, integrated in closed form."""
        m = checked_count("m", m, 0)
        n = torch.arange(1, self.order + 1, dtype=torch.float64, device="cpu")
        zero = torch.zeros(1, dtype=torch.float64, device="cpu")
        frequencies = self.frequency * torch.cat([zero, n, n])
        # A sine is a cosine a quarter turn later.
        phases = torch.cat([zero, 0 * n, 0 * n - math.pi / 2])
        return wave_gram(frequencies, phases, self.interval, m)

    def unit(self) -> Tensor:
        """The first function is 1."""
        return torch.eye(self.size, dtype=torch.float64, device="cpu")[0]

    def extra_repr(self) -> str:
        """Order and base frequency besides."""
        return f"order={self.order}, frequency={self.frequency}, {super().extra_repr()}"
