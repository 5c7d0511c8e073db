"""A solve and its derivatives, step by step.

Note *equation or steps*. Two things have a derivative: the differential equation that a block
stands for (``Equation``), and the steps that the block takes (``Steps``), which is what training
differentiates. A Runge–Kutta method applied to the variational equation Φ' = JΦ gives the
derivative of its own steps, so the first is here the derivative of a solve so fine that its error
doesn't matter, and the two differ by the error of the block's own steps. Only an adaptive solver
needs the variational equation as a field of its own (``nanode.analysis.variational``).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from nanode.analysis.operator import Operator, derivative
from nanode.analysis.subject import Layout, Subject
from nanode.block import ODEBlock
from nanode.gradients import Evaluations, Plan
from nanode.gradients.problem import Conditioning, Problem
from nanode.integrate import Solver, make_plan
from nanode.solvers import RK4, Adaptive, Aligned, Euler, Grid
from nanode.solvers.stepper import Carry, State
from nanode.stages import Stages


class Of(ABC):
    """What is differentiated: the equation or the steps."""

    @abstractmethod
    def plan(self, block: ODEBlock, at: Sequence[float] = ()) -> Plan:
        """The solve whose steps are differentiated, with steps that end at given times."""

    @property
    def adaptive(self) -> Adaptive | None:
        """The solver that chooses its own steps, if it does."""
        return None


@dataclass(frozen=True)
class Steps(Of):
    """The block's own steps, differentiated exactly: what training sees."""

    def plan(self, block: ODEBlock, at: Sequence[float] = ()) -> Plan:
        """The block's own, whatever the times."""
        plan = block.plan()
        if plan is None:
            raise ValueError(
                "an adaptive solver has no fixed steps to differentiate; use of=Equation()"
            )
        return plan


@dataclass(frozen=True)
class Equation(Of):
    """The differential equation itself, solved more finely than the block does.

    ``steps`` are at least that many, none across a breakpoint of the weights; by default four for
    each of the block's, and no fewer than 100. An ``Adaptive()`` solver serves the exact
    ``state_transition`` and ``sensitivity``; the others need steps.
    """

    steps: int | None = None
    solver: Solver = field(default_factory=RK4)

    def plan(self, block: ODEBlock, at: Sequence[float] = ()) -> Plan:
        """Fine steps that meet the given times and all ends of the block's own steps."""
        if isinstance(self.solver, Adaptive):
            raise ValueError(
                "this analysis goes step by step; give Equation a stepper such as nanode.RK4() "
                "in place of Adaptive"
            )
        start, end = block.interval
        own = marks(block)
        others = {t for t in at if not any(same(t, mark, block) for mark in own)}
        ends = sorted([*own, *others], reverse=end < start)
        steps = max(100, 4 * (len(own) - 1)) if self.steps is None else self.steps
        return make_plan(block.field, (start, end), Aligned(steps), self.solver, block.scale, ends)

    @property
    def adaptive(self) -> Adaptive | None:
        """The solver, where it is adaptive."""
        return self.solver if isinstance(self.solver, Adaptive) else None


def marks(block: ODEBlock) -> tuple[float, ...]:
    """The ends of the block's steps; eleven equidistant times where a solver chooses them."""
    plan = block.plan()
    if plan is not None:
        return tuple(float(point) for point in plan.grid.points)
    a, b = block.interval
    return tuple(a + (b - a) * k / 10 for k in range(11))


def same(t: float, other: float, block: ODEBlock) -> bool:
    """Whether two times of a block are one but for rounding, as 0.3 and 3 * 0.1 are."""
    return abs(t - other) <= 1e-9 * abs(block.interval[1] - block.interval[0])


