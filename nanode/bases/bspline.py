"""Weights as smooth splines."""

from typing import final

import torch
from torch import Tensor

from nanode.bases.basis import Basis, Interval
from nanode.bases.splines import Knots, checked_knots, spline_gram, spline_values
from nanode.stages import Side
from nanode.values import checked_count


@final
class BSpline(Basis):
    r"""B-splines on a clamped knot vector: local, smooth, non-negative, summing to 1.

    .. math:: z_i(t) = B_{i,p}(t), \qquad i = 0, \dots, \mathrm{knots} - 2 + p,
              \qquad p = \mathrm{degree}

    Shapes: t of any shape gives ``(*t.shape, knots - 1 + degree)``. ``knots`` is the number of
    breakpoints, both ends included, or their times from t0 to t1. Two knots span the polynomials of
    that degree; degree 1 is ``PiecewiseLinear``. The derivative of order ``degree`` jumps at inner
    knots.

    >>> BSpline(knots=3, degree=2)(torch.tensor([0.0, 0.5]))
    tensor([[1.0000, 0.0000, 0.0000, 0.0000],
            [0.0000, 0.5000, 0.5000, 0.0000]])
    """

    def __init__(
        self,
        knots: Knots,
        degree: int = 3,
        interval: Interval = (0.0, 1.0),
    ) -> None:
        super().__init__(interval)
        self.knots = checked_knots(knots, self.interval)
        hint = "; for piecewise-constant weights use Bucketed(buckets)"
        self.degree = checked_count("degree", degree, 1, hint)
        self.size = len(self.knots) - 1 + self.degree
        self.breakpoints = self.knots[1:-1]

    def values(self, t: Tensor, side: Side) -> Tensor:
        """At most degree + 1 functions differ from 0 at a time."""
        return spline_values(t, self.knots, self.degree, side)

    def gram(self, m: int = 0) -> Tensor:
        """Exact for m ≤ degree; beyond, differences of that last, piecewise-constant derivative."""
        return spline_gram(self.knots, self.degree, checked_count("m", m, 0))

    def unit(self) -> Tensor:
        """All ones: the splines sum to 1."""
        return torch.ones(self.size, dtype=torch.float64, device="cpu")

    def extra_repr(self) -> str:
        """The degree besides."""
        return f"degree={self.degree}, {super().extra_repr()}"
