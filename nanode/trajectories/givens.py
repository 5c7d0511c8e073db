r"""Walks on the orthogonal group by Givens rotations, as trigonometric polynomials.

Note *walks*. A rotation by θ in the plane of two coordinates has entries cos θ and sin θ, so a
product of k of them by one common angle has trigonometric polynomials of degree k as entries:

.. math:: Q\, G_{i_1 j_1}(\theta) \cdots G_{i_k j_k}(\theta) = A_0
          + \sum_{n=1}^{k} A_n \cos n\theta + B_n \sin n\theta

By integer multiples of θ the degree is the sum of their sizes. The paper leaves out :math:`A_0`,
which is there for one rotation already: the coordinates it doesn't turn.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from nanode.bases import Basis, Trigonometric
from nanode.trajectories.forms import nearest
from nanode.trajectories.initial import Coefficients, Held, Start
from nanode.trajectories.matrices import as_matrix, as_weight

#: Two coordinates (i, j) to turn by the angle, or (i, j, m) by m times the angle.
Turn = tuple[int, int] | tuple[int, int, int]


def givens_product(turns: Sequence[Turn], angle: float | Tensor, size: int) -> Tensor:
    r"""The product of Givens rotations by a common angle, or integer multiples of it.

    .. math:: G_{ij}(\theta)_{ii} = G_{ij}(\theta)_{jj} = \cos\theta, \qquad
              G_{ij}(\theta)_{ij} = -G_{ij}(\theta)_{ji} = \sin\theta

    Shapes: angles of any shape give ``(*angle.shape, size, size)``.

    >>> givens_product([(0, 1)], torch.tensor(torch.pi / 2), size=2).round()
    tensor([[-0.,  1.],
            [-1., -0.]])
    """
    theta = angle if isinstance(angle, Tensor) else torch.tensor(angle, dtype=torch.float64)
    eye = torch.eye(size, dtype=theta.dtype, device=theta.device)
    columns = list(eye.expand(*theta.shape, size, size).unbind(-1))
    for i, j, m in checked_turns(turns, size):
        cos, sin = (m * theta).cos()[..., None], (m * theta).sin()[..., None]
        one, two = columns[i], columns[j]
        columns[i], columns[j] = cos * one - sin * two, sin * one + cos * two
    return torch.stack(columns, dim=-1)


def givens_coefficients(turns: Sequence[Turn], size: int) -> Tensor:
    r"""The trigonometric polynomial that a product of Givens rotations is, in the angle.

    Shapes: ``(2 * degree + 1, size, size)`` in float64, ordered as ``Trigonometric``:
    :math:`A_0, A_1, \dots, A_k, B_1, \dots, B_k`. They are sums of whole numbers over
    :math:`2^k`, so up to degree 50 nothing is rounded.

    >>> givens_coefficients([(0, 1), (0, 1)], size=2)[:3, 0, 0].tolist()  # cos 2θ
    [0.0, 0.0, 1.0]
    """
    turns = checked_turns(turns, size)
    degree = sum(abs(m) for _, _, m in turns)
    # Laurent polynomials in exp(iθ): coefficient s stands in row s + degree.
    eye = torch.eye(size, dtype=torch.complex128, device="cpu")
    waves = torch.zeros(2 * degree + 1, size, size, dtype=torch.complex128, device="cpu")
    waves[degree] = eye
    for i, j, m in turns:
        one, two = waves[..., i].clone(), waves[..., j].clone()
        waves[..., i] = _cos(one, m) - _sin(two, m)
        waves[..., j] = _sin(one, m) + _cos(two, m)
    constant, above = waves[degree], waves[degree + 1 :]
    return torch.cat([constant.real[None], 2 * above.real, -2 * above.imag])


def _cos(waves: Tensor, m: int) -> Tensor:
    """cos mθ times a Laurent polynomial in exp(iθ)."""
    return (waves.roll(m, 0) + waves.roll(-m, 0)) / 2


def _sin(waves: Tensor, m: int) -> Tensor:
    """sin mθ times a Laurent polynomial in exp(iθ)."""
    return (waves.roll(m, 0) - waves.roll(-m, 0)) / 2j


@dataclass(frozen=True)
class GivensWalk(Start):
    r"""Trigonometric coefficients whose weights start as a walk on the orthogonal group.

    .. math:: W(t) = Q\, G_{i_1 j_1}(m_1 \theta) \cdots G_{i_k j_k}(m_k \theta), \qquad
              \theta = \omega (t - t_0)

    with ω the base frequency of the basis, whose order must be at least the degree of the walk.
    :math:`W(t_0) = Q` is the orthogonal matrix nearest to the module's own; a matrix m × n keeps
    orthonormal columns, as the first n of a walk on m × m (a kernel or a wide matrix is read as
    ``Orthogonal`` reads it). Vectors are held. Only the start is orthogonal: coefficients are
    trained without a constraint.

    Args:
        turns: pairs of coordinates (i, j), or (i, j, m) for m times the angle: one list for every
            matrix, or lists by parameter name; what is not named is held. Where weights move by
            several bases, ``overrides={name: partial(nanode.Expansion, basis=basis, start=walk)}``
            lets one of them walk.

    >>> import nanode
    >>> field = nanode.TimeVarying(
    ...     torch.nn.Linear(3, 3), nanode.Trigonometric(order=2), start=GivensWalk([(0, 1), (1, 2)])
    ... )
    >>> w = field.trajectory(0.7)["weight"]
    >>> torch.allclose(w.T @ w, torch.eye(3), atol=1e-6)
    True
    """

    turns: Sequence[Turn] | Mapping[str, Sequence[Turn]]

    def __call__(self, parameters: Mapping[str, Tensor], basis: Basis) -> Coefficients:
        """The coefficients of the walk; held ones for what doesn't walk."""
        walks = self._walks(parameters)
        started = Held()(parameters, basis)
        for name, turns in walks.items():
            try:
                started[name] = _walk(turns, parameters[name], basis)
            except ValueError as why:
                raise ValueError(f"{name!r} can't walk: {why}") from None
        return started

    def _walks(self, parameters: Mapping[str, Tensor]) -> dict[str, Sequence[Turn]]:
        if isinstance(self.turns, Mapping):
            missing = [name for name in self.turns if name not in parameters]
            if missing:
                raise ValueError(
                    f"a walk is given for {missing[0]!r}; by this basis move: "
                    f"{', '.join(parameters)}"
                )
            return dict(self.turns)
        walks = {name: self.turns for name, value in parameters.items() if value.ndim >= 2}
        if not walks:
            raise ValueError(f"none of {', '.join(parameters)} is a matrix, so nothing can walk")
        return walks


