"""Whole solves from fused evaluations: Euler, states kept or some of them; coupled Euler undone."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from nanode.fields import BatchNorm
from nanode.fields.norms import norms_in
from nanode.gradients.backprop import Backprop
from nanode.gradients.checkpointed import Checkpointed
from nanode.gradients.fused import NAMES, Bottlenecks, Inner, images_of, is_bottleneck, rows_of
from nanode.gradients.gradient import Gradient
from nanode.gradients.once import once
from nanode.gradients.problem import Plan, Problem
from nanode.gradients.reversal import Reversal
from nanode.kernels import Norm, activate, expand, project
from nanode.kernels.project import Moments
from nanode.solvers.invertible import Coupled
from nanode.solvers.runge_kutta import Euler
from nanode.solvers.stepper import State

Norms = tuple[Norm, Norm, Norm]


def serves(method: Gradient, problem: Problem, x: State) -> bool:
    """Whether the fused kernels can run this solve."""
    plan, stepper = problem.plan, problem.plan.stepper
    coupled = isinstance(stepper, Coupled) and type(stepper.method) is Euler
    return (
        (coupled or type(stepper) is Euler)
        and len(x) == 1
        and x[0].ndim == 4
        and x[0].dtype in (torch.float32, torch.float64)
        and not problem.conditioning.tensors
        and plan.wanted == (plan.grid.steps,)
        and not plan.check_finite
        and is_bottleneck(plan.field)
        and (
            # Derivatives are those of norms in training.
            plan.field.training
            and coupled == isinstance(method, Reversal)
            and isinstance(method, Backprop | Checkpointed | Reversal)
            if torch.is_grad_enabled()
            else plan.field.training or _has_statistics(plan)
        )
    )


def _has_statistics(plan: Plan) -> bool:
    """Whether the norms know the evaluations of this very grid."""
    times = [float(stage.time) for stage in plan.stages]
    return all(norm.fits(times) for norm in norms_in(plan.field))


class Fused(Gradient):
    """A gradient method by fused kernels, for solves that ``serves`` has accepted."""

    def __init__(self, method: Gradient) -> None:
        self.method = method

    def solve(self, problem: Problem, x: State) -> list[State]:
        """The state at the end."""
        return fused_solve(self.method, problem, x)


def fused_solve(method: Gradient, problem: Problem, x: State) -> list[State]:
    """The state at the end, by fused kernels."""
    plan = problem.plan
    weights = plan.field.weights(plan.stages)
    named = weights.moving | weights.constant
    moving = [name in weights.moving for name in NAMES]
    problem.evaluations.forward += len(plan.stages)
    if torch.is_grad_enabled() and not isinstance(method, Backprop):
        problem.evaluations.backward += len(plan.stages)
    run = _Run(method, problem, moving)
    tensors = [named[name] for name in NAMES]
    if run.keeps:
        y: Tensor = _Fused.apply(run, x[0], *tensors)
    else:
        y = _forward(run, Bottlenecks(tensors, moving, run.dtype(x[0]), x[0]), x[0])[0]
    return [(y,)]


class _Run:
    """What one solve needs besides tensors."""

    def __init__(self, method: Gradient, problem: Problem, moving: Sequence[bool]) -> None:
        plan = problem.plan
        self.method, self.moving, self.owned = method, moving, problem.owned
        self.keeps = torch.is_grad_enabled()
        self.widths = plan.widths
        self.stepper = plan.stepper
        module: Any = plan.field.module
        self.norms: list[BatchNorm] = list(module)[::3]

    def dtype(self, x: Tensor) -> torch.dtype:
        """The precision of products: autocast's, or the state's."""
        kind = x.device.type
        return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype

    def fixed(self) -> Sequence[tuple[Moments, ...]]:
        """The norms' own statistics in every evaluation, in eval mode."""
        if self.norms[0].training:
            return ()
        parts = [(n.running_mean, torch.rsqrt(n.running_var + n.eps)) for n in self.norms]
        return [tuple((m[i], r[i]) for m, r in parts) for i in range(len(parts[0][0]))]

    def bounds(self, x: Tensor, fields: Bottlenecks) -> list[int]:
        """Where the segments of a checkpointed solve start; none if all middles can be kept.

        They can where they take no more than the states that checkpoints are made of: those at the
        segments' starts, and those inside the segment that is being solved again.
        """
        steps = len(self.widths)
        if not self.keeps or not isinstance(self.method, Checkpointed):
            return []
        bounds = self.method.bounds(steps)
        states = len(bounds) - 1 + max(b - a for a, b in pairwise(bounds))
        middle = fields.weights(0).last.shape[1] * fields.dtype.itemsize
        return [] if steps * middle <= states * x.shape[1] * x.itemsize else bounds[:-1]

    def record(self, seen: Sequence[Norms], pixels: int) -> None:
        """Move every evaluation's running statistics towards what was measured."""
        sizes = [norm.mean.numel() for norm in seen[0]]
        mean = torch.cat([norm.mean for norms in seen for norm in norms]).view(len(seen), -1)
        rstd = torch.cat([norm.rstd for norms in seen for norm in norms]).view(len(seen), -1)
        var = (rstd**-2).sub_(self.norms[0].eps).clamp_min_(0).mul_(pixels / max(pixels - 1, 1))
        running = [r for norm in self.norms for r in (norm.running_mean, norm.running_var)]
        pairs = zip(mean.split(sizes, 1), var.split(sizes, 1), strict=True)
        new = [part for pair in pairs for part in pair]
        found = [part.to(r.dtype) for part, r in zip(new, running, strict=True)]
        torch._foreach_lerp_(running, found, self.norms[0].momentum)


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, run: _Run, x: Tensor, *tensors: Tensor) -> Tensor:
        ctx.run, ctx.fields = run, Bottlenecks(tensors, run.moving, run.dtype(x), x)
        end, kept, ctx.norms = _forward(run, ctx.fields, x)
        ctx.count = len(kept)
        # Constant weights are read where they are: saved, so that a change in between is noticed.
        still = [t for t, moves in zip(tensors, run.moving, strict=True) if not moves]
        ctx.save_for_backward(*kept, *still)
        return end

    @staticmethod
    @once
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        run: _Run = ctx.run
        fields: Bottlenecks = ctx.fields
        fields.prepare_grads(len(ctx.norms), grad.device)
        kept = ctx.saved_tensors[: ctx.count]
        g = rows_of(grad.contiguous(memory_format=torch.channels_last))
        with torch.autocast(grad.device.type, enabled=False):
            if isinstance(run.method, Reversal):
                in_x = _undo(run, fields, kept, ctx.norms, g)
            elif isinstance(run.method, Backprop):
                in_x = _pulled(run, fields, kept, ctx.norms, g)
            else:
                in_x = _rewound(run, fields, kept, ctx.norms, g)
        return (None, images_of(in_x, fields.size), *fields.grads())


