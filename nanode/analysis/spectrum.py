r"""How fast a learned weight moves: its energy by order.

Any trajectory W(t), whatever its basis, has Legendre coefficients on its interval,

.. math:: w_n = \int W(t)\, p_n(t)\, dt, \qquad \int p_m p_n = \delta_{mn}, \qquad
          \sum_n \|w_n\|^2 = \int \|W(t)\|^2 dt

so energies by order compare across bases: order 0 is the constant part, high orders are fast
motion. An expansion also has energies of its own coefficients, :math:`\|\alpha_k\|^2 \int z_k^2`,
which add up to the same only where the basis is orthogonal.
"""

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nanode.analysis.drawing import axes, plain
from nanode.bases.basis import checked_count
from nanode.bases.quadrature import gauss
from nanode.block import ODEBlock
from nanode.fields import Field
from nanode.stages import Stage, Stages
from nanode.trajectories import Expansion


@dataclass(frozen=True, eq=False)
class TrajectorySpectrum:
    """Energies of each moving weight, by name."""

    #: By Legendre order, (orders + 1,): any trajectory.
    orders: dict[str, Tensor]
    #: ∫‖W(t)‖² dt; what the orders leave out lies above the highest.
    total: dict[str, float]
    #: By coefficient, (d,): expansions only.
    coefficients: dict[str, Tensor]

    @property
    def moving(self) -> dict[str, float]:
        """The share of each weight's energy that is not its mean over time."""
        return {
            name: max(0.0, 1 - float(by_order[0]) / self.total[name]) if self.total[name] else 0.0
            for name, by_order in self.orders.items()
        }

    def numbers(self) -> dict[str, Any]:
        """All of it, for JSON."""
        found: dict[str, Any] = plain({**vars(self), "moving": self.moving})
        return found

    def plot(self, ax: Any = None, **style: Any) -> Any:
        """The share of the energy by Legendre order, one line a weight."""
        ax = axes(ax)
        tiny = 1e-20
        for name, by_order in self.orders.items():
            share = (by_order / max(self.total[name], tiny)).clamp_min(tiny).cpu()
            ax.semilogy(range(len(share)), share, marker=".", label=name, **style)
        ax.set_ylim(bottom=1e-12)
        ax.set_xlabel("Legendre order in t")
        ax.set_ylabel("share of the energy")
        ax.legend(fontsize=7)
        return ax


@torch.no_grad()
def trajectory_spectrum(field: Field | ODEBlock, orders: int = 30) -> TrajectorySpectrum:
    """Energy by order of every weight of a field that moves.

    Integrals are Gauss–Legendre sums on each piece between breakpoints, exact for polynomials.

    >>> import nanode, torch
    >>> field = nanode.TimeVarying(torch.nn.Linear(2, 2, bias=False), nanode.Chebyshev(degree=3))
    >>> trajectory_spectrum(field).moving["weight"] < 1e-6  # held constant at the start
    True
    """
    inner = field.field if isinstance(field, ODEBlock) else field
    interval = inner.interval or (0.0, 1.0)
    orders = checked_count("orders", orders, least=0)
    edges = sorted({*interval, *(t for t in inner.breakpoints if interval[0] < t < interval[1])})
    count = orders + 16
    nodes, weights = gauss(edges, count)
    moving = inner.weights(_stages(nodes.tolist(), edges, count)).moving
    if not moving:
        raise ValueError("no weight of this field moves in time")
    polynomials = _orthonormal(nodes, interval, orders)
    by_order, total = {}, {}
    for name, table in moving.items():
        flat = table.flatten(1).double().cpu()
        by_order[name] = (polynomials.T @ (weights[:, None] * flat)).square().sum(1)
        total[name] = float(weights @ flat.square().sum(1))
    return TrajectorySpectrum(by_order, total, _own_energies(inner))


def _stages(nodes: list[float], edges: list[float], count: int) -> Stages:
    """Evaluations at so many nodes a piece, each by the exact start of its piece."""
    # Nodes crowd at the ends of a piece: by their times alone some would count to the next one.
    starts = [Fraction(edge) for edge in edges[:-1] for _ in range(count)]
    return Stages(
        tuple(
            Stage(n, n // count, time, start)
            for n, (time, start) in enumerate(zip(nodes, starts, strict=True))
        )
    )


def _orthonormal(times: Tensor, interval: tuple[float, float], orders: int) -> Tensor:
    """Legendre polynomials scaled to unit energy, (times, orders + 1)."""
    t0, t1 = interval
    values = np.polynomial.legendre.legvander(((2 * times - t0 - t1) / (t1 - t0)).numpy(), orders)
    scale = np.sqrt((2 * np.arange(orders + 1) + 1) / (t1 - t0))
    return torch.from_numpy(values * scale)


def _own_energies(field: Field) -> dict[str, Tensor]:
    found = {}
    for place, part in field.named_modules():
        if isinstance(part, Expansion):
            energy = part.basis.gram(0).diagonal()
            prefix = f"{place}." if place not in ("", "trajectory") else ""
            for name, alpha in part.coefficients:
                found[prefix + name] = alpha.double().cpu().square().sum(1) * energy
    return found
