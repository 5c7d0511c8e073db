"""Derivatives of first order only, and an error for whoever asks for a second.

torch's ``once_differentiable`` raises where the incoming gradient has a graph of its own. Where it
has none (``y.sum()`` and a penalty on the slope) the result would come out as a constant, and the
penalty do nothing, without a word. Nor can a node be hung behind the result that raises when it is
differentiated: ``torch.autograd.grad`` passes by what doesn't lead to its inputs. So it is refused
where such a gradient is asked for, by ``create_graph=True``.
"""

from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import is_legacy_batchedtensor
from torch.autograd import forward_ad

Backward = Callable[..., tuple[Tensor | None, ...]]


def once(backward: Backward) -> Backward:
    """A custom function's backward whose results can't be differentiated again."""

    @wraps(backward)
    def wrapped(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second("this gradient method", " with compile=False")
        return backward(ctx, *grads)

    return wrapped


def transformed() -> bool:
    """Whether one of torch.func's transforms is at work."""
    active: bool = torch._C._are_functorch_transforms_active()
    return active


def refuse_transforms(method: str, instead: str = "gradient=nanode.Backprop()") -> None:
    """Raise under vmap, jvp and the like, which can't look into a node of ours."""
    if transformed():
        raise RuntimeError(
            f"torch.func's transforms (vmap, grad, jvp, …) can't look into a solve with {method}; "
            f"use {instead}"
        )


def refuse_tangents(tensors: Iterable[Tensor], method: str, instead: str) -> None:
    """Raise where derivatives in forward mode are asked for."""
    if any(forward_ad.unpack_dual(tensor).tangent is not None for tensor in tensors):
        raise RuntimeError(f"{method} has no derivatives in forward mode; use {instead}")


def refuse_batched(grad: Tensor) -> None:
    """Raise where many gradients come as one, as in ``jacobian(..., vectorize=True)``."""
    if is_legacy_batchedtensor(grad):
        raise RuntimeError(
            "batched gradients can't be had with this gradient method; use "
            "gradient=nanode.Backprop()"
        )


def refuse_second(method: str, besides: str = "") -> None:
    """Raise in a backward pass whose results are to have a graph of their own."""
    if torch.is_grad_enabled():
        raise RuntimeError(
            f"{method} gives first derivatives only, and create_graph=True asks for more; use "
            f"gradient=nanode.Backprop(){besides}"
        )
