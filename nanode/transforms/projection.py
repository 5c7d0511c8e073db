r"""The same motion in another basis, as near as that basis comes.

The coefficients :math:`\beta` of weights that moved as W(t) minimise

.. math:: \int_{t_0}^{t_1} \bigl\| W(t) - \textstyle\sum_k \beta_k z_k(t) \bigr\|^2 dt

by least squares at the nodes of a Gauss rule on each piece between breakpoints. Directions that the
basis hardly has (singular values below ``cutoff`` of the largest) are left out: such coefficients
would be huge, and cancel once they are rounded. The Gram matrix, whose condition is the square of
that, is never solved with.
"""

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from nanode.bases import Basis
from nanode.bases.quadrature import gauss
from nanode.block import flows
from nanode.doubles import in_double
from nanode.fields import Gated, TimeVarying
from nanode.fields.walk import replaced
from nanode.stages import Stages
from nanode.trajectories import Expansion, Hypernetwork, Joined, Orthogonal, Start, Trajectory
from nanode.trajectories.trajectory import Named
from nanode.values import check_number

M = TypeVar("M", bound=nn.Module)
#: What has coefficients, or can be given some; other trajectories are made of these.
_KINDS = (Expansion, Hypernetwork)
#: To choose from, and how much larger than the smallest an error may be for smaller coefficients.
CUTOFFS = tuple(10.0**-n for n in range(2, 14))
SLACK = 0.1
#: Nodes at a time, where values of all weights are needed.
CHUNK = 32


@torch.no_grad()
def project(model: M, basis: Basis, *, cutoff: float | None = None) -> M:
    """A copy of a model whose weights move in another basis, as nearly as before as it can.

    Every expansion and hypernetwork in the model is replaced: in blocks, fields, joined
    trajectories, gates, and in the free numbers of orthogonal weights, which stay orthogonal.
    Weights that are left constant stay. In a basis that contains the old one its functions keep
    their coefficients. ``cutoff`` is by default the largest of a few that lose about as little as
    the best of them, coefficients rounded to their dtype.

    >>> import nanode, torch
    >>> field = nanode.TimeVarying(torch.nn.Linear(2, 2), nanode.Legendre(degree=3))
    >>> wider = nanode.project(field, nanode.Chebyshev(degree=5))
    >>> wider.trajectory.coefficients.weight.shape
    torch.Size([6, 4])
    >>> max(nanode.projection_errors(field, wider).values()) < 1e-6
    True
    """
    if not isinstance(basis, Basis):
        raise ValueError(f"basis must be a Basis such as nanode.Legendre(degree=3), got {basis!r}")
    if cutoff is not None:
        check_number("cutoff", cutoff, least=0.0, below=1.0)
    if not (isinstance(model, nn.Module) and any(isinstance(p, _KINDS) for p in model.modules())):
        raise ValueError(f"{type(model).__name__} has no weights that move in time")
    for field in (part for part in model.modules() if hasattr(part, "_lender")):
        if any(isinstance(part, _KINDS) for part in field.get_submodule("module").modules()):
            raise ValueError(
                "the module of one field has another inside, which gave its coefficients to that "
                "one or is known to it; project the inner one before it is wrapped"
            )
    found = replaced(copy.deepcopy(model), _KINDS, lambda path: _projected(path, basis, cutoff))
    for part in reversed(list(found.modules())):  # what is inside first
        if isinstance(part, Joined | Orthogonal | TimeVarying | Gated):
            part.settle()
    for block in flows(found).values():
        block.regrid(block.steps)
    return found  # type: ignore[return-value]


@torch.no_grad()
def projection_errors(model: nn.Module, other: nn.Module) -> dict[str, float]:
    r"""How far two models' weights are apart, by trajectory and name.

    .. math:: \bigl(\textstyle\int \|W - W'\|^2 dt \,/ \int \|W\|^2 dt\bigr)^{1/2}
    """
    ours, theirs = _outermost(model), _outermost(other)
    if [path.shapes for _, path in ours] != [path.shapes for _, path in theirs]:
        raise ValueError("the two have other weights that move, which can't be compared")
    pairs = zip(ours, theirs, strict=True)
    return {
        f"{place}.{name}" if place else name: error
        for (place, one), (_, two) in pairs
        for name, error in _errors(one, two).items()
    }


def _errors(one: Trajectory, two: Trajectory) -> dict[str, float]:
    stages, weights = _nodes(one, two, 64)
    apart, size = (dict.fromkeys(one.shapes, 0.0) for _ in range(2))
    for k in range(0, len(stages), CHUNK):
        ours, theirs = (path.table(stages[k : k + CHUNK]) for path in (one, two))
        for name, w in ours.items():
            apart[name] += _sum(w - theirs[name], weights[k : k + CHUNK])
            size[name] += _sum(w, weights[k : k + CHUNK])
    return {name: (apart[name] / (size[name] or 1.0)) ** 0.5 for name in size}


