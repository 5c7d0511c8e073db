r"""How nearly dependent the functions of a basis are.

On a grid of m times the values of d functions are a matrix Z of shape (m, d), a Vandermonde matrix
where they are powers. Its condition number is by how much relative errors of a function can be
magnified in its coefficients, and how elongated the loss becomes in them: gradient descent in
coefficients feels the square of it.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from nanode.analysis.drawing import Findings, axes
from nanode.analysis.linearised import field_stages
from nanode.bases import Basis
from nanode.solvers import Uniform
from nanode.stages import Stages
from nanode.values import checked_count


@dataclass(frozen=True, eq=False)
class BasisCondition(Findings):
    """``singular_values`` (d,) of a basis on a grid of ``points`` times, each function as it is."""

    derived = ("condition", "rank")

    points: int
    singular_values: Tensor

    @property
    def condition(self) -> float:
        """The largest over the smallest; double precision can't tell numbers beyond 1e16 apart."""
        return float(self.singular_values[0] / self.singular_values[-1])

    @property
    def rank(self) -> int:
        """How many functions double precision can tell apart."""
        largest = max(self.points, len(self.singular_values))
        cutoff = torch.finfo(torch.float64).eps * largest * self.singular_values[0]
        return int((self.singular_values > cutoff).sum())

    def plot(self, ax: Any = None, label: str | None = None, **style: Any) -> Any:
        """The singular values relative to the largest."""
        ax = axes(ax)
        relative = (self.singular_values / self.singular_values[0]).clamp_min(1e-20)
        label = label or f"condition {self.condition:.2g}, rank {self.rank}"
        ax.semilogy(range(1, len(relative) + 1), relative, marker=".", label=label, **style)
        ax.set_xlabel("number of the singular value")
        ax.legend(fontsize=7)
        return ax


def basis_condition(basis: Basis, points: int = 1000) -> BasisCondition:
    """Singular values and condition number of a basis at the starts of equal steps.

    With many points it comes near that of the functions themselves, the root of that of their Gram
    matrix (for 21 Chebyshev polynomials 12 % above it at 1,000 points); with as many as a block has
    steps, it is that of what the block sees.

    >>> import nanode
    >>> round(basis_condition(nanode.Bucketed(4), points=8).condition, 6)
    1.0
    >>> basis_condition(nanode.Trigonometric(order=10)).rank  # of 21, at the paper's frequency
    17
    """
    if not isinstance(basis, Basis):
        raise ValueError(f"expected a basis such as nanode.Chebyshev(degree=4), got {basis!r}")
    steps = checked_count("points", points, least=basis.size, hint=", the number of functions")
    return BasisCondition(steps, torch.linalg.svdvals(basis.on(_starts(steps, basis.interval))))


@lru_cache(maxsize=4)  # exact fractions take longer than all else here
def _starts(steps: int, interval: tuple[float, float]) -> Stages:
    return field_stages(Uniform(steps).grid(*interval))
