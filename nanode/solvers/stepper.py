"""The interface of a stepper: one step of x, with the field behind a function."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from fractions import Fraction

import torch
from torch import Tensor

#: The state of the equation: one or more tensors.
State = tuple[Tensor, ...]
#: What a stepper carries from step to step: the state first, then whatever else it needs.
Carry = tuple[State, ...]
#: f at the j-th evaluation of the current step; j = -1 is the one before the first step.
Evaluate = Callable[[int, State], State]


class Stepper(ABC):
    """One step of a fixed-grid method.

    ``order`` is the order of convergence; ``fractions`` says where in the step each evaluation
    lies (0 its start, 1 its end); ``opening`` is true where one evaluation at the very start comes
    before the first step; ``carries_slopes`` where a slope of one step enters the next, so that
    weights that jump between the two cost the method its order. Steppers hold no state, so one
    serves any number of solves.
    """

    order: int
    fractions: tuple[Fraction, ...]
    opening: bool = False
    carries_slopes: bool = False

    def bind(self, steps: int) -> "Stepper":
        """The stepper for a solve of that many steps."""
        return self

    def first_stage(self, k: int) -> int:
        """The index of the first evaluation of step k."""
        return int(self.opening) + k * len(self.fractions)

    @abstractmethod
    def start(self, f: Evaluate, x: State) -> Carry:
        """What the first step starts from."""

    @abstractmethod
    def step(self, f: Evaluate, h: float, carry: Carry) -> Carry:
        """One step of width h (negative when time runs backwards)."""


class Invertible(Stepper):
    """A stepper whose step can be undone in closed form, up to rounding."""

    @abstractmethod
    def invert(self, f: Evaluate, h: float, carry: Carry) -> Carry:
        """What ``step`` started from, given where it arrived."""


def combine(x: State, *terms: tuple[float, State]) -> State:
    """x + Σ c·k, in x's dtype whatever the dtype of f's values (fp32 state, bf16 f)."""
    total = x
    for c, k in terms:
        if c != 0:
            total = tuple(_add(a, b, c) for a, b in zip(total, k, strict=True))
    return total


def blend(x: State, y: State, weight: float) -> State:
    """x + weight·(y − x)."""
    return tuple(torch.lerp(a, b, weight) for a, b in zip(x, y, strict=True))


def _add(a: Tensor, b: Tensor, c: float) -> Tensor:
    total = torch.add(a, b, alpha=c)
    return total if total.dtype == a.dtype else total.to(a.dtype)
