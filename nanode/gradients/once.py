"""Derivatives of first order only, and an error for whoever asks for a second.

torch's ``once_differentiable`` raises where the incoming gradient has a graph of its own. Where it
has none (``y.sum()`` and a penalty on the slope) the result comes out as a constant, and the
penalty would do nothing, without a word.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor

Backward = Callable[..., tuple[Tensor | None, ...]]


def once(backward: Backward) -> Backward:
    """A custom function's backward whose results can't be differentiated again."""

    @wraps(backward)
    def wrapped(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        with torch.no_grad():
            found = backward(ctx, *grads)
        if not torch.is_grad_enabled():
            return found
        return tuple(None if g is None else _End.apply(g.detach().requires_grad_()) for g in found)

    return wrapped


class _End(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, grad: Tensor) -> Tensor:
        return grad.view_as(grad)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        raise RuntimeError(
            "this gradient method gives first derivatives only, and a second was asked for; use "
            "gradient=nanode.Backprop() with compile=False"
        )
