"""Whole solves from fused evaluations, as a gradient method."""

from typing import Any

import torch
from torch import Tensor

from nanode.fields.norms import norms_in
from nanode.gradients.backprop import Backprop
from nanode.gradients.checkpointed import Checkpointed
from nanode.gradients.fused.bottleneck import (
    NAMES,
    Bottlenecks,
    images_of,
    is_bottleneck,
    rows_of,
)
from nanode.gradients.fused.coupled import pull_undone, solve_coupled
from nanode.gradients.fused.euler import pull_kept, pull_rewound, solve_euler
from nanode.gradients.fused.run import Norms, Run
from nanode.gradients.gradient import Gradient
from nanode.gradients.once import once
from nanode.gradients.problem import Plan, Problem
from nanode.gradients.reversal import Reversal
from nanode.solvers.invertible import Coupled
from nanode.solvers.runge_kutta import Euler
from nanode.solvers.stepper import State


def serves(method: Gradient, problem: Problem, x: State) -> bool:
    """Whether the fused kernels can run this solve."""
    plan, stepper = problem.plan, problem.plan.stepper
    coupled = type(stepper) is Coupled and type(stepper.method) is Euler
    return (
        (coupled or type(stepper) is Euler)
        and len(x) == 1
        and x[0].ndim == 4
        and x[0].numel() > x[0].shape[1]  # norms need two numbers a channel
        and x[0].dtype in (torch.float32, torch.float64)
        and not problem.conditioning.tensors
        and plan.wanted == (plan.grid.steps,)
        and not plan.check_finite
        and is_bottleneck(plan.field)
        and x[0].shape[1] == norms_in(plan.field)[0].features
        and (
            # Derivatives are those of norms in training.
            _trains(plan)
            and coupled == isinstance(method, Reversal)
            and isinstance(method, Backprop | Checkpointed | Reversal)
            if torch.is_grad_enabled()
            else not problem.interpolates
        )
    )


def _trains(plan: Plan) -> bool:
    """Whether the norms use the batch's own statistics."""
    return all(norm.training for norm in norms_in(plan.field))


class Fused(Gradient):
    """A gradient method by fused kernels, for solves that ``serves`` has accepted."""

    def __init__(self, method: Gradient) -> None:
        self.method = method

    def solve(self, problem: Problem, x: State) -> list[State]:
        """The state at the end."""
        plan = problem.plan
        weights = plan.field.weights(plan.stages)
        named = weights.moving | weights.constant
        moving = [name in weights.moving for name in NAMES]
        problem.evaluations.forward += len(plan.stages)
        if torch.is_grad_enabled() and not isinstance(self.method, Backprop):
            problem.evaluations.backward += len(plan.stages)
        run = Run(self.method, problem, moving)
        tensors = [named[name] for name in NAMES]
        if run.keeps:
            end: Tensor = _Fused.apply(run, x[0], *tensors)
        else:
            end = _forward(run, Bottlenecks(tensors, moving, run.dtype(x[0]), x[0]), x[0])[0]
        # Here, since torch lets nobody change a view that was made inside of a function.
        return [(images_of(end, (x[0].shape[0], *x[0].shape[2:])),)]


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, run: Run, x: Tensor, *tensors: Tensor) -> Tensor:
        ctx.run, ctx.fields = run, Bottlenecks(tensors, run.moving, run.dtype(x), x)
        end, kept, ctx.norms = _forward(run, ctx.fields, x)
        ctx.count = len(kept)
        # Constant weights are read where they are: saved, so that a change in between is noticed.
        still = [t for t, moves in zip(tensors, run.moving, strict=True) if not moves]
        ctx.save_for_backward(*kept, *still)
        # Steps are rewound from the end, which a caller may change, as with the plain method.
        shared = isinstance(run.method, Checkpointed) and not run.owned
        return end.clone() if shared else end

    @staticmethod
    @once
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        run: Run = ctx.run
        fields: Bottlenecks = ctx.fields
        fields.prepare_grads(len(ctx.norms), grad.device)
        kept = ctx.saved_tensors[: ctx.count]
        g = grad.contiguous()
        with torch.autocast(grad.device.type, enabled=False):
            if isinstance(run.method, Reversal):
                in_x = pull_undone(run, fields, kept, ctx.norms, g)
            elif isinstance(run.method, Backprop):
                in_x = pull_kept(run, fields, kept, ctx.norms, g)
            else:
                in_x = pull_rewound(run, fields, kept, ctx.norms, g)
        return (None, images_of(in_x, fields.size), *fields.grads())


def _forward(run: Run, fields: Bottlenecks, x: Tensor) -> tuple[Tensor, list[Tensor], list[Norms]]:
    """The end, what is kept for the backward pass, and all norms; statistics are recorded."""
    fields.eps, fields.fixed = run.norms[0].eps, run.fixed()
    rows = rows_of(x.detach())  # which an owned solve may write over
    with torch.autocast(x.device.type, enabled=False):
        forward = solve_coupled if isinstance(run.stepper, Coupled) else solve_euler
        end, kept, norms = forward(run, fields, rows)
        if not fields.fixed:
            run.record(norms, pixels=rows.shape[0])
    return end, kept, norms