def _sum(values: Tensor, weights: Tensor) -> float:
    """The integral of the squares of what has these values at the nodes."""
    squares = in_double(_flat(values).abs()).square().sum(1)
    return float(squares @ weights.to(squares))


def _flat(values: Tensor) -> Tensor:
    """A row a node, also where weights are single numbers."""
    return values.reshape(len(values), math.prod(values.shape[1:]))


def _outermost(model: nn.Module) -> list[tuple[str, Trajectory]]:
    """The trajectories that are part of no other, with where they are."""
    found: list[tuple[str, Trajectory]] = []
    inside: set[nn.Module] = set()
    for name, part in model.named_modules():  # what is outside first
        if isinstance(part, Trajectory) and part not in inside:
            found.append((name, part))
            inside.update(part.modules())
    return found


def _projected(path: Any, basis: Basis, cutoff: float | None) -> Expansion:
    """An expansion in this basis, near the trajectory."""
    if path.interval != basis.interval:
        raise ValueError(
            f"the weights move on {path.interval} and the basis lives on {basis.interval}; give "
            f"it interval={path.interval}"
        )
    with torch.enable_grad():  # which tells what is trained
        own = (
            dict(iter(path.coefficients)) if isinstance(path, Expansion) else path(path.interval[0])
        )
    like = {
        name: nn.Parameter(own[name].new_empty(shape), requires_grad=own[name].requires_grad)
        for name, shape in path.shapes.items()
    }
    found = Expansion(like, copy.deepcopy(basis), start=_Fitted(_fitted(path, basis, cutoff)))
    return found.train(path.training)


@dataclass(frozen=True)
class _Fitted(Start):
    """Coefficients that are known."""

    coefficients: Named

    def __call__(self, parameters: Mapping[str, Tensor], basis: Basis) -> Named:
        return self.coefficients


def _fitted(path: Trajectory, basis: Basis, cutoff: float | None) -> Named:
    """The coefficients of every weight."""
    if isinstance(path, Expansion):
        stages, weights = _nodes(path, basis, path.basis.size + basis.size)
        own, old = dict(iter(path.coefficients)), path.basis.on(stages)
    else:  # as an expansion in functions that are 1 at one node each
        stages, weights = _nodes(path, basis, basis.size)
        own = {name: _flat(w) for name, w in path.table(stages).items()}
        old = torch.eye(len(stages), dtype=torch.float64, device="cpu")
    fit = _Fit(basis.on(stages), old, weights)
    return {name: fit.coefficients(alpha, cutoff) for name, alpha in own.items()}


class _Fit:
    """From coefficients of old functions to those of new ones, both known at nodes."""

    def __init__(self, new: Tensor, old: Tensor, weights: Tensor) -> None:
        root = weights.sqrt()[:, None]
        self.new, self.old, self.same = root * new, root * old, _contained(old, new)
        # The distance of two expansions, of as many numbers as there are functions.
        both = torch.linalg.qr(torch.cat([self.new, self.old], 1), mode="r").R
        self.apart = both.split([new.shape[1], old.shape[1]], 1)

    def coefficients(self, alpha: Tensor, cutoff: float | None) -> Tensor:
        """The best for these, rounded as they are."""
        wide = in_double(alpha)
        if self.same is not None:
            return self.same.to(wide) @ wide
        limits = CUTOFFS if cutoff is None else (cutoff,)
        found = [self._transfer(limit).to(wide) @ wide for limit in limits]
        errors = [self._error(beta.to(alpha.dtype).to(wide), wide) for beta in found]
        # Of those about as good as the best, the one with the smallest coefficients.
        enough = (1 + SLACK) * min(errors)
        return next(beta for beta, error in zip(found, errors, strict=True) if error <= enough)

    def _transfer(self, cutoff: float) -> Tensor:
        transfer: Tensor = torch.linalg.pinv(self.new, rtol=cutoff) @ self.old
        return transfer

    def _error(self, beta: Tensor, alpha: Tensor) -> float:
        ours, theirs = (part.to(alpha) for part in self.apart)
        return float((ours @ beta - theirs @ alpha).norm())


def _contained(old: Tensor, new: Tensor) -> Tensor | None:
    """The places of the old functions among the new, if all are there; else None."""
    apart = (old.T[:, None] - new.T[None]).abs().amax(-1)
    # Beside its own size: on a short interval high powers are tiny, and not equal for that.
    if bool((apart.amin(1) > 1e-12 * old.abs().amax(0)).any()):
        return None
    return nn.functional.one_hot(apart.argmin(1), new.shape[1]).T.to(new)


def _nodes(path: Trajectory, other: Basis | Trajectory, resolution: int) -> tuple[Stages, Tensor]:
    """Evaluations at Gauss nodes between all breakpoints of both, and the weights of the sums."""
    start, end = path.interval
    edges = (start, *sorted({*path.breakpoints, *other.breakpoints}), end)
    # Sums of products must be exact, or nearly: waves want a few nodes a period.
    nodes, weights = gauss(edges, count=max(8, 4 + 8 * resolution // (len(edges) - 1)))
    return Stages.alone(nodes.tolist()), weights