def _forward(run: _Run, fields: Bottlenecks, x: Tensor) -> tuple[Tensor, list[Tensor], list[Norms]]:
    """The end, what is kept for the backward pass, and all norms; statistics are recorded."""
    fields.eps, fields.fixed = run.norms[0].eps, run.fixed()
    rows = rows_of(x.detach())  # which an owned solve may write over
    with torch.autocast(x.device.type, enabled=False):
        forward = _coupled if isinstance(run.stepper, Coupled) else _euler
        end, kept, norms = forward(run, fields, rows)
        if not fields.fixed:
            run.record(norms, pixels=rows.shape[0])
    return images_of(end, fields.size), kept, norms


def _euler(run: _Run, fields: Bottlenecks, x: Tensor) -> tuple[Tensor, list[Tensor], list[Norms]]:
    """The end, what is kept for the backward pass, and all norms."""
    kept: list[Tensor] = []
    norms: list[Norms] = []
    everything = run.keeps and isinstance(run.method, Backprop)
    bounds = run.bounds(x, fields)
    out = None
    statistics = fields.opening(x)
    for k, h in enumerate(run.widths):
        if everything or k in bounds:
            kept.append(x)
            out = None  # what is kept is not written over
        x, statistics, made = fields.forward(k, x, statistics, h, [(1.0, x)], out=out)
        norms.append(made.norms)
        if everything:
            kept += [made.first, made.second]
            continue
        out = x
        if run.keeps and not bounds:
            kept.append(made.second)
    return x, kept if everything else [*kept, x], norms


def _pulled(
    run: _Run, fields: Bottlenecks, kept: Sequence[Tensor], norms: Sequence[Norms], g: Tensor
) -> Tensor:
    """Steps pulled back, last to first, all states and products at hand."""
    out = g if run.owned else None
    for k in reversed(range(len(run.widths))):
        x, first, second = kept[3 * k : 3 * k + 3]
        active = activate(first, norms[k][1], dtype=fields.dtype)
        inner = Inner(norms[k], first, second)
        g = out = fields.pull(k, x, inner, active, g, run.widths[k], [(1.0, g)], out=out)
    return g


def _rewound(
    run: _Run, fields: Bottlenecks, kept: Sequence[Tensor], norms: Sequence[Norms], g: Tensor
) -> Tensor:
    """Segment by segment, last to first: its second products made again if need be, then back.

    A step is undone by its own second product, x_k = x_{k+1} − h W relu(norm(second_k)): the same
    numbers that were added are subtracted, so that rounding is all that is lost, and a state costs
    what its narrow middle does.
    """
    *starts, x = kept
    steps = len(run.widths)
    bounds = run.bounds(x, fields)
    if not bounds:
        return _back(run, fields, 0, starts, norms, x, g)
    for n in reversed(range(len(starts))):
        end = bounds[n + 1] if n + 1 < len(bounds) else steps
        made, at, out = [], starts[n], None
        for i in range(bounds[n], end):
            w = fields.weights(i)
            h = project(at, norms[i][0], w.first, eps=None)[0]
            made.append(fields.again(i, h, norms[i])[1])
            if i + 1 < end:
                widths = run.widths[i]
                at, _, _ = expand(made[-1], norms[i][2], w.last, widths, [(1.0, at)], out=out)
                out = at
        g = _back(run, fields, bounds[n], made, norms, x, g)
        x = starts[n]
    return g


