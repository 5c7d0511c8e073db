"""Time grids: where the steps lie, in exact fractions."""

from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import pairwise
from math import ceil, isfinite

import torch
from torch import Tensor

from nanode.solvers.stepper import Stepper
from nanode.stages import Side, Stage, Stages, rounding
from nanode.values import checked_count


@dataclass(frozen=True)
class Grid:
    """The ends of all steps, in the order of the solve: strictly rising or strictly falling."""

    points: tuple[Fraction, ...]
    #: How far they may lie from what was meant, where they come from rounded numbers: never more
    #: than an eighth of a step.
    slack: float = 0.0

    def __post_init__(self) -> None:
        _check_order(self.points)
        if self.slack:
            narrowest = min(abs(float(b - a)) for a, b in pairwise(self.points))
            object.__setattr__(self, "slack", min(self.slack, narrowest / 8))

    @property
    def steps(self) -> int:
        """How many steps."""
        return len(self.points) - 1

    def widths(self) -> tuple[float, ...]:
        """The width of each step, negative when time runs backwards."""
        return tuple(float(b - a) for a, b in pairwise(self.points))

    def nearest(self, t: float) -> int:
        """The point nearest to t."""
        rising, key = self._rising, t if self._forwards else -t
        # By their rounded values, since exact fractions are slow to compare.
        first, last = bisect_left(rising, key), bisect_right(rising, key)
        if last - first == 1:  # one alone rounds to t
            return first
        exact, around = Fraction(t), range(max(0, first - 1), min(len(rising), last + 1))
        return min(around, key=lambda k: abs(self.points[k] - exact))

    @cached_property
    def _forwards(self) -> bool:
        return self.points[0] < self.points[-1]

    @cached_property
    def _rising(self) -> list[float]:
        """The points, rounded; negative where they fall."""
        sign = 1 if self._forwards else -1
        return [sign * float(point) for point in self.points]

    def holds(self, t: float, slack: float = 0.0) -> bool:
        """Whether t is one of the points, up to rounding."""
        width = (self._rising[-1] - self._rising[0]) / self.steps
        near = max(width / 1e9, self.slack, min(slack, width / 8))
        return float(abs(self.points[self.nearest(t)] - Fraction(t))) <= near

    def reversed(self) -> "Grid":
        """The same steps, backwards."""
        return Grid(self.points[::-1], self.slack)

    def stages(self, stepper: Stepper) -> Stages:
        """Every evaluation that the stepper makes on this grid, in order."""
        stages = []
        if stepper.opening:
            stages.append(self._stage(0, 0, Fraction(0)))
        for step in range(self.steps):
            for fraction in stepper.fractions:
                stages.append(self._stage(len(stages), step, fraction))
        return Stages(tuple(stages))

    def _stage(self, index: int, step: int, fraction: Fraction) -> Stage:
        a, b = self.points[step], self.points[step + 1]
        # At the far end of a step the limit is the one from inside the step, and so at its start.
        inner: Side = "left" if (fraction == 1) == self._forwards else "right"
        if fraction not in (0, 1):
            inner = "right"
        time = float(a + (b - a) * fraction) if fraction else float(a)
        return Stage(index, step, time, a if self._forwards else b, inner, slack=self.slack)


class Schedule(ABC):
    """A rule that makes a grid for an interval."""

    @abstractmethod
    def grid(self, t0: float, t1: float, breakpoints: Sequence[float] = ()) -> Grid:
        """The grid from t0 to t1 (backwards if t1 < t0)."""


@dataclass(frozen=True)
class Uniform(Schedule):
    """Steps of equal width.

    In a solve over the weights' whole interval, step k of K uses bucket ⌊k·d/K⌋ of d.
    """

    steps: int

    def __post_init__(self) -> None:
        checked_count("steps", self.steps, hint="; times are given by nanode.Given(times)")

    def grid(self, t0: float, t1: float, breakpoints: Sequence[float] = ()) -> Grid:
        """K + 1 equidistant times."""
        a, b = Fraction(t0), Fraction(t1)
        width = (b - a) / self.steps
        points = (a + width * k for k in range(self.steps + 1))
        return Grid(tuple(points), rounding([t0, t1]))


