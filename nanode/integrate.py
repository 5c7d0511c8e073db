"""odeint: field + solver + gradient → states."""

import math
import warnings
from collections.abc import Callable, Sequence
from numbers import Real
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from nanode.fields import BatchNorm, Field, as_field, prepare_norms
from nanode.gradients import Backprop, Backsolve, Gradient, Plan, Problem
from nanode.gradients.problem import (
    Conditioning,
    Evaluations,
    evaluate_checked,
    own_parameters,
)
from nanode.gradients.recompute import refuse_hidden
from nanode.solvers import Adaptive, Euler, Given, Grid, Schedule, Stepper, as_schedule
from nanode.solvers.grid import meant
from nanode.solvers.stepper import State
from nanode.stages import Side, Stage

Solver = Stepper | Adaptive


def odeint(
    field: Field | Callable[..., Any],
    x: Any,
    *,
    steps: int | Schedule | None = None,
    interval: tuple[float, float] | None = None,
    at: Sequence[float] | Tensor | None = None,
    solver: Solver | None = None,
    gradient: Gradient | None = None,
    conditioning: tuple[Any, ...] = (),
    scale: float = 1.0,
    check_finite: bool = False,
) -> Any:
    r"""Solve :math:`\dot x = s\, f(t, x)` from a given start.

    Args:
        field: a ``Field``, or any callable ``f(t, x, *conditioning)``.
        x: the state at the start: a tensor of any shape, or a tuple or dict of tensors.
        steps: how many equal steps, or a ``Schedule``. By default one step between each two
            times of ``at``.
        interval: from where to where; (t0, t1) with t1 < t0 runs backwards. By default the ends of
            ``at``, or else the field's own interval, or (0, 1).
        at: times at which states are wanted, in the order of the solve and on its grid.
        solver: a stepper (``Euler()`` by default) or ``Adaptive()``.
        gradient: ``Backprop()`` by default.
        conditioning: further inputs of the field, passed through; tensors in it get gradients.
        scale: s above; ``scale=steps`` on an interval of length 1 makes an Euler step a residual
            layer.
        check_finite: raise at the first step after which the state isn't finite.

    Returns:
        The state at the end of the interval; with ``at``, states at those times along a new
        leading axis.

    >>> import nanode, torch
    >>> decay = lambda t, x: -x
    >>> x = nanode.odeint(decay, torch.ones(1, dtype=torch.float64), steps=100, solver=nanode.RK4())
    >>> abs(float(x) - 0.36787944) < 1e-8
    True
    """
    field = as_field(field)
    solver, gradient = solver or Euler(), as_gradient(gradient)
    times = None if at is None else wanted_times(at, differentiable=isinstance(solver, Adaptive))
    ends = resolve_interval(field, interval, times)
    if isinstance(solver, Adaptive):
        if steps is not None:
            raise ValueError("an adaptive solver chooses its own steps; leave steps= out")
        wanted = at if isinstance(at, Tensor) else times
        return solve_adaptively(field, x, ends, wanted, solver, gradient, conditioning, scale)[0]
    if steps is None:
        if times is None:
            raise ValueError(
                "say how many steps: steps=10, or a schedule such as nanode.Aligned(10)"
            )
        steps = Given(times)
    plan = make_plan(field, ends, steps, solver, scale, times, check_finite)
    gradient.check(plan)
    return solve(plan, gradient, x, conditioning, stacked=at is not None)[0]


def make_plan(
    field: Field,
    interval: tuple[float, float],
    steps: int | Schedule,
    stepper: Stepper,
    scale: float = 1.0,
    at: Sequence[float] | None = None,
    check_finite: bool = False,
) -> Plan:
    """All that a fixed-grid solve can know before it sees x."""
    if not isinstance(stepper, Stepper):
        raise ValueError(f"solver must be a stepper such as nanode.Euler(), got {stepper!r}")
    _check_scale(scale)
    grid = as_schedule(steps).grid(*interval, breakpoints=(*field.breakpoints, *(at or ())))
    wanted = (grid.steps,) if at is None else _positions(at, grid)
    crossed = [t for t in field.jumps if not grid.holds(t)]
    low, high = sorted(interval)
    if stepper.order > 1 and any(low < t < high for t in crossed):
        warnings.warn(
            f"the weights jump at t = {crossed[0]:.4g}, inside a step: each step uses one bucket "
            f"throughout, and {stepper!r} falls back to order 1. Use steps=nanode.Aligned(...), or "
            "a number of steps that the number of buckets divides",
            stacklevel=3,
        )
    bound = stepper.bind(grid.steps)
    stages = grid.stages(bound)
    prepare_norms(field, [float(stage.time) for stage in stages])
    widths = tuple(scale * width for width in grid.widths())
    return Plan(field, bound, grid, stages, widths, wanted, check_finite)


