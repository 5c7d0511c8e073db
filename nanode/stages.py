"""When a field is evaluated: exact times, and which side of a jump they lie on.

A solve evaluates its field at a list of *stages*. Everything that must not depend on rounding (the
bucket a step falls in, the statistics a norm uses, the mask a dropout draws) goes by a stage's
integers and exact fractions; ``time`` is for formulas only.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from struct import pack, unpack
from typing import Any, Literal, overload

from torch import Tensor

__all__ = ["Stage", "Stages"]

Side = Literal["left", "right"]


@dataclass(frozen=True, slots=True)
class Stage:
    """One evaluation of f in a solve.

    ``index`` numbers the evaluations from 0. ``start`` is the exact lower end of the step that the
    stage belongs to, whichever way the solve runs: piecewise-constant weights are those of the
    piece that holds ``start``, for the whole step. ``side`` is the limit to take where a jump falls
    exactly on ``time``. ``record`` is false when an evaluation is repeated for the backward pass:
    norms then leave their statistics alone. ``slack`` is how far ``start`` may lie from what was
    meant, where it came from rounded numbers.

    In a compiled solve one stage stands for all: ``index`` and ``time`` are tensors there.
    """

    index: int | Tensor
    step: int
    time: float | Tensor
    start: Fraction
    side: Side = "right"
    record: bool = True
    slack: float = 0.0

    @classmethod
    def alone(cls, t: float | Tensor, side: Side = "right") -> "Stage":
        """An evaluation outside any solve, as when a person calls ``field(t, x)``."""
        if isinstance(t, Tensor):
            # Reading the number would make a GPU wait, and only exact grids need it.
            return cls(index=-1, step=-1, time=t, start=Fraction(0), side=side, record=False)
        if not math.isfinite(t):
            raise ValueError(f"t must be a finite number, got {t!r}")
        t = float(t)
        return cls(-1, -1, t, Fraction(t), side, record=False, slack=rounding([t]))


#: Whole numbers, and others of so few binary digits, are taken as exact; times that are meant to
#: lie on an edge arrive within so many units in the last place.
EXACT_DIGITS = 16
ULPS = 4


def rounding(times: Iterable[float]) -> float:
    """How far times may lie from what was meant, having been rounded on the way.

    A few units in the last place of the largest: of single precision if all are such numbers. 0.7
    in single precision lies below 7/10, and taken literally in the bucket before.

    >>> rounding([0.0, 0.5, 1.0])
    0.0
    >>> f"{rounding([0.0, 0.7]):.0e}, {rounding([0.0, 0.699999988079071]):.0e}"
    '6e-16, 3e-07'
    """
    times = list(times)
    rounded = [t for t in times if not _exact(t)]
    if not rounded:
        return 0.0
    single = all(abs(t) < 3e38 and unpack("f", pack("f", t))[0] == t for t in rounded)
    return ULPS * (2.0**-23 if single else 2.0**-52) * max(map(abs, times))


def _exact(t: float) -> bool:
    fraction = Fraction(t)  # whole, or with an odd numerator
    return fraction.denominator == 1 or fraction.numerator.bit_length() <= EXACT_DIGITS


@dataclass(eq=False)
class Stages(Sequence[Stage]):
    """The stages of one solve, in order of evaluation, with room for what is computed from them.

    Compared by identity, so that a table of basis values can be kept beside the stages it was made
    for (``memo``); copies and pickles start with an empty one.
    """

    stages: tuple[Stage, ...]
    memo: dict[Any, Any] = field(default_factory=dict, repr=False)

    @classmethod
    def alone(cls, times: Iterable[float]) -> "Stages":
        """Single evaluations at these times, outside any solve."""
        return cls(tuple(map(Stage.alone, times)))

    @overload
    def __getitem__(self, index: int) -> Stage: ...
    @overload
    def __getitem__(self, index: slice) -> "Stages": ...
    def __getitem__(self, index: int | slice) -> "Stage | Stages":
        if not isinstance(index, slice):
            return self.stages[index]
        key = ("slice", index.start, index.stop, index.step)
        if key not in self.memo:
            self.memo[key] = Stages(self.stages[index])
        part: Stages = self.memo[key]
        return part

    def __len__(self) -> int:
        return len(self.stages)

    def __iter__(self) -> Iterator[Stage]:
        return iter(self.stages)

    def __getstate__(self) -> dict[str, Any]:
        return {"stages": self.stages, "memo": {}}

    @property
    def repeated(self) -> "Stages":
        """The same evaluations once more, for a backward pass: nothing is recorded this time."""
        if "repeated" not in self.memo:
            again = tuple(replace(stage, record=False) for stage in self.stages)
            self.memo["repeated"] = Stages(again)
        repeated: Stages = self.memo["repeated"]
        return repeated
