r"""How fast a learned weight moves: its energy by order.

Any trajectory W(t), whatever its basis, has Legendre coefficients on its interval,

.. math:: w_n = \int W(t)\, p_n(t)\, dt, \qquad \int p_m p_n = \delta_{mn}, \qquad
          \sum_n \|w_n\|^2 = \int \|W(t)\|^2 dt

so energies by order compare across bases: order 0 is the constant part, high orders are fast
motion. An expansion also has energies of its own coefficients, :math:`\|\alpha_k\|^2 \int z_k^2`,
which add up to the same only where the basis is orthogonal.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from nanode.analysis.drawing import Findings, axes
from nanode.analysis.subject import field_of
from nanode.bases import Basis
from nanode.bases.quadrature import gauss
from nanode.block import ODEBlock
from nanode.doubles import in_double
from nanode.fields import Field, Gated, TimeVarying
from nanode.stages import Stage, Stages
from nanode.trajectories import Expansion, Joined
from nanode.trajectories.trajectory import Named
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
    sums settle, so that fast motion isn't missed. Of an expansion they are of its basis alone.

    >>> import nanode, torch
    >>> field = nanode.TimeVarying(torch.nn.Linear(2, 2, bias=False), nanode.Chebyshev(degree=3))
    >>> trajectory_spectrum(field).moving["weight"] < 1e-6  # held constant at the start
    True
    """
    inner = field_of(field)
    interval = inner.interval or (0.0, 1.0)
    orders = checked_count("orders", orders, least=0)
    inside = (t for t in inner.breakpoints if interval[0] < t < interval[1])
    sums = _Sums(interval, sorted({*interval, *inside}), orders)
    moving = [*inner.weights(_stages([interval[0]], interval[0])).moving]
    if not moving:
        raise ValueError("no weight of this field moves in time")
    found: dict[str, _Sum] = {}
    own: dict[str, Tensor] = {}
    for prefix, part in _expansions(inner):
        on_orders = sums.of(partial(_values, part.basis))[""].on_orders
        gram = part.basis.gram(0)
        for name, stored in part.coefficients:
            alpha = in_double(stored).cpu()
            alpha = alpha.reshape(len(alpha), -1)
            energy = float((alpha.conj() * (gram.to(alpha) @ alpha)).sum().real)
            found[prefix + name] = _Sum(on_orders.to(alpha) @ alpha, energy)
            own[prefix + name] = alpha.abs().square().sum(1) * gram.diagonal()
    if others := [name for name in moving if name not in found]:

        def tables(stages: Stages) -> Named:
            made = inner.weights(stages).moving
            return {name: made[name] for name in others}

        found |= sums.of(tables)
    by_order = {name: found[name].on_orders.abs().square().sum(1) for name in moving}
    return TrajectorySpectrum(by_order, {name: found[name].energy for name in moving}, own)


@dataclass(frozen=True, eq=False)
class _Sum:
    """Of a table: its projection on each order, and its energy, over some part of the interval."""

    on_orders: Tensor
    energy: float
    #: What the table's numbers were rounded by, relative to their size.
    rounding: float = 0.0


#: How far the sums of both halves may be from those of the whole, as a share of the energy; and how
#: often a piece is halved.
SETTLED, HALVINGS = 1e-5, 8


@dataclass(frozen=True)
class _Sums:
    """Integrals over an interval of functions that are smooth between edges."""

    interval: tuple[float, float]
    edges: list[float]
    orders: int

    def of(self, tables: Callable[[Stages], Named]) -> dict[str, _Sum]:
        """The sums of all tables, each (stages, ...)."""
        found: dict[str, _Sum] = {}
        # Piece by piece: a hundred buckets have thousands of nodes.
        for piece in pairwise(self.edges):
            ahead = [(piece, self._over(tables, piece, piece[0]), HALVINGS)]
            while ahead:
                (low, high), rough, left = ahead.pop()
                middle = (low + high) / 2
                parts = (low, middle), (middle, high)
                halves = [(part, self._over(tables, part, piece[0])) for part in parts]
                fine = _added(*(sums for _, sums in halves))
                if left and not all(_alike(rough[name], fine[name]) for name in fine):
                    ahead += [(part, sums, left - 1) for part, sums in halves]
                else:
                    found = _added(found, fine)
        return found

    def _over(
        self, tables: Callable[[Stages], Named], part: tuple[float, float], start: float
    ) -> dict[str, _Sum]:
        """Gauss–Legendre sums over a part of the piece that starts at ``start``."""
        nodes, weights = gauss(part, count=self.orders + 16)
        polynomials = _orthonormal(nodes, self.interval, self.orders)
        found = {}
        for name, table in tables(_stages(nodes.tolist(), start)).items():
            flat = in_double(table).reshape(len(table), -1).cpu()
            energy = float(weights @ flat.abs().square().sum(1))
            on_orders = polynomials.T.to(flat) @ (weights[:, None] * flat)
            found[name] = _Sum(on_orders, energy, torch.finfo(table.dtype).eps)
        return found


def _alike(rough: _Sum, fine: _Sum) -> bool:
    if not math.isfinite(fine.energy):
        return True  # halves won't be better
    tolerance = max(SETTLED, 4 * fine.rounding)
    apart = float((rough.on_orders - fine.on_orders).abs().square().sum())
    near = apart <= tolerance**2 * fine.energy
    return abs(rough.energy - fine.energy) <= tolerance * fine.energy and near


def _added(a: dict[str, _Sum], b: dict[str, _Sum]) -> dict[str, _Sum]:
    if not a:
        return b
    return {
        name: _Sum(a[name].on_orders + one.on_orders, a[name].energy + one.energy, one.rounding)
        for name, one in b.items()
    }


def _values(basis: Basis, stages: Stages) -> Named:
    return {"": basis.on(stages)}


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
