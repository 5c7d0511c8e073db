r"""Weights with random coefficients: the paper's figure of Chebyshev polynomials, and its claim.

The paper shows four Chebyshev polynomials of degree 4 with LeCun-normal coefficients and says that
their values "can grow or contract rapidly, potentially leading to poorly conditioned weight
matrices". With independent normal coefficients of variance 1/n,

.. math:: W_{ij}(t) = \sum_k \alpha_{kij} z_k(t) \sim \mathcal{N}(0, \|z(t)\|^2 / n)

independently of each other at every t. So W(t) is a Gaussian matrix times :math:`\|z(t)\|`: its
size follows the norm of the basis, and its condition number has one distribution at all times and
for all bases, that of a Gaussian matrix. What differs between bases is :math:`\|z(t)\|`, and the
conditioning of the map from coefficients to functions.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nanode.analysis.conditioning import basis_condition
from nanode.analysis.drawing import Findings, axes, new_figure
from nanode.bases import Basis, Chebyshev, Legendre, Monomial, Trigonometric

#: Families by the number of functions, an odd one.
FAMILIES: Mapping[str, Callable[[int], Basis]] = {
    "Chebyshev": lambda d: Chebyshev(degree=d - 1),
    "Legendre": lambda d: Legendre(degree=d - 1),
    "monomial": lambda d: Monomial(degree=d - 1),
    "trigonometric, ω = 1": lambda d: Trigonometric(order=d // 2),
    "trigonometric, ω = 2π": lambda d: Trigonometric(order=d // 2, frequency=2 * torch.pi),
}


@dataclass(frozen=True, eq=False)
class RandomWeights(Findings):
    """Random weights in a basis at ``times`` (m,), over many draws."""

    derived = ("swing",)

    times: Tensor
    #: ‖z(t)‖, (m,): the spread of a weight over its spread with one constant coefficient.
    size: Tensor
    #: Medians over the draws of ‖W(t)‖₂ and of its condition number, (m,).
    norm: Tensor
    condition: Tensor
    #: Of each draw's largest condition number over time, the median.
    worst: float

    @property
    def swing(self) -> float:
        """The largest over the smallest size of the weights along time."""
        return float(self.size.max() / self.size.min())

    def plot(self, ax: Any = None, label: str | None = None, **style: Any) -> Any:
        """The median condition number over time."""
        ax = axes(ax)
        ax.semilogy(self.times, self.condition, label=label, **style)
        ax.set_xlabel("t")
        ax.set_ylabel("condition number of W(t)")
        return ax


def random_weights(
    basis: Basis, width: int = 16, draws: int = 100, points: int = 101, seed: int = 0
) -> RandomWeights:
    """Size and conditioning of W(t), (width, width), with LeCun-normal coefficients.

    >>> import nanode
    >>> round(random_weights(nanode.Chebyshev(degree=4), draws=2).swing, 3)
    1.494
    """
    times, z = _values(basis, points)
    alpha = lecun_normal((draws, basis.size, width, width), seed)
    norms, conditions = [], []
    for row in z:
        values = torch.linalg.svdvals(torch.einsum("k,akij->aij", row, alpha))
        norms.append(values[:, 0])
        conditions.append(values[:, 0] / values[:, -1])
    condition = torch.stack(conditions)
    return RandomWeights(
        times,
        z.norm(dim=1),
        torch.stack(norms).median(dim=1).values,
        condition.median(dim=1).values,
        float(condition.amax(0).median()),
    )


def lecun_normal(shape: tuple[int, ...], seed: int) -> Tensor:
    """Independent normal numbers of variance 1/fan_in, the last axis."""
    generator = torch.Generator().manual_seed(seed)
    normal = torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu")
    return normal / math.sqrt(shape[-1])


def _values(basis: Basis, points: int) -> tuple[Tensor, Tensor]:
    times = torch.linspace(*basis.interval, points, dtype=torch.float64, device="cpu")
    return times, basis(times)


@dataclass(frozen=True, eq=False)
class ChebyshevFigure(Findings):
    """The paper's figure, and what becomes of its claim."""

    times: Tensor
    #: Four weights in time, (m, 4), and with t itself as the argument of the polynomials.
    weights: Tensor
    unmapped: Tensor
    by_basis: dict[str, RandomWeights]
    #: Condition numbers of the bases by how many functions they have.
    functions: tuple[int, ...]
    conditions: dict[str, tuple[float, ...]]

    def figure(self) -> Any:
        """Four panels: the weights, their size, their conditioning, and that of the bases."""
        figure = new_figure(10, 7.5)
        values, sizes, conditions, bases = figure.subplots(2, 2).ravel()
        for n in range(self.weights.shape[1]):
            values.plot(self.times, self.weights[:, n], color=f"C{n}")
            values.plot(self.times, self.unmapped[:, n], "--", color=f"C{n}", linewidth=0.8)
        values.set_title("four weights, Chebyshev of degree 4\n(dashed: t not mapped to [−1, 1])")
        for name, found in self.by_basis.items():
            sizes.plot(found.times, found.size, label=f"{name}: ×{found.swing:.2f}")
            found.plot(conditions, label=f"{name}, at worst {found.worst:.0f}")
        sizes.set_title("‖z(t)‖: the size of random weights\n(largest over smallest)")
        conditions.set_title("condition of a random W(t)\n(median; the worst t of a draw)")
        conditions.set_ylim(1, 1000)
        for name, along in self.conditions.items():
            bases.semilogy(self.functions, along, marker=".", label=name)
        bases.set_title("condition of the basis")
        bases.set_xlabel("number of functions")
        for ax in (values, sizes):
            ax.set_xlabel("t")
        for ax in (sizes, conditions, bases):
            ax.legend(fontsize=8)
        return figure


def chebyshev_figure(draws: int = 100, points: int = 101) -> ChebyshevFigure:
    """Reproduce the paper's figure of random Chebyshev weights, and examine its claim."""
    basis = Chebyshev(degree=4)
    times, z = _values(basis, points)
    alpha = lecun_normal((basis.size, 4), seed=0)
    unmapped = Chebyshev(degree=4, interval=(-1.0, 1.0))(times)
    functions = tuple(range(3, 22, 2))
    return ChebyshevFigure(
        times,
        z @ alpha,
        unmapped @ alpha,
        {
            name: random_weights(make(basis.size), draws=draws, points=points)
            for name, make in FAMILIES.items()
        },
        functions,
        {
            name: tuple(basis_condition(make(d)).condition for d in functions)
            for name, make in FAMILIES.items()
        },
    )
