"""Steppers that can be undone, so that a backward pass needs no stored states.

All three carry a second copy of the state, and invert a step with the evaluations that the step
itself made: the backward pass costs one evaluation and one vector–Jacobian product each.

Note *stability*: being undone exactly means no damping. On a contracting mode (dx/dt = μx, μ < 0)
leapfrog and reversible Heun have a parasitic mode of size one that any error feeds, and a coupled
method amplifies it unless h·|μ| ≤ 1 − λ, while rounding errors grow as λ^−K when the K steps are
undone. ``Coupled`` therefore chooses 1 − λ = c/(K + c): the growth is at most e^c, and the modes
with |μ|·(t1 − t0) ≤ cK/(K + c) are safe. ``docs/solvers.md`` shows both in pictures.
"""

import copy
from fractions import Fraction

from nanode.solvers.runge_kutta import Euler, RungeKutta
from nanode.solvers.stepper import Carry, Evaluate, Invertible, State, blend, combine

_HALF = Fraction(1, 2)


class Leapfrog(Invertible):
    r"""The asynchronous leapfrog method: order 2, one evaluation a step and one to open.

    .. math:: x_{1/2} = x + \tfrac h2 v, \quad v' = 2 f(t + \tfrac h2, x_{1/2}) - v, \quad
              x' = x_{1/2} + \tfrac h2 v', \qquad v_0 = f(t_0, x_0)

    The integrator of MALI (Zhuang et al., 2021), whose backward pass here needs one evaluation a
    step instead of two.
    """

    order = 2
    fractions = (_HALF,)
    opening = True

    def start(self, f: Evaluate, x: State) -> Carry:
        """The state and its velocity, in the state's dtype: v is summed up like x."""
        v = f(-1, x)
        return x, tuple(b.to(a.dtype) for a, b in zip(x, v, strict=True))

    def step(self, f: Evaluate, h: float, carry: Carry) -> Carry:
        """Half a step along v, v reflected at f, half a step along the new v."""
        x, v = carry
        half = combine(x, (h / 2, v))
        v = _reflected(v, f(0, half))
        return combine(half, (h / 2, v)), v

    def invert(self, f: Evaluate, h: float, carry: Carry) -> Carry:
        """The same with time reversed: a reflection undoes itself."""
        x, v = carry
        half = combine(x, (-h / 2, v))
        v = _reflected(v, f(0, half))
        return combine(half, (-h / 2, v)), v

    def __repr__(self) -> str:
        return "Leapfrog()"


class ReversibleHeun(Invertible):
    r"""The reversible Heun method: order 2, one evaluation a step and one to open.

    .. math:: \hat x' = 2x - \hat x + h f, \quad f' = f(t + h, \hat x'), \quad
              x' = x + \tfrac h2 (f + f'), \qquad \hat x_0 = x_0, \; f_0 = f(t_0, x_0)

    (Kidger et al., 2021.)
    """

    order = 2
    fractions = (Fraction(1),)
    opening = True
    carries_slopes = True

    def start(self, f: Evaluate, x: State) -> Carry:
        """The state, its shadow and the slope there."""
        return x, x, f(-1, x)

    def step(self, f: Evaluate, h: float, carry: Carry) -> Carry:
        """The shadow reflected at x along the slope, then the trapezoidal rule for x."""
        x, shadow, slope = carry
        shadow = combine(_reflected(shadow, x), (h, slope))
        after = f(0, shadow)
        return combine(x, (h / 2, slope), (h / 2, after)), shadow, after

    def invert(self, f: Evaluate, h: float, carry: Carry) -> Carry:
        """The shadow goes back along the known slope; the slope before is evaluated there."""
        x, shadow, after = carry
        shadow = combine(_reflected(shadow, x), (-h, after))
        # The slope before this step is the evaluation of the step before it.
        slope = f(-1, shadow)
        return combine(x, (-h / 2, slope), (-h / 2, after)), shadow, slope

    def __repr__(self) -> str:
        return "ReversibleHeun()"


class Coupled(Invertible):
    r"""The algebraically reversible form of any explicit method (McCallum & Foster, 2024).

    .. math:: y' = \lambda y + (1 - \lambda) z + \Psi_h(t, z), \qquad
              z' = z - \Psi_{-h}(t + h, y')

    where :math:`\Psi_h(t, x)` is the increment of a step of ``method``; y is the state, z a second
    copy. The method's order is kept, at twice its evaluations a step. ``coupling`` is
    :math:`\lambda`; by default :math:`\lambda = K / (K + c)` for K steps, with c =
    ``damping``. The guide to solvers says what it trades.
    """

    def __init__(
        self,
        method: RungeKutta | None = None,
        coupling: float | None = None,
        damping: float = 2.0,
    ) -> None:
        self.method = method if method is not None else Euler()
        if not isinstance(self.method, RungeKutta):
            raise ValueError(f"Coupled needs an explicit Runge–Kutta method, got {method!r}")
        if coupling is not None and not 0 < coupling <= 1:
            raise ValueError(f"coupling must lie in (0, 1], got {coupling!r}")
        if not damping >= 0:
            raise ValueError(f"damping must be at least 0, got {damping!r}")
        self.coupling, self.damping = coupling, damping
        self.order = self.method.order
        there = self.method.fractions
        self.fractions = (*there, *(1 - c for c in there))

    def bind(self, steps: int) -> "Coupled":
        """The stepper with its coupling settled."""
        if self.coupling is not None:
            return self
        bound = copy.copy(self)  # whatever class it is of
        bound.coupling = steps / (steps + self.damping)
        return bound

    def start(self, f: Evaluate, x: State) -> Carry:
        """The state twice."""
        return x, x

    def step(self, f: Evaluate, h: float, carry: Carry) -> Carry:
        """y moves by a step from z, then z by a step back from the new y."""
        y, z = carry
        y = self.method.advance(f, h, z, blend(y, z, 1 - self._coupling()))
        return y, self._moved(f, h, z, y, sign=-1)

    def invert(self, f: Evaluate, h: float, carry: Carry) -> Carry:
        """z moves back, then y is solved for."""
        y, z = carry
        z = self._moved(f, h, z, y, sign=1)
        # λy + (1 − λ)z = y' − Ψ, hence y = z + (y' − Ψ − z)/λ.
        undone = self.method.advance(f, h, z, y, sign=-1)
        return blend(z, undone, 1 / self._coupling()), z

    def _moved(self, f: Evaluate, h: float, z: State, y: State, sign: int) -> State:
        """z ± Ψ₋ₕ(t + h, y)."""
        return self.method.advance(f, -h, y, z, first=len(self.method.fractions), sign=sign)

    def _coupling(self) -> float:
        assert self.coupling is not None, "a solve binds the stepper first"
        return self.coupling

    def __repr__(self) -> str:
        return f"Coupled({self.method!r}, coupling={self.coupling})"


def _reflected(v: State, at: State) -> State:
    """2·at − v, in v's dtype."""
    return tuple(b.to(a.dtype).mul(2).sub(a) for a, b in zip(v, at, strict=True))