def _walk(turns: Sequence[Turn], weight: Tensor, basis: Basis) -> Tensor:
    """The coefficients of one weight, ``(basis.size, *weight.shape)``."""
    if weight.ndim < 2 or weight.is_complex():
        raise ValueError(f"expected a real matrix, got {weight.dtype} of {tuple(weight.shape)}")
    if not isinstance(basis, Trigonometric):
        raise ValueError(f"a walk needs a Trigonometric basis, got {type(basis).__name__}")
    x = nearest(as_matrix(weight, weight.shape))
    m, n = x.shape
    walk = givens_coefficients(turns, m)
    degree = len(walk) // 2
    if degree > basis.order:
        raise ValueError(
            f"its walk has degree {degree}, above the basis's order {basis.order}; use "
            f"Trigonometric(order={degree}) or fewer turns"
        )
    q = torch.cat([x, torch.linalg.qr(x, mode="complete").Q[:, n:]], dim=1)
    constant, cos, sin = (q @ walk[..., :n]).split([1, degree, degree])
    # cos n(φ − δ) and sin n(φ − δ) in terms of φ = ωt, with δ = ωt₀.
    numbers = torch.arange(1, degree + 1, dtype=torch.float64, device="cpu")[:, None, None]
    shift = numbers * (basis.frequency * basis.interval[0])
    a = cos * shift.cos() - sin * shift.sin()
    b = cos * shift.sin() + sin * shift.cos()
    none = torch.zeros(basis.order - degree, m, n, dtype=torch.float64, device="cpu")
    return as_weight(torch.cat([constant, a, none, b, none]), weight.shape).to(weight)


def checked_turns(turns: Sequence[Any], size: int) -> list[tuple[int, int, int]]:
    """Every turn as (i, j, multiple), or a ValueError."""
    found = []
    for turn in turns:
        i, j, *multiple = turn if isinstance(turn, Sequence) and len(turn) in (2, 3) else (0, 0)
        m = multiple[0] if multiple else 1
        whole = all(isinstance(n, Integral) and not isinstance(n, bool) for n in (i, j, m))
        if not whole or i == j or not (0 <= i < size and 0 <= j < size) or m == 0:
            raise ValueError(
                f"a turn must be two different coordinates below {size}, and perhaps a whole "
                f"multiple of the angle other than 0, got {turn!r}"
            )
        found.append((int(i), int(j), int(m)))
    if not found:
        raise ValueError("a walk needs at least one turn, got none")
    return found