class Linearised:
    """One solve of a block on an input: its states, and the derivatives of its steps.

    The state is seen as one vector of ``size`` numbers. With ``parameters`` the vector θ of all
    trained parameters is appended to it, which every step leaves as it is: ∂x(t)/∂θ is then a part
    of the derivative in the state.
    """

    def __init__(
        self, subject: Subject, of: Of, at: Sequence[float] = (), parameters: bool = False
    ) -> None:
        self.subject, self.parameters = subject, parameters
        self.plan = of.plan(subject.block, at)
        conditioning = Conditioning(subject.conditioning)
        self.problem = Problem(self.plan, subject.structure, conditioning, Evaluations())
        self.times = tuple(float(point) for point in self.plan.grid.points)
        self._theta = subject.theta if parameters else subject.x[:0]
        self.begin = torch.cat([subject.x, self._theta])
        with torch.no_grad():
            # Made once where they don't change; as functions of θ they are made in every step.
            self._weights = None if parameters else self.plan.field.weights(self.plan.stages)
            carry = self.problem.open(self._f(0), subject.state)
            parts = tuple(part for state in carry for part in state)
            self._carried = Layout(parts)
            # Without θ, which is the same in all of them.
            self._points = [self._carried.vector(parts)]
            for k in range(self.steps):
                self._points.append(self._stepped(k, self._points[-1]))
            self._check_finite()

    @property
    def size(self) -> int:
        """How many numbers the state has."""
        return self.subject.size

    @property
    def steps(self) -> int:
        """How many steps."""
        return self.plan.grid.steps

    def opening(self) -> Operator:
        """The derivative of what the first step starts from, in x (and θ)."""
        return derivative(partial(self._run, -1, size=self.size), self.begin)

    def step(self, k: int) -> Operator:
        """The derivative of step k."""
        point = torch.cat([self._points[k], self._theta])
        return derivative(partial(self._run, k, size=self._carried.size), point)

    def push(self, columns: Tensor, first: int) -> Iterator[tuple[int, Tensor]]:
        """Small changes at a grid point, as columns, seen in x after each step from there on."""
        if first == 0:
            columns = self.opening().apply(columns)
        else:
            self.require_memoryless("a transition from inside the interval")
        for k in range(first, self.steps):
            columns = self.step(k).apply(columns)
            yield k + 1, columns[: self.size]

    def reached(self, columns: Tensor, first: int, wanted: Sequence[int]) -> list[Tensor]:
        """``push``, seen at the wanted grid points."""
        found = {}
        for k, moved in self.push(columns, first):
            if k in wanted:
                found[k] = moved
            if k == wanted[-1]:
                break
        return [found[k] for k in wanted]

    def pull(self, columns: Tensor, first: int, last: int) -> Tensor:
        """The transposed: gradients in x at one grid point, as columns, pulled back to another."""
        rest = self._carried.size + len(self._theta) - self.size
        columns = torch.cat([columns, columns.new_zeros(rest, columns.shape[1])])
        for k in reversed(range(first, last)):
            columns = self.step(k).transpose(columns)
        if first == 0:
            return self.opening().transpose(columns)
        self.require_memoryless("a transition from inside the interval")
        return columns

    def transition(self, first: int, last: int) -> Operator:
        """∂x/∂x from one grid point to a later one; with ``parameters`` ∂x/∂θ beside it."""
        size = len(self.begin) if first == 0 else self.size

        def apply(columns: Tensor) -> Tensor:
            return next(moved for k, moved in self.push(columns, first) if k == last)

        return Operator(size, self.begin, apply, lambda columns: self.pull(columns, first, last))

    def jacobian(self, k: int) -> Operator:
        """∂(s·f)/∂x at the start of step k."""
        # The step's own first evaluation, which norms have statistics for, if it is at its start.
        stages, i = self.plan.stages, self.plan.stepper.first_stage(k)
        if float(stages[i].time) != self.times[k]:
            stages, i = field_stages(self.plan.grid), k
        row = self.plan.field.weights(stages[i : i + 1]).at(0)
        scale = self.subject.block.scale
        conditioning = self.subject.conditioning

        def f(x: Tensor) -> Tensor:
            state = self.subject.layout.parts(x)
            slopes = self.problem.evaluate(stages, i, row, state, conditioning)
            return scale * self.subject.layout.vector(slopes)

        return derivative(f, self._points[k][: self.size])

    def positions(self, times: Sequence[float]) -> list[int]:
        """The grid points at these times."""
        grid = self.plan.grid
        for t in times:
            if not grid.holds(t):
                nearest = float(grid.points[grid.nearest(t)])
                raise ValueError(
                    f"t = {t} is not at the end of a step (nearest: {nearest:.6g}); with "
                    "of=Steps() a solve has no other times"
                )
        return [grid.nearest(t) for t in times]

    @property
    def memoryless(self) -> bool:
        """Whether the steps go from x to x, with nothing else carried along."""
        return self._carried.size == self.size

    def require_memoryless(self, what: str) -> None:
        """Refuse steppers whose next state depends on more than the state."""
        if not self.memoryless:
            raise ValueError(
                f"{what} needs steps that go from x to x, and {self.plan.stepper!r} carries more "
                "than x from step to step; use of=Equation(), whose RK4 doesn't"
            )

    def _run(self, k: int, vector: Tensor, size: int) -> Tensor:
        """Step k of the carry in the first ``size`` numbers; the rest, θ, stays."""
        if not self.parameters:
            return self._stepped(k, vector)
        carry, theta = vector[:size], vector[size:]
        return torch.cat([self.subject.with_theta(theta, self._stepped, k, carry), theta])

    def _stepped(self, k: int, vector: Tensor) -> Tensor:
        if k < 0:
            carry = self.problem.open(self._f(0), self.subject.layout.parts(vector))
        else:
            carry = self.plan.stepper.step(
                self.problem.local(self._f(k), k), self.plan.widths[k], self._carry(vector)
            )
        return torch.cat([part.reshape(-1) for state in carry for part in state])

    def _check_finite(self) -> None:
        # All at once: a GPU then waits once.
        finite = torch.stack([torch.isfinite(point).all() for point in self._points]).tolist()
        if not all(finite):
            raise ValueError(
                f"the state is not finite after t = {self.times[finite.index(False)]:.4g}, so the "
                "solve has no derivative there; take more steps"
            )

    def _carry(self, vector: Tensor) -> Carry:
        parts, width = self._carried.parts(vector), len(self.subject.state)
        return tuple(parts[n : n + width] for n in range(0, len(parts), width))

    def _f(self, k: int) -> Callable[[int, State], State]:
        """f of stage indices, good for the evaluations of step k and the opening one."""
        first, weights = 0, self._weights
        if weights is None:
            first = self.plan.stepper.first_stage(k) if k else 0
            last = self.plan.stepper.first_stage(k + 1)
            weights = self.plan.field.weights(self.plan.stages[first:last])

        def f(i: int, at: State) -> State:
            row = weights.at(i - first)
            return self.problem.evaluate(self.plan.stages, i, row, at, self.subject.conditioning)

        return f


def field_stages(grid: Grid) -> Stages:
    """One evaluation at the start of each step, with the weights of that step."""
    return grid.stages(Euler())
