"""The interface of a gradient method: how a solve is differentiated."""

from abc import ABC, abstractmethod

from nanode.gradients.problem import Plan, Problem
from nanode.solvers.stepper import State


class Gradient(ABC):
    """Runs a solve and differentiates it. What all share, and how they differ:

    =============  =========================  ==========================  =========================
    method         gradient                   states held for backward    evaluations in backward
    =============  =========================  ==========================  =========================
    Backprop       exact                      all, with f's activations   none
    Checkpointed   exact                      √K by default               one a stage
    Reversal       exact up to rounding       one; two (ReversibleHeun)   one a stage
    Backsolve      that of the continuous     one                         one a stage
                   problem, inexact
    =============  =========================  ==========================  =========================
    """

    def check(self, plan: Plan) -> None:  # noqa: B027 (most methods serve every plan)
        """Raise where this method can't serve the plan, warn where it is known to be wrong."""

    @abstractmethod
    def solve(self, problem: Problem, x: State) -> list[State]:
        """The states at the wanted grid points."""
