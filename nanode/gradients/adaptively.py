"""Adaptive solves and their gradients, which torchdiffeq computes."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from nanode.fields import BatchNorm, Field
from nanode.gradients.backprop import Backprop
from nanode.gradients.backsolve import Backsolve
from nanode.gradients.gradient import Gradient
from nanode.gradients.problem import (
    Conditioning,
    Evaluations,
    check_scale,
    checked_state,
    evaluate_checked,
    own_parameters,
)
from nanode.gradients.recompute import refuse_hidden
from nanode.solvers import Adaptive
from nanode.solvers.stepper import State
from nanode.stages import Side, Stage


def solve_adaptively(
    field: Field,
    x: Any,
    interval: tuple[float, float],
    at: Sequence[float] | Tensor | None,
    solver: Adaptive,
    gradient: Gradient,
    conditioning: tuple[Any, ...],
    scale: float,
) -> tuple[Any, Evaluations]:
    """Delegate to torchdiffeq; the result in x's structure, and the count of evaluations."""
    check_adaptive(field, gradient, scale)
    parts, structure = tree_flatten(x)
    state = checked_state(parts, field)
    times, skipped = _with_start(interval, at, state[0])
    evaluations = Evaluations()
    backsolve = isinstance(gradient, Backsolve)

    def f(t: Tensor, side: Side, at: State) -> State:
        if backsolve and torch.is_grad_enabled():  # torchdiffeq's forward pass is without grad
            evaluations.backward += 1
        else:
            evaluations.forward += 1
        weights = field.weights_at(t, side)
        stage = Stage.alone(t, side)
        slopes = evaluate_checked(field, structure, weights, stage, at, conditioning)
        return tuple(scale * slope for slope in slopes)

    adjoint = None
    if backsolve:
        _refuse_hidden_in(field, gradient, times.detach()[0], state, structure, conditioning)
        extra = [c for c in tree_flatten(conditioning)[0] if isinstance(c, Tensor)]
        adjoint = tuple(p for p in (*own_parameters(field).values(), *extra) if p.requires_grad)
    columns = solver.solve(f, state, times, field.breakpoints, adjoint)
    wanted = [c[-1] if at is None else c[skipped:] for c in columns]
    return tree_unflatten(wanted, structure), evaluations


def check_adaptive(field: Field, gradient: Gradient, scale: float) -> None:
    """Raise where torchdiffeq can't serve."""
    if not isinstance(gradient, Backprop | Backsolve):
        raise ValueError(
            f"{type(gradient).__name__} needs a fixed grid; with Adaptive use nanode.Backprop() or "
            "nanode.Backsolve()"
        )
    if any(isinstance(part, BatchNorm) for part in field.modules()):
        raise ValueError(
            "BatchNorm keeps statistics per evaluation of a fixed grid, which an adaptive solver "
            "doesn't have; use GroupNorm or a fixed-step solver"
        )
    check_scale(scale)


def _with_start(
    interval: tuple[float, float], at: Sequence[float] | Tensor | None, like: Tensor
) -> tuple[Tensor, int]:
    """The times for torchdiffeq, which takes x at the first, and how many of them to leave out."""
    dtype = torch.float64 if like.dtype in (torch.float64, torch.complex128) else torch.float32
    ends = torch.tensor(interval, dtype=dtype, device=like.device)
    if at is None:
        return ends, 0
    times = torch.as_tensor(at, dtype=dtype, device=like.device)
    skipped = int(bool(times[0] != ends[0]))
    times = torch.cat([ends[:skipped], times])
    along = (times.detach() - ends[0]) / (ends[1] - ends[0])
    if bool((along.diff() <= 0).any()) or not 0 <= float(along[-1]) <= 1 + 1e-6:
        raise ValueError(
            f"the wanted times must lie in the solve from {interval[0]} to {interval[1]} and "
            f"follow its direction, got {times.tolist()[skipped:]}"
        )
    return times, skipped


def _refuse_hidden_in(
    field: Field,
    gradient: Gradient,
    t: Tensor,
    state: State,
    structure: TreeSpec,
    conditioning: tuple[Any, ...],
) -> None:
    """Try the field on detached inputs: torchdiffeq's adjoint would drop a hidden tensor."""
    values = Conditioning(conditioning)
    weights = {name: w.detach() for name, w in field.weights_at(t).items()}
    bare = tuple(part.detach() for part in state)
    fixed = values.rebuilt([c.detach() for c in values.tensors])
    with torch.enable_grad():
        slopes = evaluate_checked(field, structure, weights, Stage.alone(t), bare, fixed)
    refuse_hidden(slopes, gradient)
