"""Ordinary backpropagation through the solve: the reference that the others are measured by."""

from dataclasses import dataclass

from nanode.gradients.gradient import Gradient
from nanode.gradients.problem import Problem
from nanode.solvers.stepper import Carry, State


@dataclass(frozen=True)
class Backprop(Gradient):
    """Autograd through every step: exact, memory grows with the number of evaluations.

    The only method with double backward, vmap and forward mode, and for fields that close over
    tensors. Prefer it whenever the activations fit.
    """

    def solve(self, problem: Problem, x: State) -> list[State]:
        """The states at the wanted grid points."""
        plan = problem.plan
        weights = problem.prepare(plan.field.weights(plan.stages))
        rows = weights.rows()
        conditioning = problem.conditioning.rebuilt(problem.conditioning.tensors)
        states = {0: x}

        def f(i: int, at: State) -> State:
            problem.evaluations.forward += 1
            row = rows[i] if rows else weights.constant
            return problem.evaluate(plan.stages, i, row, at, conditioning)

        def keep(k: int, carry: Carry) -> None:
            if k in plan.wanted:
                states[k] = carry[0]

        problem.march(f, problem.open(f, x), keep)
        return [states[k] for k in plan.wanted]
