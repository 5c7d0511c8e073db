"""Integrals of piecewise polynomials, exact up to rounding."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


def gauss(edges: Sequence[float], count: int) -> tuple[Tensor, Tensor]:
    r"""Gauss–Legendre nodes and weights on every piece between neighbouring edges.

    .. math:: \int_{e_0}^{e_n} g(t)\,dt = \sum_q w_q\, g(t_q)

    Exact where g is a polynomial of degree at most ``2 * count - 1`` on each piece.
    Shapes: both are ``((len(edges) - 1) * count,)``, float64.

    >>> t, w = gauss([0.0, 0.5, 2.0], count=2)
    >>> round(float(w @ t**3), 12)
    4.0
    """
    x, w = np.polynomial.legendre.leggauss(count)
    ends = np.asarray(edges, dtype=np.float64)
    middle, half = (ends[1:] + ends[:-1]) / 2, (ends[1:] - ends[:-1]) / 2
    nodes = middle[:, None] + half[:, None] * x
    weights = half[:, None] * w
    return torch.from_numpy(nodes.ravel()), torch.from_numpy(weights.ravel())


def weighted_gram(values: Tensor, weights: Tensor) -> Tensor:
    r"""The matrix :math:`\sum_q w_q z_q z_q^\top`, symmetric to the last bit.

    Shapes: values ``(nodes, size)``, weights ``(nodes,)``, the result ``(size, size)``.

    >>> weighted_gram(torch.tensor([[1.0, 2.0]]), torch.tensor([3.0]))
    tensor([[ 3.,  6.],
            [ 6., 12.]])
    """
    product = values.mT @ (weights[:, None] * values)
    return (product + product.mT) / 2
