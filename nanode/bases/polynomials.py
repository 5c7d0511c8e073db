"""Polynomials in time (Poly-NANODE): monomials, Chebyshev and Legendre.

The three span the same functions; they differ in conditioning. Prefer Chebyshev or Legendre beyond
degree 3: monomials on [0, 1] become nearly dependent.
"""

from abc import abstractmethod
from typing import final

import torch
from torch import Tensor

from nanode.bases.basis import Basis, Interval, one
from nanode.bases.quadrature import gauss, weighted_gram
from nanode.doubles import widened
from nanode.stages import Side
from nanode.values import checked_count


class Polynomial(Basis):
    """Polynomials of degree 0 to ``degree`` that follow from each other by recurrence.

    Shapes: t of any shape gives ``(*t.shape, degree + 1)``. A family supplies its argument x(t),
    its recurrence, and its derivatives as sums of its own members.
    """

    def __init__(self, degree: int, interval: Interval = (0.0, 1.0)) -> None:
        super().__init__(interval)
        hint = "; for weights that do not move use Constant()"
        self.degree = checked_count("degree", degree, 1, hint)
        self.size = self.degree + 1

    def values(self, t: Tensor, side: Side) -> Tensor:
        """The recurrence, run to ``degree``."""
        x = self.argument(widened(t))
        # Powers by ``pow`` have NaN second derivatives at 0; products do not.
        terms = [one(x), x]
        for n in range(1, self.degree):
            terms.append(self.following(n, x, terms[-1], terms[-2]))
        return torch.stack(terms, dim=-1).to(t.dtype)

    def argument(self, t: Tensor) -> Tensor:
        """The interval mapped to [−1, 1], both ends exactly."""
        t0, t1 = self.interval
        return ((t - t0) - (t1 - t)) / self.length

    @property
    def slope(self) -> float:
        """The derivative of the argument."""
        return 2 / self.length

    @abstractmethod
    def following(self, n: int, x: Tensor, last: Tensor, before: Tensor) -> Tensor:
        """Member n + 1 from members n and n − 1."""

    @abstractmethod
    def derivative(self, n: int) -> dict[int, float]:
        """The derivative in x of member n, as coefficients of lower members."""

    def gram(self, m: int = 0) -> Tensor:
        """Gauss–Legendre with enough nodes to be exact; zeros once m exceeds the degree."""
        m = checked_count("m", m, 0)
        lowered = torch.zeros(self.size, self.size, dtype=torch.float64, device="cpu")
        for n in range(self.size):
            for k, coefficient in self.derivative(n).items():
                lowered[k, n] = coefficient * self.slope
        nodes, weights = gauss(self.interval, count=self.size)
        values = self.values(nodes, "right")
        for _ in range(min(m, self.size)):
            values = values @ lowered
        return weighted_gram(values, weights)

    def unit(self) -> Tensor:
        """The first function is 1."""
        return torch.eye(self.size, dtype=torch.float64, device="cpu")[0]


@final
class Monomial(Polynomial):
    r"""Powers of time itself.

    .. math:: z_n(t) = t^n, \qquad n = 0, \dots, \mathrm{degree}

    Shapes: t of any shape gives ``(*t.shape, degree + 1)``. t is the raw time, not mapped. Degree 1
    on a bias is a network with time appended to its input.

    >>> Monomial(2)(torch.tensor(0.5))
    tensor([1.0000, 0.5000, 0.2500])
    """

    @property
    def slope(self) -> float:
        """The argument is t."""
        return 1.0

    def argument(self, t: Tensor) -> Tensor:
        """The raw time."""
        return t

    def following(self, n: int, x: Tensor, last: Tensor, before: Tensor) -> Tensor:
        """Once more times t."""
        return x * last

    def derivative(self, n: int) -> dict[int, float]:
        """The derivative of tⁿ is n tⁿ⁻¹."""
        return {n - 1: n} if n > 0 else {}


@final
class Chebyshev(Polynomial):
    r"""Chebyshev polynomials of the first kind, the interval mapped to [−1, 1].

    .. math:: z_n(t) = T_n(x), \qquad T_n(\cos\varphi) = \cos n\varphi,
              \qquad x = \frac{2t - t_0 - t_1}{t_1 - t_0}

    Shapes: t of any shape gives ``(*t.shape, degree + 1)``. All values lie in [−1, 1] on the
    interval; at its right end all are 1.

    >>> Chebyshev(3)(torch.tensor([0.0, 1.0]))
    tensor([[ 1., -1.,  1., -1.],
            [ 1.,  1.,  1.,  1.]])
    """

    def following(self, n: int, x: Tensor, last: Tensor, before: Tensor) -> Tensor:
        """T_{n+1} = 2x T_n − T_{n−1}."""
        return 2 * x * last - before

    def derivative(self, n: int) -> dict[int, float]:
        """T_n' = 2n (T_{n−1} + T_{n−3} + …), a final T_0 counted half."""
        return {k: 2 * n if k > 0 else n for k in range(n - 1, -1, -2)}


@final
class Legendre(Polynomial):
    r"""Legendre polynomials, the interval mapped to [−1, 1]: orthogonal on it.

    .. math:: z_n(t) = P_n(x), \qquad \int_{t_0}^{t_1} z_n^2\,dt = \frac{t_1 - t_0}{2n + 1},
              \qquad x = \frac{2t - t_0 - t_1}{t_1 - t_0}

    Shapes: t of any shape gives ``(*t.shape, degree + 1)``. At the right end all are 1.

    >>> Legendre(2)(torch.tensor([0.5, 1.0]))
    tensor([[ 1.0000,  0.0000, -0.5000],
            [ 1.0000,  1.0000,  1.0000]])
    """

    def following(self, n: int, x: Tensor, last: Tensor, before: Tensor) -> Tensor:
        """(n + 1) P_{n+1} = (2n + 1) x P_n − n P_{n−1}."""
        return ((2 * n + 1) * x * last - n * before) / (n + 1)

    def derivative(self, n: int) -> dict[int, float]:
        """P_n' = Σ (2k + 1) P_k over k = n − 1, n − 3, …"""
        return {k: 2 * k + 1 for k in range(n - 1, -1, -2)}
