"""Weights as linear combinations of basis functions: the paper's bucketed, polynomial and
trigonometric models are this class with another basis."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from nanode.bases import Basis
from nanode.stages import Side, Stages
from nanode.trajectories.initial import Held, Start, check_start
from nanode.trajectories.trajectory import (
    Named,
    Trajectory,
    Tree,
    basis_values,
    full_precision,
    gathered,
    scalar_time,
    squared,
    trainable,
)


class Expansion(Trajectory):
    r"""Weights as sums of functions of time.

    .. math:: W(t) = \sum_{k=1}^{d} \alpha_k z_k(t)

    Shapes: each weight's coefficients are one parameter of shape ``(d, numel)``, flat so that
    memory-format calls on a model can't permute them; :math:`W(t)` has the weight's own shape. With
    a constant basis the weights don't move.

    >>> import nanode, torch
    >>> start = {"weight": torch.eye(2)}
    >>> path = nanode.Expansion(start, nanode.Trigonometric(order=3))
    >>> path.coefficients.weight.shape
    torch.Size([7, 4])
    >>> torch.equal(path(0.7)["weight"], torch.eye(2))  # constant in time at the start
    True
    """

    def __init__(
        self, parameters: Mapping[str, Tensor], basis: Basis, start: Start | None = None
    ) -> None:
        super().__init__()
        if not parameters:
            raise ValueError("an expansion needs at least one weight, got none")
        if any(True for _ in basis.parameters()):
            raise ValueError(
                f"{type(basis).__name__} has parameters, but a basis is fixed and its values are "
                "kept: register what it is made of by register_buffer"
            )
        check_start(start)
        self.shapes = {name: value.shape for name, value in parameters.items()}
        self.basis = basis
        self.interval, self.breakpoints, self.jumps = basis.interval, basis.breakpoints, basis.jumps
        coefficients = (start or Held())(parameters, basis)
        self.coefficients = Tree(
            {
                name: nn.Parameter(
                    coefficients[name].reshape(basis.size, value.numel()).to(value),
                    requires_grad=trainable(value),
                )
                for name, value in parameters.items()
            }
        )

    def forward(self, t: float | Tensor, side: Side = "right") -> Named:
        """Every weight at time t."""
        z = self.basis(scalar_time(t), side)
        return {
            name: _product(z.to(device=alpha.device, dtype=alpha.dtype), alpha).view(
                self.shapes[name]
            )
            for name, alpha in self._own()
        }

    def table(self, stages: Stages) -> Named:
        """Every weight at every stage, by one matrix product per weight."""
        return {
            name: _product(basis_values(self.basis, stages, alpha), alpha).view(
                len(stages), *self.shapes[name]
            )
            for name, alpha in self._own()
        }

    def _own(self) -> Iterator[tuple[str, Tensor]]:
        """The coefficients of each weight, which must be here."""
        for name, alpha in self.coefficients:
            if alpha is None:
                raise ValueError(
                    f"the coefficients of {name!r} have gone to a field that was made of the one "
                    "they were in; call that one"
                )
            yield name, alpha

    def prepare(self, stages: Stages) -> None:
        """The basis's values, for each dtype and device among the coefficients."""
        for _, alpha in self.coefficients:
            if isinstance(alpha, Tensor):  # not taken by a field around this one
                basis_values(self.basis, stages, alpha)

    def energy(self, m: int = 0) -> Tensor:
        r"""The sum over all weights of :math:`\int W^{(m)2} dt = \alpha^\top G_m \alpha`."""
        root, unit = _root(self.basis.gram(m)), self.basis.unit()
        there: dict[Any, tuple[Tensor, Tensor]] = {}
        parts = []
        for _, stored in self.coefficients:
            if stored is None:  # a field around this one moves it
                continue
            alpha = gathered(stored)
            key = alpha.device, alpha.dtype
            if key not in there:
                there[key] = _sent(root, alpha), _sent(unit, alpha)
            moving = alpha if m == 0 else _without_constant(alpha, unit, there[key][1])
            parts.append(squared(_product(there[key][0], moving)).sum())
        return torch.stack(parts).sum()


def _product(z: Tensor, alpha: Tensor) -> Tensor:
    with full_precision(alpha):
        product: Tensor = z @ alpha
    return product


def _sent(values: Tensor, like: Tensor) -> Tensor:
    """Where and as ``like`` is; a GPU needn't finish what it is at before it gets them."""
    return values.to(device=like.device, dtype=like.dtype, non_blocking=like.is_cuda)


def _without_constant(alpha: Tensor, unit: Tensor, sent: Tensor) -> Tensor:
    """α less the multiple of the constant function that leaves nothing in one coefficient.

    Derivatives don't see it. Of weights that don't move nothing is left at all, where R, rounded,
    would leave something of their size. ``unit`` is on the host, ``sent`` where α is.
    """
    place = int(unit.abs().argmax())
    if not unit[place]:
        return alpha  # a basis without the constant function
    return alpha - sent[:, None] * (alpha[place] / float(unit[place]))


def _root(gram: Tensor) -> Tensor:
    """R with Rᵀ R = gram: squares of Rα can't turn negative, however ill-conditioned gram is."""
    values, vectors = torch.linalg.eigh(gram)
    root: Tensor = values.clamp_min(0).sqrt()[:, None] * vectors.T
    return root
