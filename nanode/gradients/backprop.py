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
        rows = problem.prepare(plan.field.weights(plan.stages)).rows(len(plan.stages))
        conditioning = problem.conditioning.rebuilt(problem.conditioning.tensors)
        states = {0: x}

        def f(i: int, at: State) -> State:
            problem.evaluations.forward += 1
            return problem.evaluate(plan.stages, i, rows[i], at, conditioning)

        def keep(k: int, carry: Carry) -> None:
            if k in plan.wanted:
                states[k] = carry[0]

        problem.march(f, problem.open(f, x), keep)
        return [states[k] for k in plan.wanted]
