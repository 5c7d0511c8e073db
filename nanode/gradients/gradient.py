"""The interface of a gradient method: how a solve is differentiated."""

from abc import ABC, abstractmethod

from nanode.gradients.problem import Plan, Problem
from nanode.solvers.stepper import State


class Gradient(ABC):
    """Runs a solve and differentiates it.

    - ``Backprop``: exact; all states and f's activations are held, nothing is evaluated twice.
    - ``Checkpointed``: exact; √K states are held by default.
    - ``Reversal``: exact up to rounding; one state is held, two by ``ReversibleHeun``.
    - ``Backsolve``: that of the continuous problem, inexact; one state is held.

    All but ``Backprop`` evaluate f once more a stage in the backward pass. Their ``chunk`` makes
    the table of weights for that many stages at a time; by default it is made for all at once.
    """

    def check(self, plan: Plan) -> None:  # noqa: B027 (most methods serve every plan)
        """Raise where this method can't serve the plan, warn where it is known to be wrong."""

    @abstractmethod
    def solve(self, problem: Problem, x: State) -> list[State]:
        """The states at the wanted grid points."""
