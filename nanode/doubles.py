"""Wider precision; double, and decompositions, also for devices that have none, as Apple's MPS."""

import torch
from torch import Tensor


def hosted(values: Tensor) -> Tensor:
    """Values as they are, but on the host where their device can't decompose or widen them.

    In a step of its own: ``to("cpu", torch.float64)`` of a tensor on MPS fails, or by some versions
    of torch gives zeros.
    """
    return values.cpu() if values.device.type == "mps" else values


def in_double(values: Tensor) -> Tensor:
    """Values in double precision, complex ones as such; on the host if their device has none.

    >>> in_double(torch.tensor(0.5))
    tensor(0.5000, dtype=torch.float64)
    """
    values = hosted(values)
    return values.to(torch.promote_types(values.dtype, torch.float64))


def widened(values: Tensor) -> Tensor:
    """Values in single precision at least: half precision blurs neighbours, and sums above all."""
    return values.float() if values.dtype in (torch.float16, torch.bfloat16) else values
