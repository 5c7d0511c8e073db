"""Weights interpolated linearly between knots."""

from typing import final

import torch
from torch import Tensor

from nanode.bases.basis import Basis, Interval
from nanode.bases.splines import Knots, checked_knots, spline_gram, spline_values
from nanode.stages import Side
from nanode.values import checked_count


@final
class PiecewiseLinear(Basis):
    r"""Hat functions: the coefficients are the values at the knots.

    .. math:: z_i(t_j) = \delta_{ij}, \quad \text{linear between neighbouring knots}

    Shapes: t of any shape gives ``(*t.shape, knots)``. ``knots`` is their number, both ends
    included, or their times from t0 to t1. Two knots span the polynomials of degree 1. ``side``
    changes no value, only which slope autograd gives at a knot.

    >>> PiecewiseLinear(3)(torch.tensor([0.25, 1.0]))
    tensor([[0.5000, 0.5000, 0.0000],
            [0.0000, 0.0000, 1.0000]])
    """

    def __init__(self, knots: Knots, interval: Interval = (0.0, 1.0)) -> None:
        super().__init__(interval)
        self.knots = checked_knots(knots, self.interval)
        self.size = len(self.knots)
        self.breakpoints = self.knots[1:-1]

    def values(self, t: Tensor, side: Side) -> Tensor:
        """Two neighbouring hats at a time, summing to 1."""
        return spline_values(t, self.knots, degree=1, side=side)

    def gram(self, m: int = 0) -> Tensor:
        """Exact for m ≤ 1; from m = 2 on m-th differences of the knot values, width^(1−2m) Dᵀ D."""
        return spline_gram(self.knots, degree=1, m=checked_count("m", m, 0))

    def unit(self) -> Tensor:
        """All ones: the hats sum to 1."""
        return torch.ones(self.size, dtype=torch.float64, device="cpu")
