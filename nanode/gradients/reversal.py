"""Exact gradients at constant memory: every step is undone, and differentiated as it is.

Undoing a step evaluates the field at the very points where the step evaluated it. Those
evaluations are made with their graphs and kept for a moment; the step is then run once more on the
state found, its evaluations replaced by the ones just made, and autograd differentiates its few
linear operations. So a stage costs one evaluation and one vector–Jacobian product, and a stepper
needs no adjoint of its own.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nanode.gradients.ledger import Ledger
from nanode.gradients.problem import Plan
from nanode.gradients.pullback import flatten, leaves, vjp
from nanode.gradients.recompute import Job, Recomputing
from nanode.gradients.repeats import sample
from nanode.solvers.stepper import Carry, Invertible, State

LOSES = ", or undoing the steps loses too many digits (nanode.check_gradients measures that)"


@dataclass(frozen=True)
class Reversal(Recomputing):
    """Keeps the last state only. For invertible steppers.

    Exact up to the rounding that undoing the steps adds: with an fp32 state and f in bf16 it stays
    at a few 1e-6 over 100 steps at the default coupling (``check_gradients`` measures it).
    """

    def check(self, plan: Plan) -> None:
        """Only invertible steppers can be undone."""
        if not isinstance(plan.stepper, Invertible):
            raise ValueError(
                f"Reversal needs an invertible stepper, and {plan.stepper!r} is none: a step of it "
                "can't be undone. Use solver=nanode.Coupled(...) with that method, "
                "nanode.Leapfrog() or nanode.ReversibleHeun(); or keep the solver and use "
                "gradient=nanode.Checkpointed() or nanode.Backprop()"
            )

    def forward(self, job: Job, x: State) -> tuple[dict[int, State], list[State]]:
        """One pass, keeping what it ends in."""
        if any(part.dtype in (torch.float16, torch.bfloat16) for part in x):
            warnings.warn(
                "Reversal with a state in half precision: undoing the steps loses digits, and "
                "gradients are off by per cents; keep x and the weights in float32 and use "
                "torch.autocast, or use gradient=nanode.Checkpointed()",
                stacklevel=2,
            )
        elif job.compares:
            job.begun = [part.tolist() for part in sample(x)]
        wanted, end = job.march(x)
        return wanted, list(end)

    def backward(
        self, job: Job, ledger: Ledger, kept: list[State], grads: dict[int, State]
    ) -> State:
        """Step by step, last to first."""
        plan, stepper = job.plan, job.plan.stepper
        assert isinstance(stepper, Invertible)
        carry: Carry = tuple(kept)
        ended = middle = sample(carry[0]) if job.begun else ()
        flowing: list[Tensor | None] = [None] * len(flatten(carry))
        tape = _Tape(ledger)
        for k in reversed(range(plan.grid.steps)):
            _add_to(flowing, grads.get(k + 1))
            with torch.no_grad():
                carry = stepper.invert(job.problem.local(tape.record, k), plan.widths[k], carry)
            start = tuple(leaves(state) for state in carry)
            with torch.enable_grad():
                end = stepper.step(job.problem.local(tape.replay, k), plan.widths[k], start)
            flowing = vjp(flatten(end), flatten(start), flowing)
            tape.drop(stepper.first_stage(k))
            if job.begun and k == plan.grid.steps // 2:
                middle = sample(carry[0])
        if job.begun:
            found = sample(carry[0])
            begun = [now.new_tensor(then) for now, then in zip(found, job.begun, strict=True)]
            job.compare(found, begun, ended, middle, LOSES)
        x = leaves(carry[0])
        with torch.enable_grad():
            opened = job.problem.open(tape.replay, x)
        result = tuple(vjp(flatten(opened), x, flowing))
        tape.drop(0)
        return result  # type: ignore[return-value]


class _Tape:
    """Evaluations made while undoing steps, kept until the step is differentiated."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.made: dict[int, tuple[State, State]] = {}

    def record(self, i: int, x: State) -> State:
        """f at stage i, with its graph kept."""
        inputs = leaves(x)
        outputs = self.ledger.evaluate(i, inputs)
        self.made[i] = inputs, outputs
        return tuple(out.detach() for out in outputs)

    def replay(self, i: int, x: State) -> State:
        """The value found before, as a function of x; evaluated now if it wasn't."""
        if i not in self.made:
            self.record(i, x)
        outputs: State = _Replay.apply(self, i, *x)
        return outputs

    def pull(self, i: int, grads: Sequence[Tensor]) -> list[Tensor | None]:
        """Through stage i, once: the gradient in x; the ledger gets the rest."""
        inputs, outputs = self.made.pop(i)
        moving, shared = list(self.ledger.moving(i).values()), self.ledger.shared
        found = vjp(outputs, [*inputs, *shared, *moving], grads)
        n, m = len(inputs), len(inputs) + len(shared)
        self.ledger.take_shared(found[n:m])
        self.ledger.take(i, found[m:])
        return found[:n]

    def drop(self, first: int) -> None:
        """Forget evaluations from stage ``first`` on that nothing flowed back to."""
        for i in [i for i in self.made if i >= first]:
            del self.made[i]
            self.ledger.take(i, [None] * len(self.ledger.moving(i)))


class _Replay(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tape: _Tape, i: int, *x: Tensor) -> tuple[Tensor, ...]:
        ctx.tape, ctx.i = tape, i
        return tuple(out.detach() for out in tape.made[i][1])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return (None, None, *ctx.tape.pull(ctx.i, grads))


def _add_to(flowing: list[Tensor | None], grads: State | None) -> None:
    """Add gradients of a wanted state to those flowing into the state of the carry."""
    for n, grad in enumerate(grads or ()):
        before = flowing[n]
        flowing[n] = grad if before is None else before + grad