def _back(
    run: _Run,
    fields: Bottlenecks,
    first: int,
    seconds: Sequence[Tensor],
    norms: Sequence[Norms],
    x: Tensor,
    g: Tensor,
) -> Tensor:
    """Steps ``first`` … undone and pulled back, from the state x that they end in."""
    x_out, g_out = (x, g) if run.owned else (None, None)
    for n in reversed(range(len(seconds))):
        i, h = first + n, run.widths[first + n]
        w, (one, two, three) = fields.weights(i), norms[i]
        x, _, product = expand(
            seconds[n], three, w.last, -h, [(1.0, x)], out=x_out, following=(one, w.first)
        )
        assert product is not None
        active = activate(product, two, dtype=fields.dtype)
        inner = Inner(norms[i], product, seconds[n])
        g = fields.pull(i, x, inner, active, g, h, [(1.0, g)], out=g_out)
        x_out, g_out = x, g
    return g


def _coupled(run: _Run, fields: Bottlenecks, x: Tensor) -> tuple[Tensor, list[Tensor], list[Norms]]:
    """Coupled Euler: y ← λy + (1 − λ)z + h f(z), z ← z + h f(y)."""
    assert isinstance(run.stepper, Coupled)
    coupling = run.stepper.coupling
    assert coupling is not None
    statistics, norms = fields.opening(x), []
    y = z = x
    for k, h in enumerate(run.widths):
        # In place from the second step on: the first one's inputs may be the caller's x.
        mix = [(coupling, y), (1 - coupling, z)] if k else [(1.0, z)]
        y, found, made = fields.forward(2 * k, z, statistics, h, mix, out=y if k else None)
        norms.append(made.norms)
        out = z if k or run.owned else None
        z, statistics, made = fields.forward(2 * k + 1, y, found, h, [(1.0, z)], out=out)
        norms.append(made.norms)
    return y, [y, z], norms


def _undo(
    run: _Run, fields: Bottlenecks, kept: Sequence[Tensor], norms: Sequence[Norms], g: Tensor
) -> Tensor:
    """The same backwards; gy carries its factor λ into the next accumulation."""
    assert isinstance(run.stepper, Coupled)
    coupling = run.stepper.coupling
    assert coupling is not None
    y, z = kept
    y_out, z_out = (y, z) if run.owned else (None, None)
    gy, factor = g, 1.0
    gz: Tensor | None = None  # nobody looks at z at the end
    gy_out = g if run.owned else None
    last = 2 * len(run.widths) - 1
    h1 = project(y, norms[last][0], fields.weights(last).first, eps=None)[0]
    for k in reversed(range(len(run.widths))):
        h, a, b = run.widths[k], 2 * k, 2 * k + 1
        active, second = fields.again(b, h1, norms[b])
        into = (norms[a][0], fields.weights(a).first)
        z, _, before = expand(
            second, norms[b][2], fields.weights(b).last, -h, [(1.0, z)], out=z_out, following=into
        )
        z_out = z
        if gz is None:
            fields.skip(b)
        else:
            inner = Inner(norms[b], h1, second)
            gy = gy_out = fields.pull(b, y, inner, active, gz, h, [(factor, gy)], out=gy_out)
            del inner
        assert before is not None
        h1 = before
        del active, second, before  # so that they make room for the next ones
        active, second = fields.again(a, h1, norms[a])
        following = (norms[a - 1][0], fields.weights(a - 1).first) if k else None
        # y' = λy + (1 − λ)z + hf, hence y = y'/λ + (1 − 1/λ)z − hf/λ.
        y, _, after = expand(
            second,
            norms[a][2],
            fields.weights(a).last,
            -h / coupling,
            [(1 / coupling, y), (1 - 1 / coupling, z)],
            out=y_out,
            following=following,
        )
        y_out = y
        inner = Inner(norms[a], h1, second)
        # At the first step y and z are both x, which gets all of gy.
        flowing = [(1 - coupling if k else 1.0, gy)]
        if gz is not None:
            flowing.insert(0, (1.0, gz))
        gz = fields.pull(a, z, inner, active, gy, h, flowing, out=gz)
        factor = coupling
        del inner, active, second
        if after is not None:
            h1 = after
    assert gz is not None
    return gz