@dataclass(frozen=True)
class Given(Schedule):
    """Steps between given times; the first and the last are the ends of the solve."""

    times: tuple[float, ...]

    def __init__(self, times: Sequence[float] | Tensor) -> None:
        if getattr(times, "requires_grad", False):
            raise ValueError("times require grad, and a grid is not differentiated in them")
        object.__setattr__(self, "times", as_numbers(times))
        if not all(isfinite(t) for t in self.times):
            raise ValueError(f"times must be finite, got {list(self.times)}")
        _check_order(self.times)

    def grid(self, t0: float, t1: float, breakpoints: Sequence[float] = ()) -> Grid:
        """The given times; at the ends, those of the solve that they are rounded from."""
        first, *inside, last = self.times
        slack = rounding(self.times)
        if abs(first - t0) > slack or abs(last - t1) > slack:
            raise ValueError(
                f"the given times run from {first} to {last}, but the solve from {t0} to {t1}; "
                f"pass interval=({first}, {last}) too"
            )
        return Grid(tuple(Fraction(t) for t in (t0, *inside, t1)), slack)


@dataclass(frozen=True)
class Aligned(Schedule):
    """At least this many steps, none of which crosses a breakpoint of the field's weights.

    Each piece between breakpoints is divided equally, into steps no wider than (t1 − t0)/steps.
    """

    steps: int

    def __post_init__(self) -> None:
        checked_count("steps", self.steps, least=1)

    def grid(self, t0: float, t1: float, breakpoints: Sequence[float] = ()) -> Grid:
        """The breakpoints and equal steps between them."""
        # Times that differ by rounding only (0.3 and 3 * 0.1) are one.
        slack = max([rounding([t0, t1]), *(rounding([t]) for t in breakpoints)])
        width = abs(t1 - t0) / self.steps
        near = max(width * 1e-9, min(slack, width / 8))
        inside = sorted(t for t in breakpoints if min(t0, t1) + near < t < max(t0, t1) - near)
        inside = [b for a, b in pairwise([min(t0, t1), *inside]) if b - a > near]
        ends = [t0, *(inside if t0 < t1 else reversed(inside)), t1]
        points = [Fraction(t0)]
        for a, b in pairwise(ends):
            # A hair less, so that a piece that rounding made too wide by an ulp isn't cut again.
            count = max(1, ceil((abs(b - a) - 2 * near) / abs(t1 - t0) * self.steps))
            low, high = Fraction(a), Fraction(b)
            points += [low + (high - low) * k / count for k in range(1, count + 1)]
        return Grid(tuple(points), slack)


def _check_order(points: Sequence[Fraction | float]) -> None:
    pairs = list(pairwise(points))
    if not pairs or not (all(a < b for a, b in pairs) or all(a > b for a, b in pairs)):
        raise ValueError(
            "a grid needs at least two times, strictly rising or strictly falling, got "
            f"{[float(point) for point in points]}"
        )


def as_numbers(times: Sequence[float] | Tensor) -> tuple[float, ...]:
    """Times as numbers, which is no use in half precision: a rounding is as wide as a step."""
    if isinstance(times, str) or not isinstance(times, Iterable) or getattr(times, "ndim", 1) != 1:
        raise ValueError(f"times must be a sequence such as [0.0, 0.5, 1.0], got {times!r}")
    if not isinstance(times, Tensor):
        return tuple(float(t) for t in times)
    if times.dtype in (torch.float16, torch.bfloat16):
        raise ValueError(
            f"times in {times.dtype} are too coarse to say which step they mean; make them in "
            "torch.float32 or torch.float64"
        )
    return tuple(float(t) for t in times.tolist())


def as_schedule(steps: int | Schedule) -> Schedule:
    """A schedule as it is; a number of steps as a uniform one."""
    return steps if isinstance(steps, Schedule) else Uniform(steps)
