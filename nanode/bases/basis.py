"""The interface of a basis: d fixed functions of time on an interval."""

import math
from abc import ABC, abstractmethod
from fractions import Fraction
from numbers import Real

import torch
from torch import Tensor, nn

from nanode.stages import Side, Stages

Interval = tuple[float, float]


class Basis(nn.Module, ABC):
    r"""d functions of time, :math:`z: [t_0, t_1] \to \mathbb{R}^d`, with nothing to learn.

    ``basis(t)`` maps times of any shape to values of shape ``(*t.shape, size)`` in t's dtype and on
    t's device, differentiable in t. At a jump ``side`` picks the limit; smooth bases ignore it.

    Outside the interval polynomials and waves extrapolate by their formula, buckets, hats and
    splines hold the value they have at the end. ``odeint`` and ``ODEBlock`` check that a solve
    stays inside. A time that is NaN gives NaN in every function, the constant one included.
    """

    #: How many functions.
    size: int
    #: Times inside the interval where a function or one of its derivatives jumps.
    breakpoints: tuple[float, ...] = ()
    #: Those breakpoints where a function itself jumps.
    jumps: tuple[float, ...] = ()

    def __init__(self, interval: Interval = (0.0, 1.0)) -> None:
        super().__init__()
        self.interval = checked_interval(interval)

    @property
    def length(self) -> float:
        """t1 − t0."""
        return self.interval[1] - self.interval[0]

    def forward(self, t: Tensor | float, side: Side = "right") -> Tensor:
        """Values at t, of shape ``(*t.shape, size)``."""
        if side not in ("left", "right"):
            raise ValueError(f'side must be "left" or "right", got {side!r}')
        return self.values(as_time(t), side)

    @abstractmethod
    def values(self, t: Tensor, side: Side) -> Tensor:
        """What ``forward`` returns, for a floating-point tensor t."""

    @abstractmethod
    def gram(self, m: int = 0) -> Tensor:
        r"""The matrix :math:`\int_{t_0}^{t_1} z^{(m)} (z^{(m)})^\top dt`, exact, in float64 on CPU.

        Where the m-th derivative is no function, m-th differences of the coefficients scaled by
        width^(1−2m) take its place; the class says so.
        """

    @abstractmethod
    def unit(self) -> Tensor:
        """Coefficients c with c · z(t) = 1 for all t, in float64 on CPU; without any, zeros."""

    def on(self, stages: Stages) -> Tensor:
        """Values at the stages of a solve, of shape ``(len(stages), size)``, in float64 on CPU."""
        times = torch.tensor(numbers(stages), dtype=torch.float64, device="cpu")
        left = torch.tensor([s.side == "left" for s in stages], dtype=torch.bool, device="cpu")
        sides: list[Side] = sorted({s.side for s in stages}) or ["right"]
        at = {side: self.values(times, side) for side in sides}
        if len(at) == 1:
            return at[sides[0]]
        return torch.where(left[:, None], at["left"], at["right"])

    def extra_repr(self) -> str:
        """What ``print(basis)`` shows between the brackets."""
        return f"size={self.size}, interval={self.interval}"


def checked_interval(interval: Interval) -> Interval:
    """The interval as two floats, or a ValueError."""
    try:
        t0, t1 = (float(end) for end in interval)
    except (TypeError, ValueError):
        raise ValueError(f"interval must be two numbers (t0, t1), got {interval!r}") from None
    if not (math.isfinite(t0) and math.isfinite(t1) and t0 < t1):
        raise ValueError(f"interval must satisfy t0 < t1, both finite, got {interval!r}")
    if not math.isfinite(t1 - t0):
        raise ValueError(f"interval must have a finite length t1 - t0, got {interval!r}")
    return t0, t1


def numbers(stages: Stages) -> list[float]:
    """The times of the stages, or a ValueError where one is a tensor."""
    times = [stage.time for stage in stages]
    if any(isinstance(time, Tensor) for time in times):
        # Reading it would cut its gradient, and make a GPU wait.
        raise ValueError("stages must hold numbers as times, got a tensor; call basis(t) for it")
    return [float(time) for time in times]


def as_time(t: Tensor | float) -> Tensor:
    """t as a floating-point tensor; a Python number takes the default dtype and must be finite."""
    if isinstance(t, Tensor):
        if t.is_complex():
            raise ValueError(f"t must be real, got a tensor of {t.dtype}; pass t.real")
        return t if t.is_floating_point() else t.to(torch.get_default_dtype())
    # Compared, since torch.compile can't trace ``math.isfinite`` of a number it keeps symbolic.
    if not isinstance(t, Real) or not -math.inf < t < math.inf:
        raise ValueError(f"t must be a finite number or a tensor, got {t!r}")
    return torch.tensor(float(t))


def one(t: Tensor) -> Tensor:
    """The function 1 at t, tied to t: its gradient in t exists and is 0, and NaN stays NaN."""
    # Not 0 · t + 1: the compiler folds a product with zero, and NaN would come out as 1.
    return torch.where(t.isnan(), t, torch.ones_like(t))


def even(interval: Interval, pieces: int) -> tuple[float, ...]:
    """The ends of equal pieces of the interval, each the float nearest to the exact fraction.

    >>> even((0.0, 1.0), 10)[3]
    0.3
    """
    t0, t1 = (Fraction(end) for end in interval)
    return tuple(float(t0 + (t1 - t0) * i / pieces) for i in range(pieces + 1))
