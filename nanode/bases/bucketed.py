"""Piecewise-constant weights: equal buckets of the interval (B-NANODE)."""

import math
from fractions import Fraction
from typing import final

import torch
from torch import Tensor

from nanode.bases.basis import Basis, Interval, even, numbers, one
from nanode.bases.differences import differences
from nanode.bases.quadrature import weighted_gram
from nanode.doubles import widened
from nanode.stages import ULPS, Side, Stages
from nanode.values import checked_count

# Note "on an edge". Times that are meant to be an edge arrive rounded: 0.7f * 10 is 6.9999998. So a
# time within this many ulps of an edge is on that edge. An ulp is that of the interval's larger
# end, since a time near 0 in [-1, 1] carries the rounding of the numbers it was computed from.
# Never more than a quarter bucket, or coarse dtypes would have no time left inside a bucket. The
# stages of a solve have exact starts and say themselves how far these may be off.
LARGEST_SNAP = 0.25


@final
class Bucketed(Basis):
    r"""d indicator functions of equal pieces of the interval.

    .. math:: z_k(t) = 1 \text{ if } t_0 + kw \le t < t_0 + (k+1)w, \text{ else } 0,
              \qquad w = (t_1 - t_0)/d

    Shapes: t of any shape gives ``(*t.shape, buckets)``, one-hot. A bucket owns its left end, the
    last one its right end too; ``side="left"`` takes the bucket before an edge. Times within a few
    ulps of an edge count as on it. One bucket is ``Constant``; one per Euler step is a residual
    network with its own weights in every layer.

    >>> basis = Bucketed(2)
    >>> basis(torch.tensor([0.0, 0.5, 1.0]))
    tensor([[1., 0.],
            [0., 1.],
            [0., 1.]])
    >>> basis(torch.tensor(0.5), side="left")
    tensor([1., 0.])
    """

    def __init__(self, buckets: int, interval: Interval = (0.0, 1.0)) -> None:
        super().__init__(interval)
        self.buckets = checked_count("buckets", buckets, 1)
        self.size = self.buckets
        self.breakpoints = self.jumps = even(self.interval, self.buckets)[1:-1]

    def values(self, t: Tensor, side: Side) -> Tensor:
        """One-hot rows; zero gradient in t, NaN where t is NaN."""
        t0, t1 = self.interval
        position = (widened(t) - t0) / self.length * self.buckets
        ulp = torch.finfo(t.dtype).eps * max(abs(t0), abs(t1))
        snap = min(ULPS * ulp / self.length * self.buckets, LARGEST_SNAP)  # note "on an edge"
        edge = position.round()
        owner = edge if side == "right" else edge - 1
        bucket = torch.where((position - edge).abs() <= snap, owner, position.floor())
        bucket = bucket.clamp(0, self.buckets - 1)
        every = torch.arange(self.buckets, dtype=bucket.dtype, device=t.device)
        return (bucket[..., None] == every).to(t.dtype) * one(t)[..., None]

    def gram(self, m: int = 0) -> Tensor:
        """The bucket width times the identity; for m ≥ 1 m-th differences, width^(1−2m) Dᵀ D."""
        m = checked_count("m", m, 0)
        # Counted in buckets the differences are whole numbers, so only the scale is rounded.
        counted = weighted_gram(*differences(range(self.buckets + 1), m))
        return counted * (self.length / self.buckets) ** (1 - 2 * m)

    def unit(self) -> Tensor:
        """All ones: exactly one bucket is on."""
        return torch.ones(self.buckets, dtype=torch.float64, device="cpu")

    def on(self, stages: Stages) -> Tensor:
        r"""The bucket that holds the start of each stage's step, for the whole step.

        .. math:: \left\lfloor d\,(\mathrm{start} - t_0)/(t_1 - t_0) \right\rfloor

        in exact fractions: on K uniform steps this is ⌊k·d/K⌋ for the whole of step k.
        Only a lone stage, which has no step, goes by its side. Shape: ``(len(stages), buckets)``,
        float64.
        """
        numbers(stages)  # a tensor's time has no exact start
        t0, t1 = (Fraction(end) for end in self.interval)
        own, found = ULPS * 2.0**-52 * max(map(abs, self.interval)), []
        for stage in stages:
            position = (stage.start - t0) * self.buckets / (t1 - t0)
            off = max(own, stage.slack) * self.buckets / self.length
            snap = Fraction(min(off, LARGEST_SNAP))  # note "on an edge"
            if stage.step < 0 and stage.side == "left":
                found.append(math.ceil(position - snap) - 1)
            else:
                found.append(math.floor(position + snap))
        held = torch.tensor(found, dtype=torch.long, device="cpu").clamp(0, self.buckets - 1)
        return torch.eye(self.buckets, dtype=torch.float64, device="cpu")[held]
