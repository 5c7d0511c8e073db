r"""The continuous adjoint: the gradient's own differential equation, solved backwards.

.. math:: \dot a = -a^\top \frac{\partial f}{\partial x}, \qquad
          \frac{dL}{d\theta} = \int_{t_0}^{t_1} a^\top \frac{\partial f}{\partial \theta} dt

It is what the paper uses and what other libraries call *the adjoint method*. x is integrated
backwards beside a, with the same stepper on the same grid reversed. The result is the gradient of
the continuous problem, discretised: not the gradient of the discrete solve that was run.
"""

import warnings
from dataclasses import dataclass

import torch
from torch import Tensor

from nanode.fields.norms import BatchNorm
from nanode.gradients.ledger import Ledger
from nanode.gradients.problem import Plan
from nanode.gradients.pullback import leaves, vjp
from nanode.gradients.recompute import Job, Recomputing
from nanode.solvers.runge_kutta import RungeKutta
from nanode.solvers.stepper import State

#: Below this many steps Euler's continuous adjoint is off by more than a few per cent.
_COARSE = 100
DREW = (
    "Backsolve can't repeat the random numbers that this field draws (dropout?), since it "
    "evaluates elsewhere; use gradient=nanode.Checkpointed() or nanode.Reversal()"
)


@dataclass(frozen=True)
class Backsolve(Recomputing):
    """Keeps the last state only, for explicit Runge–Kutta methods; **inexact**.

    Its distance from the exact gradient shrinks with the step only, at about the stepper's order:
    Euler is off by some per cent to tens of per cent at ten steps. Every reversed step stays in its
    own bucket; an adjoint that looks the bucket up by time gives each bucket the gradient of the
    one before it, and the first nothing. Use it to compare with the literature; prefer
    ``Checkpointed`` or ``Reversal``.
    """

    def check(self, plan: Plan) -> None:
        """Explicit methods without statistics per evaluation; a warning where it is known wrong."""
        if not isinstance(plan.stepper, RungeKutta):
            raise ValueError(
                f"Backsolve integrates backwards with an explicit Runge–Kutta method, and "
                f"{plan.stepper!r} is none; use gradient=nanode.Reversal() with it"
            )
        if any(isinstance(part, BatchNorm) for part in plan.field.modules()):
            raise ValueError(
                "Backsolve evaluates the field at stages that the forward pass doesn't have, so "
                "statistics per evaluation have no meaning there; use GroupNorm, or "
                "gradient=nanode.Checkpointed()"
            )
        if plan.field.jumps:
            warnings.warn(
                "Backsolve with weights that jump: with few steps in a bucket its gradient is that "
                "of a problem that they resolve badly; use gradient=nanode.Checkpointed()",
                stacklevel=4,
            )
        elif plan.stepper.order == 1 and plan.grid.steps < _COARSE:
            warnings.warn(
                f"Backsolve with {plan.grid.steps} Euler steps: gradients are off by the order of "
                "a step, often more than a tenth; use gradient=nanode.Checkpointed()",
                stacklevel=4,
            )

    def forward(self, job: Job, x: State) -> tuple[dict[int, State], list[State]]:
        """One pass, keeping what it ends in."""
        wanted, (end,) = job.march(x)
        if job.drew():
            raise ValueError(DREW)
        return wanted, [end]

    def backward(
        self, job: Job, ledger: Ledger, kept: list[State], grads: dict[int, State]
    ) -> State:
        """(x, a) along the reversed grid, the gradients of weights summed with the method's b."""
        plan, stepper = job.plan, job.plan.stepper
        assert isinstance(stepper, RungeKutta)
        (x,) = kept
        n, steps = len(x), plan.grid.steps
        b = [float(entry) for entry in stepper.tableau.b]
        ledger.serve(plan.stages_backwards)
        a = tuple(torch.zeros_like(part) for part in x)
        for k in range(steps):
            point = steps - k
            if point in grads:
                a = tuple(p + q for p, q in zip(a, grads[point], strict=True))
            h = plan.widths[point - 1]

            def f(j: int, both: State, k: int = k, h: float = h) -> State:
                return self._slope(ledger, k * len(b) + j, both, n, h * b[j])

            (both,) = stepper.step(f, -h, ((*x, *a),))
            x, a = both[:n], both[n:]
        return a

    def _slope(self, ledger: Ledger, i: int, both: State, n: int, share: float) -> State:
        """(f, −aᵀ∂f/∂x) at stage i; ``share`` of aᵀ∂f/∂θ goes to the ledger."""
        x, a = leaves(both[:n]), both[n:]
        slopes = ledger.evaluate(i, x)
        moving = list(ledger.moving(i).values())
        cotangents = [g.to(s.dtype) for g, s in zip(a, slopes, strict=True)]
        found = vjp(slopes, [*x, *ledger.shared, *moving], cotangents)
        scaled = [None if grad is None else grad * share for grad in found[n:]]
        ledger.take_shared(scaled[: len(ledger.shared)])
        ledger.take(i, scaled[len(ledger.shared) :])
        in_x = [_negated(grad, part) for grad, part in zip(found[:n], x, strict=True)]
        return (*(slope.detach() for slope in slopes), *in_x)


def _negated(grad: Tensor | None, like: Tensor) -> Tensor:
    return torch.zeros_like(like) if grad is None else -grad
