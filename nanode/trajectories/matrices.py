"""How a weight is read as a matrix.

A weight ``(out, *rest)`` is a matrix of out × prod(rest), a convolution kernel
``(out, in, kh, kw)`` thus one of out × (in·kh·kw); with more columns than rows it is turned over.
So all have m rows and at most m columns.
"""

import math

import torch
from torch import Tensor


def is_wide(shape: torch.Size) -> bool:
    """Whether the matrix of a weight is turned over."""
    return shape[0] < math.prod(shape[1:])


def as_matrix(numbers: Tensor, shape: torch.Size, lead: int = 0) -> Tensor:
    """Numbers in the layout of a weight of that shape as ``(..., m, k)``, leading axes kept.

    >>> as_matrix(torch.zeros(10, 4, 3, 3), torch.Size((4, 3, 3)), lead=1).shape
    torch.Size([10, 9, 4])
    """
    m = max(shape[0], math.prod(shape[1:]))
    k = math.prod(numbers.shape[lead:]) // m
    flat = numbers.flatten(lead)
    layout = (k, m) if is_wide(shape) else (m, k)
    upright: Tensor = flat.unflatten(-1, layout)
    return upright.mT if is_wide(shape) else upright


def as_weight(matrix: Tensor, shape: torch.Size) -> Tensor:
    """Matrices ``(..., m, n)`` as weights of that shape, leading axes kept."""
    upright = matrix.mT if is_wide(shape) else matrix
    return upright.reshape(*matrix.shape[:-2], *shape)
