"""Explicit Runge–Kutta methods: tableaux, and one stepper for all of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from nanode.solvers.stepper import Carry, Evaluate, State, Stepper, combine


@dataclass(frozen=True)
class Tableau:
    r"""The coefficients of an explicit method of s stages.

    .. math:: k_i = f(t + c_i h,\; x + h \sum_{j<i} a_{ij} k_j), \qquad x' = x + h \sum_i b_i k_i

    Row i of ``a`` has i numbers; ``c`` are the row sums of ``a``.
    """

    order: int
    a: tuple[tuple[Fraction, ...], ...]
    b: tuple[Fraction, ...]

    @classmethod
    def of(cls, order: int, a: Sequence[Sequence[str]], b: Sequence[str]) -> "Tableau":
        """From fractions written as text."""
        rows = tuple(tuple(Fraction(entry) for entry in row) for row in a)
        return cls(order, rows, tuple(Fraction(entry) for entry in b))

    def __post_init__(self) -> None:
        if not self.b or [len(row) for row in self.a] != list(range(len(self.b))):
            raise ValueError(
                f"an explicit tableau of {len(self.b)} stages needs rows of 0, 1, … "
                f"{len(self.b) - 1} coefficients, got {[len(row) for row in self.a]}"
            )
        if abs(float(sum(self.b)) - 1) > 1e-9:  # not all numbers are fractions
            raise ValueError(f"the weights b of a tableau must add up to 1, got {sum(self.b)}")

    @property
    def c(self) -> tuple[Fraction, ...]:
        """Where in the step each stage lies."""
        return tuple(sum(row, Fraction(0)) for row in self.a)


class RungeKutta(Stepper):
    """The explicit Runge–Kutta method of a tableau."""

    def __init__(self, tableau: Tableau) -> None:
        if not isinstance(tableau, Tableau):
            raise ValueError(f"tableau must be a Tableau, got {tableau!r}")
        self.tableau = tableau
        self.order = tableau.order
        self.fractions = tableau.c
        self._a = [[float(entry) for entry in row] for row in tableau.a]
        self._b = [float(entry) for entry in tableau.b]

    def start(self, f: Evaluate, x: State) -> Carry:
        """The state alone."""
        return (x,)

    def step(self, f: Evaluate, h: float, carry: Carry) -> Carry:
        """One step."""
        (x,) = carry
        return (self.advance(f, h, x, x),)

    def advance(
        self, f: Evaluate, h: float, x: State, base: State, first: int = 0, sign: int = 1
    ) -> State:
        """base ± the increment of a step from x, using evaluations from number ``first`` on."""
        slopes: list[State] = []
        for i, row in enumerate(self._a):
            at = combine(x, *((h * a, k) for a, k in zip(row, slopes, strict=True)))
            slopes.append(f(first + i, at))
        return combine(base, *((sign * h * b, k) for b, k in zip(self._b, slopes, strict=True)))

    def __repr__(self) -> str:
        named = type(self) is not RungeKutta
        return f"{type(self).__name__}({'' if named else self.tableau})"


class Euler(RungeKutta):
    """The explicit Euler method: order 1, one evaluation a step. A residual layer is one step."""

    def __init__(self) -> None:
        super().__init__(Tableau.of(1, [[]], ["1"]))


class Midpoint(RungeKutta):
    """The explicit midpoint method: order 2, two evaluations a step."""

    def __init__(self) -> None:
        super().__init__(Tableau.of(2, [[], ["1/2"]], ["0", "1"]))


class Heun(RungeKutta):
    """Heun's method (the explicit trapezoidal rule): order 2, two evaluations a step."""

    def __init__(self) -> None:
        super().__init__(Tableau.of(2, [[], ["1"]], ["1/2", "1/2"]))


class RK4(RungeKutta):
    """The classical Runge–Kutta method: order 4, four evaluations a step."""

    def __init__(self) -> None:
        rows = [[], ["1/2"], ["0", "1/2"], ["0", "0", "1"]]
        super().__init__(Tableau.of(4, rows, ["1/6", "1/3", "1/3", "1/6"]))


class ThreeEighths(RungeKutta):
    """Kutta's 3/8 rule: order 4, four evaluations a step. torchdiffeq's "rk4" is this one."""

    def __init__(self) -> None:
        rows = [[], ["1/3"], ["-1/3", "1"], ["1", "-1", "1"]]
        super().__init__(Tableau.of(4, rows, ["1/8", "3/8", "3/8", "1/8"]))
