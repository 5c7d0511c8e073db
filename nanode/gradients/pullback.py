"""Vector–Jacobian products of recorded evaluations."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from nanode.solvers.stepper import Carry, State


def vjp(
    outputs: Sequence[Tensor], inputs: Sequence[Tensor], grads: Sequence[Tensor | None]
) -> list[Tensor | None]:
    """Gradients of ``inputs``, None where nothing flows."""
    pairs = [
        (out, grad)
        for out, grad in zip(outputs, grads, strict=True)
        if grad is not None and out.requires_grad
    ]
    live = [n for n, tensor in enumerate(inputs) if tensor.requires_grad]
    result: list[Tensor | None] = [None] * len(inputs)
    if not pairs or not live:
        return result
    outs, given = zip(*pairs, strict=True)
    found = torch.autograd.grad(outs, [inputs[n] for n in live], given, allow_unused=True)
    for n, grad in zip(live, found, strict=True):
        result[n] = grad
    return result


def leaves(state: State) -> State:
    """The state as leaves that require grad."""
    return tuple(part.detach().requires_grad_() for part in state)


def flatten(carry: Carry) -> list[Tensor]:
    """All tensors of a carry."""
    return [part for state in carry for part in state]


def ends_of(tensors: Iterable[Tensor]) -> Iterator[Tensor]:
    """The leaves that gradients of these would end in."""
    tensors = list(tensors)
    for tensor in tensors:
        if tensor.requires_grad and tensor.is_leaf:
            yield tensor
    ahead, seen = [tensor.grad_fn for tensor in tensors], set[Any]()
    while ahead:
        node = ahead.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if isinstance(leaf := getattr(node, "variable", None), Tensor):
            yield leaf
        ahead += [following for following, _ in node.next_functions]
