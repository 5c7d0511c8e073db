r"""How fast a learned weight moves: its energy by order.

Any trajectory W(t), whatever its basis, has Legendre coefficients on its interval,

.. math:: w_n = \int W(t)\, p_n(t)\, dt, \qquad \int p_m p_n = \delta_{mn}, \qquad
          \sum_n \|w_n\|^2 = \int \|W(t)\|^2 dt

so energies by order compare across bases: order 0 is the constant part, high orders are fast
motion. An expansion also has energies of its own coefficients, :math:`\|\alpha_k\|^2 \int z_k^2`,
which add up to the same only where the basis is orthogonal.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from nanode.analysis.drawing import Findings, axes
from nanode.analysis.subject import field_of
from nanode.analysis.weights import in_double
from nanode.bases.quadrature import gauss
from nanode.block import ODEBlock
from nanode.fields import Field, Gated, TimeVarying
from nanode.stages import Stage, Stages
from nanode.trajectories import Expansion, Joined
from nanode.values import checked_count


@dataclass(frozen=True, eq=False)
class TrajectorySpectrum(Findings):
    """Energies of each moving weight, by name."""

    derived = ("moving",)

    #: By Legendre order, (orders + 1,): any trajectory.
    orders: dict[str, Tensor]
    #: ∫‖W(t)‖² dt; what the orders leave out lies above the highest.
    total: dict[str, float]
    #: By coefficient, (d,): weights that are expansions only.
    coefficients: dict[str, Tensor]

    @property
    def moving(self) -> dict[str, float]:
        """The share of each weight's energy that is not its mean over time."""
        return {
            name: max(0.0, 1 - float(by_order[0]) / self.total[name]) if self.total[name] else 0.0
            for name, by_order in self.orders.items()
        }

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

    Integrals are Gauss–Legendre sums on each piece between breakpoints, which is halved until the
    sums settle, so that fast motion isn't missed.

    >>> import nanode, torch
    >>> field = nanode.TimeVarying(torch.nn.Linear(2, 2, bias=False), nanode.Chebyshev(degree=3))
    >>> trajectory_spectrum(field).moving["weight"] < 1e-6  # held constant at the start
    True
    """
    inner = field_of(field)
    interval = inner.interval or (0.0, 1.0)
    orders = checked_count("orders", orders, least=0)
    edges = sorted({*interval, *(t for t in inner.breakpoints if interval[0] < t < interval[1])})
    projected: dict[str, Tensor] = {}
    total: dict[str, float] = {}
    # Piece by piece: a hundred buckets have thousands of nodes.
    for piece in pairwise(edges):
        whole = _sums(inner, piece, piece[0], interval, orders)
        for name, (part, energy) in _settled(inner, piece, interval, orders, whole).items():
            projected[name] = projected[name] + part if name in projected else part
            total[name] = total.get(name, 0.0) + energy
    if not projected:
        raise ValueError("no weight of this field moves in time")
    by_order = {name: part.abs().square().sum(1) for name, part in projected.items()}
    own = {
        prefix + name: in_double(alpha).cpu().abs().square().sum(1) * part.basis.gram(0).diagonal()
        for prefix, part in _expansions(inner)
        for name, alpha in part.coefficients
    }
    return TrajectorySpectrum(by_order, total, own)


#: Of a weight: its projection on each order, and its energy, over some part of the interval.
_Sums = dict[str, tuple[Tensor, float]]
#: How far the sums of both halves may be from those of the whole, as a share of the energy; and how
#: often a piece is halved.
SETTLED, HALVINGS = 1e-5, 10


def _sums(
    field: Field,
    part: tuple[float, float],
    start: float,
    interval: tuple[float, float],
    orders: int,
) -> _Sums:
    """Gauss–Legendre sums over a part of the piece that starts at ``start``."""
    nodes, weights = gauss(part, count=orders + 16)
    polynomials = _orthonormal(nodes, interval, orders)
    found = {}
    for name, table in field.weights(_stages(nodes.tolist(), start)).moving.items():
        flat = in_double(table).reshape(len(table), -1).cpu()
        energy = float(weights @ flat.abs().square().sum(1))
        found[name] = polynomials.T.to(flat) @ (weights[:, None] * flat), energy
    return found


def _settled(
    field: Field,
    piece: tuple[float, float],
    interval: tuple[float, float],
    orders: int,
    whole: _Sums,
) -> _Sums:
    """The sums over a piece, each part of it halved until that changes little."""
    ahead = [(piece, whole, HALVINGS)]
    found: _Sums = {}
    while ahead:
        (low, high), rough, left = ahead.pop()
        middle = (low + high) / 2
        halves = [
            (part, _sums(field, part, piece[0], interval, orders))
            for part in ((low, middle), (middle, high))
        ]
        fine = _added(*(sums for _, sums in halves))
        if left and not all(_alike(rough[name], fine[name]) for name in fine):
            ahead += [(part, sums, left - 1) for part, sums in halves]
        else:
            found = _added(found, fine)
    return found


def _alike(rough: tuple[Tensor, float], fine: tuple[Tensor, float]) -> bool:
    (a, energy), (b, expected) = rough, fine
    near = float((a - b).abs().square().sum()) <= SETTLED**2 * expected
    return abs(energy - expected) <= SETTLED * expected and near


def _added(a: _Sums, b: _Sums) -> _Sums:
    return {
        name: (part + a[name][0], e + a[name][1]) if a else (part, e)
        for name, (part, e) in b.items()
    }


def _stages(nodes: list[float], start: float) -> Stages:
    """Evaluations at times of one piece, each by the exact start of the piece."""
    # Nodes crowd at the ends of a piece: by their times alone some would count to the next one.
    return Stages(tuple(Stage(n, 0, time, Fraction(start)) for n, time in enumerate(nodes)))


def _orthonormal(times: Tensor, interval: tuple[float, float], orders: int) -> Tensor:
    """Legendre polynomials scaled to unit energy, (times, orders + 1)."""
    t0, t1 = interval
    values = np.polynomial.legendre.legvander(((2 * times - t0 - t1) / (t1 - t0)).numpy(), orders)
    scale = np.sqrt((2 * np.arange(orders + 1) + 1) / (t1 - t0))
    return torch.from_numpy(values * scale)


def _expansions(part: nn.Module, prefix: str = "") -> Iterator[tuple[str, Expansion]]:
    """The expansions of weights in a field, and what their weights' names begin with there."""
    if isinstance(part, Expansion):
        yield prefix, part
    elif isinstance(part, TimeVarying):
        yield from _expansions(part.trajectory, prefix)
    elif isinstance(part, Joined):
        for one in part.parts:
            yield from _expansions(one, prefix)
    elif isinstance(part, Gated):
        yield prefix, part.gates
        for n, member in enumerate(part.fields):
            yield from _expansions(member, f"{prefix}{n}.")
