"""Differences of a piecewise-constant function, in place of derivatives it does not have."""

from collections.abc import Sequence

import torch
from torch import Tensor


def differences(edges: Sequence[float], m: int) -> tuple[Tensor, Tensor]:
    r"""The matrix from piece values to m-th difference quotients, and the width each stands for.

    A quotient lives between the middles of two neighbouring pieces; these middles are the edges for
    the next. For n equal pieces of width h, with D the m-th difference matrix, the sum of squared
    quotients times widths is

    .. math:: c^\top D^\top D\, c \; h^{1 - 2m},

    which tends to :math:`\int (f^{(m)})^2 dt` as h → 0 when c samples a smooth f. With m ≥ n there
    is no m-th difference: no rows.
    Shapes: ``(n - m, n)`` and ``(n - m,)`` with ``n = len(edges) - 1``, float64.

    >>> quotients, widths = differences([0.0, 0.5, 1.0], m=1)
    >>> quotients, widths
    (tensor([[-2.,  2.]], dtype=torch.float64), tensor([0.5000], dtype=torch.float64))
    """
    n = len(edges) - 1
    ends = torch.tensor(list(edges), dtype=torch.float64, device="cpu")
    quotients = torch.eye(n, dtype=torch.float64, device="cpu")
    if m >= n:
        return quotients[:0], ends[:0]
    for _ in range(m):
        ends = (ends[1:] + ends[:-1]) / 2
        quotients = quotients.diff(dim=0) / ends.diff()[:, None]
    return quotients, ends.diff()
