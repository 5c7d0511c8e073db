"""odeint: field + solver + gradient → states."""

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from nanode.fields import Callback, Field, as_field, prepare_norms
from nanode.fields.norms import BatchNorm
from nanode.fields.running_statistics import refuse_running_statistics
from nanode.fields.walk import parts_of
from nanode.gradients import Backprop, Gradient, Plan, Problem
from nanode.gradients.adaptively import solve_adaptively
from nanode.gradients.problem import Conditioning, Evaluations, check_scale, checked_state
from nanode.solvers import Adaptive, Euler, Given, Grid, Schedule, Stepper, Uniform, as_schedule
from nanode.solvers.grid import as_numbers
from nanode.stages import rounding
from nanode.tracing import traced

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
            ``at``, or else the field's own interval, or those of ``steps=Given(...)``, or (0, 1).
        at: times at which states are wanted, in the order of the solve and on its grid.
        solver: a stepper (``Euler()`` by default) or ``Adaptive()``.
        gradient: ``Backprop()`` by default.
        conditioning: further inputs of the field, passed through; tensors in it get gradients.
        scale: s above; ``scale=steps`` on an interval of length 1 makes an Euler step a residual
            layer.
        check_finite: raise at the first step after which the state isn't finite (with
            ``Adaptive``, at the first time at which f isn't).

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
    ends = resolve_interval(field, interval, times, steps)
    if isinstance(solver, Adaptive):
        if steps is not None:
            raise ValueError("an adaptive solver chooses its own steps; leave steps= out")
        wanted = at if isinstance(at, Tensor) else times
        return solve_adaptively(
            field, x, ends, wanted, solver, gradient, conditioning, scale, check_finite
        )[0]
    plan = make_plan(field, ends, steps_between(steps, times), solver, scale, times, check_finite)
    gradient.check(plan)
    return solve(plan, gradient, x, conditioning, stacked=at is not None)[0]


def steps_between(steps: int | Schedule | None, at: Sequence[float] | None) -> int | Schedule:
    """The steps that were asked for; by default one between each two wanted times."""
    if steps is not None:
        return steps
    if at is None:
        raise ValueError("say how many steps: steps=10, or a schedule such as nanode.Aligned(10)")
    return Given(at)


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
    check_scale(scale)
    refuse_running_statistics(field)  # again: modules can change after a field was made of them
    schedule = as_schedule(steps)
    grid = schedule.grid(*interval, breakpoints=(*field.breakpoints, *(at or ())))
    wanted = (grid.steps,) if at is None else _positions(at, grid)
    crossed = [t for t in field.jumps if not grid.holds(t)]
    if isinstance(schedule, Uniform) and field.interval == tuple(sorted(interval)):
        grid = replace(grid, slack=0.0)  # of the very ends that the weights' own pieces have
    low, high = sorted(interval)
    for jumps, why in _where_order_is_lost(field, crossed, stepper):
        if inside := [t for t in jumps if low < t < high]:
            warnings.warn(
                why.format(t=f"{inside[0]:.4g}", cost=f"{stepper!r} falls back to order 1"),
                stacklevel=3,
            )
    bound = stepper.bind(grid.steps)
    stages = grid.stages(bound)
    times = tuple(float(stage.time) for stage in stages)
    prepare_norms(field, times)
    widths = tuple(scale * width for width in grid.widths())
    return Plan(field, bound, grid, stages, times, widths, wanted, check_finite)


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
    modules = parts_of(plan.field)
    state = checked_state(parts, modules)
    norms = [module for module in modules if isinstance(module, BatchNorm)]
    unprepared = [norm for norm in norms if not norm.fits(plan.times)]
    if any(norm.training for norm in unprepared) and "solved" in plan.stages.memo:
        warnings.warn(
            "another solve has used this field on another grid, so that the statistics of its "
            "norms are interpolated to and fro; give each block a field of its own, or "
            "block.regrid(steps) the one block",
            stacklevel=3,
        )
    if unprepared:
        prepare_norms(plan.field, plan.times)
    if not traced():  # a graph's guards read what it would write, and it would be compiled twice
        plan.stages.memo["solved"] = True
    interpolates = any(not norm.fits(plan.times) for norm in unprepared)
    problem = Problem(
        plan,
        structure,
        Conditioning(conditioning),
        Evaluations(),
        modules=modules,
        interpolates=interpolates,
    )
    states = gradient.solve(problem, state)
    result = [torch.stack(column) for column in zip(*states, strict=True)] if stacked else states[0]
    return tree_unflatten(list(result), structure), problem.evaluations


def as_gradient(gradient: Gradient | None) -> Gradient:
    """A gradient method as it is; ``Backprop`` for none."""
    if gradient is None:
        return Backprop()
    if not isinstance(gradient, Gradient):
        raise ValueError(f"gradient must be one such as nanode.Checkpointed(), got {gradient!r}")
    return gradient


