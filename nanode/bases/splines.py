"""B-splines on given breakpoints: what hats and smooth splines share.

The knot vector is clamped: each end of the interval is repeated ``degree`` more times. With n
breakpoints there are n − 1 + degree functions, non-negative, summing to 1.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nanode.bases.basis import Interval, even
from nanode.bases.differences import differences
from nanode.bases.quadrature import gauss, weighted_gram
from nanode.doubles import widened
from nanode.stages import Side
from nanode.values import checked_count

#: How many knots, or their times.
Knots = int | Sequence[float] | NDArray[Any] | Tensor


def checked_knots(knots: Any, interval: Interval) -> tuple[float, ...]:
    """Breakpoints from t0 to t1: evenly spaced if ``knots`` is their number."""
    if isinstance(knots, np.ndarray | Tensor):
        knots = knots.tolist()
    if not isinstance(knots, Sequence) or isinstance(knots, str):
        return even(interval, checked_count("knots", knots, 2, "; both ends count") - 1)
    try:
        places = tuple(float(knot) for knot in knots)
    except (TypeError, ValueError):
        raise ValueError(f"knots must be a number of knots or their times, got {knots!r}") from None
    rising = all(a < b for a, b in pairwise(places))
    if len(places) < 2 or not rising or (places[0], places[-1]) != interval:
        raise ValueError(
            f"knots must rise strictly from {interval[0]} to {interval[1]}, the ends of the "
            f"interval, got {places}; pass interval=(first, last) if they live elsewhere"
        )
    return places


def spline_values(t: Tensor, knots: Sequence[float], degree: int, side: Side) -> Tensor:
    r"""The B-splines of a degree at t, by the recurrence of Cox and de Boor.

    .. math:: B_{i,k}(t) = r_{i,k} B_{i,k-1}(t) + (1 - r_{i+1,k}) B_{i+1,k-1}(t), \qquad
              r_{i,k} = \frac{t - u_i}{u_{i+k} - u_i}

    Shapes: t of any shape gives ``(*t.shape, len(knots) - 1 + degree)``. Outside the interval the
    value at its end holds. Degree 0 is the indicator of a piece; ``side`` picks the piece at a
    knot, which above degree 0 only shows in derivatives.

    >>> spline_values(torch.tensor(0.25), [0.0, 1.0], degree=1, side="right")
    tensor([0.7500, 0.2500])
    """
    time = widened(t).clamp(knots[0], knots[-1])[..., None]

    def constant(numbers: Sequence[float]) -> Tensor:
        return torch.tensor(numbers, dtype=time.dtype, device=t.device)

    inner = constant(knots[1:-1])
    passed = time >= inner if side == "right" else time > inner
    piece = passed.sum(dim=-1, keepdim=True) + degree
    u = clamped(knots, degree)
    terms = (piece == torch.arange(len(u) - 1, device=t.device)).to(time.dtype)
    for k in range(1, degree + 1):
        width = [b - a for a, b in zip(u, u[k:], strict=False)]
        # A function on an empty stretch of repeated knots is 0: its ratio may be anything finite.
        ratio = (time - constant(u[:-k])) * constant([1 / w if w > 0 else 0.0 for w in width])
        terms = (ratio * terms)[..., :-1] + ((1 - ratio) * terms)[..., 1:]
    return terms.to(t.dtype)


def spline_derivative(knots: Sequence[float], degree: int, m: int) -> Tensor:
    r"""The matrix from coefficients to those of the m-th derivative, m ≤ degree.

    .. math:: c'_i = \frac{k\,(c_{i+1} - c_i)}{u_{i+k+1} - u_{i+1}} \quad \text{at degree } k

    Shape: ``(len(knots) - 1 + degree - m, len(knots) - 1 + degree)``, float64.

    >>> spline_derivative([0.0, 0.5, 1.0], degree=1, m=1)
    tensor([[-2.,  2.,  0.],
            [ 0., -2.,  2.]], dtype=torch.float64)
    """
    matrix = torch.eye(len(knots) - 1 + degree, dtype=torch.float64, device="cpu")
    for k in range(degree, degree - m, -1):
        u = clamped(knots, k - 1)
        width = [b - a for a, b in zip(u, u[k:], strict=False)]
        slopes = k / torch.tensor(width, dtype=torch.float64, device="cpu")
        matrix = slopes[:, None] * matrix.diff(dim=0)
    return matrix


def spline_gram(knots: Sequence[float], degree: int, m: int) -> Tensor:
    """The Gram matrix of m-th derivatives of B-splines.

    Exact (Gauss–Legendre on every piece) up to m = degree, where the derivative is constant on
    each piece. Beyond, differences between these pieces take the derivative's place: with even
    knots of width h they are scaled by h^(1 − 2(m − degree)).
    Shape: ``(size, size)``, float64.

    >>> spline_gram([0.0, 0.5, 1.0], degree=1, m=1)
    tensor([[ 2., -2.,  0.],
            [-2.,  4., -2.],
            [ 0., -2.,  2.]], dtype=torch.float64)
    """
    exact = min(m, degree)
    change = spline_derivative(knots, degree, exact)
    if m > degree:
        quotients, widths = differences(knots, m - degree)
        return weighted_gram(quotients @ change, widths)
    nodes, weights = gauss(knots, count=degree - exact + 1)
    return weighted_gram(spline_values(nodes, knots, degree - exact, "right") @ change, weights)


def clamped(knots: Sequence[float], degree: int) -> list[float]:
    """The knot vector: each end once, and ``degree`` times more."""
    return [knots[0]] * degree + list(knots) + [knots[-1]] * degree
