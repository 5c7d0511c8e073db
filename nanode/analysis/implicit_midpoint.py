"""A step that keeps lengths where the flow does: the implicit midpoint rule."""

from fractions import Fraction

import torch

from nanode.solvers.stepper import Carry, Evaluate, State, Stepper, combine
from nanode.values import checked_count


class ImplicitMidpoint(Stepper):
    r"""The implicit midpoint rule: order 2, keeps every quadratic invariant of the flow.

    .. math:: x' = x + h\, f\left(t + \tfrac h2, \tfrac{x + x'}2\right)

    For dx/dt = A(t) x a step is the Cayley transform :math:`(I - \tfrac h2 A)^{-1}(I + \tfrac h2
    A)` at its middle: orthogonal where A is skew-symmetric, as explicit methods' never are. The
    equation is solved by fixed-point iteration, which needs :math:`\tfrac h2 \|J\| < 1`; where it
    has not settled after ``iterations`` evaluations the state becomes NaN. For analyses and small
    experiments: other solvers are cheaper to train with, and norms with running statistics count
    every iteration.

    >>> import nanode, torch
    >>> turn = torch.tensor([[0.0, -1.0], [1.0, 0.0]], dtype=torch.float64)
    >>> x = torch.tensor([1.0, 0.0], dtype=torch.float64)
    >>> y = nanode.odeint(
    ...     lambda t, x: x @ turn.T, x, steps=1000, interval=(0, 100), solver=ImplicitMidpoint()
    ... )
    >>> abs(float(y.norm()) - 1) < 1e-12
    True
    """

    order = 2
    fractions = (Fraction(1, 2),)

    def __init__(self, iterations: int = 20) -> None:
        self.iterations = checked_count("iterations", iterations, least=1)

    def start(self, f: Evaluate, x: State) -> Carry:
        """The state alone."""
        return (x,)

    def step(self, f: Evaluate, h: float, carry: Carry) -> Carry:
        """One step."""
        (x,) = carry
        middle = before = x
        for _ in range(self.iterations):
            before, middle = middle, combine(x, (h / 2, f(0, middle)))
        # x' = 2m - x, the step along f(m).
        arrived = tuple(2 * m - a for m, a in zip(middle, x, strict=True))
        # Not an error raised: reading the number isn't possible under vmap, and makes a GPU wait.
        change = _largest(tuple(a - b for a, b in zip(middle, before, strict=True)))
        slack = torch.finfo(change.dtype).eps ** 0.75 * (1 + _largest(middle))
        return (tuple(torch.where(change <= slack, part, torch.nan) for part in arrived),)

    def __repr__(self) -> str:
        return f"ImplicitMidpoint(iterations={self.iterations})"


def _largest(state: State) -> torch.Tensor:
    return torch.stack([part.abs().amax() for part in state]).amax()