def solve(
    plan: Plan, gradient: Gradient, x: Any, conditioning: tuple[Any, ...], stacked: bool
) -> tuple[Any, Evaluations]:
    """Run a plan; the result in x's structure, and the count of evaluations."""
    if not isinstance(conditioning, tuple):
        raise ValueError(
            f"conditioning must be a tuple of the field's further inputs, got "
            f"{type(conditioning).__name__}; write conditioning=(value,)"
        )
    parts, structure = tree_flatten(x)
    state = _checked(parts, plan.field)
    # Again, since another solve may have used the field on another grid meanwhile.
    prepare_norms(plan.field, [float(stage.time) for stage in plan.stages])
    problem = Problem(plan, structure, Conditioning(conditioning), Evaluations())
    states = gradient.solve(problem, state)
    result = [torch.stack(column) for column in zip(*states, strict=True)] if stacked else states[0]
    return tree_unflatten(list(result), structure), problem.evaluations


def _checked(parts: list[Any], field: Field) -> State:
    """The state's tensors, in the precision that a state needs."""
    if not parts or not all(isinstance(part, Tensor) for part in parts):
        raise ValueError(
            "the state must be a tensor, or a tuple or dict of tensors, got "
            f"{[type(part).__name__ for part in parts]}"
        )
    for part in parts:
        if not (part.is_floating_point() or part.is_complex()):
            raise ValueError(f"the state must be floating point, got {part.dtype}")
    devices = {part.device for part in parts}
    devices |= {parameter.device for parameter in field.parameters()}
    if len(devices) > 1:
        raise ValueError(
            f"the state and the field must be on one device, got {sorted(map(str, devices))}; "
            "move one of them with .to(device)"
        )
    kind = parts[0].device.type
    if torch.is_autocast_enabled(kind):
        # Under autocast f runs in half precision; a state that small steps add up in must not.
        halves = (torch.float16, torch.bfloat16)
        parts = [part.float() if part.dtype in halves else part for part in parts]
    return tuple(parts)


def as_gradient(gradient: Gradient | None) -> Gradient:
    """A gradient method as it is; ``Backprop`` for none."""
    if gradient is None:
        return Backprop()
    if not isinstance(gradient, Gradient):
        raise ValueError(f"gradient must be one such as nanode.Checkpointed(), got {gradient!r}")
    return gradient


def _check_scale(scale: float) -> None:
    if not isinstance(scale, Real) or not math.isfinite(scale):
        raise ValueError(f"scale must be a finite number and no tensor, got {scale!r}")


def wanted_times(at: Sequence[float] | Tensor, differentiable: bool = False) -> tuple[float, ...]:
    """The times at which states are wanted, as numbers."""
    if isinstance(at, Tensor):
        if at.requires_grad and not differentiable:
            raise ValueError(
                "the times require grad, and a fixed grid is not differentiated in them; use "
                "nanode.odeint with solver=nanode.Adaptive(), or pass at.detach()"
            )
        if differentiable:  # passed on as they are
            at = at.tolist()
    times = meant(at)
    if not times or not all(map(math.isfinite, times)):
        raise ValueError(f"at must hold finite times, at least one, got {list(times)}")
    return times


def resolve_interval(
    field: Field, interval: tuple[float, float] | None, at: Sequence[float] | None
) -> tuple[float, float]:
    """From where to where, inside the field's own interval."""
    if interval is None:
        interval = (at[0], at[-1]) if at is not None else field.interval or (0.0, 1.0)
    if any(isinstance(t, Tensor) and t.requires_grad for t in interval):
        raise ValueError("interval requires grad, and a solve is not differentiated in it")
    a, b = float(interval[0]), float(interval[1])
    if not (math.isfinite(a) and math.isfinite(b) and a != b):
        raise ValueError(f"interval must be two different finite times, got {interval!r}")
    if field.interval is not None:
        low, high = field.interval
        if not (low <= min(a, b) and max(a, b) <= high):
            raise ValueError(
                f"the solve runs from {a} to {b}, outside the interval {field.interval} that the "
                "field's weights are defined on; give the basis interval=(t0, t1) that holds both"
            )
    return a, b


def _positions(at: Sequence[float], grid: Grid) -> tuple[int, ...]:
    """The grid points at the wanted times."""
    positions = [grid.nearest(t) for t in at]
    for t, k in zip(at, positions, strict=True):
        if not grid.holds(t):
            raise ValueError(
                f"a state is wanted at t = {t}, which is not on the grid (nearest: "
                f"{float(grid.points[k]):.6g}); use steps=nanode.Aligned(...), which puts it there"
            )
    if positions != sorted(set(positions)):
        raise ValueError(f"the wanted times must follow the direction of the solve, got {list(at)}")
    return tuple(positions)


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
    state = _checked(parts, field)
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
    _check_scale(scale)


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