def wanted_times(at: Sequence[float] | Tensor, differentiable: bool = False) -> tuple[float, ...]:
    """The times at which states are wanted, as numbers."""
    if isinstance(at, str) or not isinstance(at, Iterable) or getattr(at, "ndim", 1) != 1:
        raise ValueError(
            f"at must be a sequence of times such as [0.0, 0.5, 1.0], got {at!r}; for the state at "
            "the end alone leave it out and pass interval=(t0, t1)"
        )
    at = at if isinstance(at, Tensor) else list(at)
    if not isinstance(at, Tensor) and any(getattr(t, "requires_grad", False) for t in at):
        raise ValueError(
            "some of the times require grad, which a list of numbers would lose; pass one tensor "
            "(torch.stack(times)) with solver=nanode.Adaptive(), or detached times"
        )
    if isinstance(at, Tensor):
        if at.requires_grad and not differentiable:
            raise ValueError(
                "the times require grad, and a fixed grid is not differentiated in them; use "
                "nanode.odeint with solver=nanode.Adaptive(), or pass at.detach()"
            )
        if differentiable:  # passed on as they are
            at = at.tolist()
    times = as_numbers(at)
    if not times or not all(map(math.isfinite, times)):
        raise ValueError(f"at must hold finite times, at least one, got {list(times)}")
    return times


def resolve_interval(
    field: Field,
    interval: tuple[float, float] | None,
    at: Sequence[float] | None,
    steps: int | Schedule | None = None,
) -> tuple[float, float]:
    """From where to where, inside the field's own interval."""
    if interval is None:
        interval = _default_interval(field, at, steps)
    a, b = _two_numbers(interval)
    if not (math.isfinite(a) and math.isfinite(b) and a != b):
        raise ValueError(f"interval must be two different finite times, got {interval!r}")
    if field.interval is not None:
        low, high = field.interval
        a, b = (_at_an_end(t, (low, high)) for t in (a, b))
        if not (low <= min(a, b) and max(a, b) <= high):
            raise ValueError(
                f"the solve runs from {a} to {b}, outside the interval {field.interval} that the "
                "field's weights are defined on; give the basis interval=(t0, t1) that holds both"
            )
    return a, b


def _default_interval(
    field: Field, at: Sequence[float] | None, steps: int | Schedule | None
) -> tuple[float, float]:
    """The ends of ``at``, the field's own interval, the ends of given steps, or (0, 1)."""
    if at is None:
        given = steps.times if isinstance(steps, Given) else (0.0, 1.0)
        return field.interval or (given[0], given[-1])
    if len(set(at)) == 1:
        raise ValueError(
            f"at = {list(at)} says where the solve ends and not where it starts; pass "
            f"interval=(t0, {at[-1]}) too"
        )
    return at[0], at[-1]


def _two_numbers(interval: Any) -> tuple[float, float]:
    ends = interval if isinstance(interval, list | tuple) else (interval,)
    if any(isinstance(t, Tensor) and t.requires_grad for t in ends):
        raise ValueError("interval requires grad, and a solve is not differentiated in it")
    try:
        a, b = interval
        return float(a), float(b)
    except (TypeError, ValueError):
        raise ValueError(f"interval must be two times (t0, t1), got {interval!r}") from None


def _at_an_end(t: float, ends: tuple[float, float]) -> float:
    """The end of an interval that t is rounded from, or t."""
    return next((end for end in ends if abs(t - end) <= rounding([t])), t)


def _where_order_is_lost(
    field: Field, crossed: Sequence[float], stepper: Stepper
) -> Iterator[tuple[Sequence[float], str]]:
    """Jumps that cost a method its order if the solve comes across them, and what to say then."""
    if stepper.order == 1:
        return
    if stepper.carries_slopes:
        yield (
            field.jumps,
            "the weights jump at t = {t}: slopes are carried from one step into the next, and "
            "{cost}. Use another solver, such as nanode.Coupled(nanode.Midpoint())",
        )
    else:
        yield (
            crossed,
            "the weights jump at t = {t}, inside a step: each step uses one bucket throughout, and "
            "{cost}. Use steps=nanode.Aligned(...), or a number of steps that the number of "
            "buckets divides",
        )
    if isinstance(field, Callback):
        yield (
            field.hidden_jumps,
            "f calls a field whose weights jump at t = {t}: the solver doesn't know of that, and "
            "{cost}. Wrap the whole of f instead: nanode.TimeVarying(module, basis, "
            "takes_time=True)",
        )


def _positions(at: Sequence[float], grid: Grid) -> tuple[int, ...]:
    """The grid points at the wanted times."""
    positions, slack = [grid.nearest(t) for t in at], rounding(at)
    for t, k in zip(at, positions, strict=True):
        if not grid.holds(t, slack):
            raise ValueError(
                f"a state is wanted at t = {t}, which is not on the grid (nearest: "
                f"{float(grid.points[k]):.6g}); use steps=nanode.Aligned(...), which puts it there"
            )
    if positions != sorted(set(positions)):
        raise ValueError(f"the wanted times must follow the direction of the solve, got {list(at)}")
    return tuple(positions)
