"""Maps from free numbers to matrices of a kind: what keeps a moving weight orthogonal, or skew.

Free numbers G move without constraint, by any trajectory; the matrix W they stand for has
orthonormal columns. Forms see matrices with at least as many rows as columns; how weights become
such matrices is said in ``orthogonal.py``. Reflections have a file of their own.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from nanode.doubles import hosted


class Form(ABC):
    """A rule that makes a matrix of free numbers, and finds free numbers for a matrix.

    Some forms need numbers besides that stay ``fixed``: signs, or the matrix they started at.
    """

    @abstractmethod
    def right_inverse(self, weight: Tensor) -> tuple[Tensor, Tensor | None]:
        """Free and fixed numbers of the nearest matrix of the kind to ``weight``, in float64.

        Shapes: weight ``(m, n)`` with m ≥ n, free numbers ``(m, k)`` with k ≤ n.
        """

    @abstractmethod
    def matrix(self, free: Tensor, fixed: Tensor | None) -> Tensor:
        """The matrix of free numbers, ``(..., m, k)`` to ``(..., m, n)``."""

    def check(self, free: Tensor) -> None:  # noqa: B027
        """Raise for free numbers, ``(m, k)``, that stand for no matrix; by default none do."""


class _Turned(Form):
    r"""The start X, turned by f of a skew-symmetric matrix that is linear in G.

    .. math:: W = f(\Omega) X, \qquad
              \Omega = P G X^\top - X G^\top P, \quad P = I - \tfrac12 X X^\top

    so that W = X at G = X, and to first order W moves by the projection of G's motion onto the
    tangent space at X: coefficients mean what they mean without the constraint. For a square X this
    is X f(A), A below. For others, :math:`\Omega` maps the columns of X and of N to combinations of
    themselves, so that matrices of size 2n do:

    .. math:: A = \tfrac12 (X^\top G - G^\top X), \quad N = (I - X X^\top) G, \qquad
              \Omega [X, N] = [X, N] \begin{pmatrix} A & -N^\top N \\ I & 0 \end{pmatrix}
    """

    #: Newton steps that the largest turns need in single precision: each squares the error.
    polishing: ClassVar[int]

    def right_inverse(self, weight: Tensor) -> tuple[Tensor, Tensor | None]:
        """The nearest matrix with orthonormal columns, fixed, and the same as free numbers."""
        x = nearest(weight)
        return x, x

    def matrix(self, free: Tensor, fixed: Tensor | None) -> Tensor:
        """f(Ω) X."""
        assert fixed is not None
        along = fixed.mT @ free
        square = fixed.shape[-2] == fixed.shape[-1]
        normal = None if square else free - fixed @ along
        turned = self.turned(fixed, (along - along.mT) / 2, normal)
        for _ in range(self.polishing):
            turned = polished(turned)
        return turned

    @abstractmethod
    def turned(self, x: Tensor, a: Tensor, normal: Tensor | None) -> Tensor:
        """f(Ω) X from X, A and N; a square X has no N."""


@final
@dataclass(frozen=True)
class Exponential(_Turned):
    r"""The start turned by the exponential of a skew-symmetric matrix.

    .. math:: W(t) = Q \exp(\Omega(t)), \qquad \Omega = \tfrac12 (Q^\top G - G^\top Q)

    for a square matrix, and with orthonormal columns :math:`W(t) = \exp(\Omega(t)) Q` for another
    Ω of rank 2n. Q is the start, fixed, so any matrix of either determinant can be started from;
    all with the same determinant (for m > n all that exist) can be reached. ``torch.matrix_exp``
    makes a GPU wait for the host.

    >>> import nanode
    >>> form, q = nanode.Exponential(), torch.diag(torch.tensor([1.0, -1.0]))
    >>> torch.equal(form.matrix(*form.right_inverse(q)).float(), q)
    True
    """

    #: With G moved by 1,000 ‖WᵀW − I‖ was up to 0.40, then 0.10, 7e-3, 4e-5, rounding.
    polishing: ClassVar[int] = 4

    def turned(self, x: Tensor, a: Tensor, normal: Tensor | None) -> Tensor:
        """X exp(A), or [X, N] times the first columns of an exponential of twice the size."""
        if normal is None:
            product: Tensor = x @ _exponential(a)
            return product
        n = x.shape[-1]
        # Any multiple of N will do. A large one is brought to the length of X, or rounding in the
        # exponential would grow with its square.
        rms = normal.detach().square().sum((-2, -1), keepdim=True).div(n).sqrt().clamp(min=1)
        normal = normal / rms
        eye = rms * torch.eye(n, dtype=a.dtype, device=a.device)
        above = torch.cat([a, -rms * (normal.mT @ normal)], dim=-1)
        below = torch.cat([eye, torch.zeros_like(eye)], dim=-1)
        turn = _exponential(torch.cat([above, below], dim=-2))
        turned: Tensor = x @ turn[..., :n, :n] + normal @ turn[..., n:, :n]
        return turned


@final
@dataclass(frozen=True)
class Cayley(_Turned):
    r"""The start turned by the Cayley transform of a skew-symmetric matrix.

    .. math:: W(t) = Q (I - \tfrac12 \Omega(t))^{-1} (I + \tfrac12 \Omega(t))

    with Ω as for ``Exponential``, which it follows to second order in Ω, by one inverse of size n.
    The transform has no eigenvalue −1, so half turns away from Q are limits only; Q itself, the
    start, is any matrix of either determinant.

    >>> import nanode
    >>> form, q = nanode.Cayley(), -torch.eye(3)
    >>> torch.equal(form.matrix(*form.right_inverse(q)).float(), q)
    True
    """

    #: With G moved by 1,000 ‖WᵀW − I‖ was up to 0.27, then 4e-2, 1e-3, rounding.
    polishing: ClassVar[int] = 3

    def turned(self, x: Tensor, a: Tensor, normal: Tensor | None) -> Tensor:
        """(2X + N) C⁻¹ − X with C = I − A/2 + NᵀN/4: the transform, its blocks eliminated."""
        c = torch.eye(a.shape[-1], dtype=a.dtype, device=a.device) - a / 2
        if normal is not None:
            c = c + normal.mT @ normal / 4
        # C + Cᵀ ≥ 2I, so C is never singular, and checking that would make a GPU wait. Not
        # ``linalg.solve``: the gradient of its forward derivative is wrong (torch 2.13).
        inverse = torch.linalg.inv_ex(c)[0]
        turned: Tensor = (2 * x if normal is None else 2 * x + normal) @ inverse - x
        return turned


@final
@dataclass(frozen=True)
class Skew(Form):
    r"""A skew-symmetric matrix, whose linear flow stays on the orthogonal group.

    .. math:: W(t) = A(t) - A(t)^\top

    The solution of :math:`\dot x = W(t) x` keeps its norm, and so does its gradient; an explicit
    Euler step doesn't (it grows by :math:`\sqrt{1 + h^2 \omega^2}` a step). Starts at the
    skew-symmetric part of the weight. Square matrices only.

    >>> import nanode
    >>> nanode.Skew().matrix(torch.tensor([[5.0, 2.0], [0.0, 1.0]]), None)
    tensor([[ 0.,  2.],
            [-2.,  0.]])
    """

    def right_inverse(self, weight: Tensor) -> tuple[Tensor, Tensor | None]:
        """Half the weight."""
        if weight.shape[-1] != weight.shape[-2]:
            raise ValueError(
                "a skew-symmetric matrix is square, and this one is not; name the square weights, "
                "orthogonal={name: nanode.Skew()}, or use nanode.Householder()"
            )
        return exact(weight) / 2, None

    def matrix(self, free: Tensor, fixed: Tensor | None) -> Tensor:
        """A − Aᵀ."""
        return free - free.mT


def _exponential(a: Tensor) -> Tensor:
    """exp(A), on the host for devices that have no kernel for it."""
    found: Tensor = torch.linalg.matrix_exp(hosted(a)).to(a)
    return found


def exact(weight: Tensor) -> Tensor:
    """A matrix in float64 on the host, finite; an identity in place of one without values."""
    if weight.is_meta:
        return torch.eye(*weight.shape, dtype=torch.float64, device="cpu")
    x = hosted(weight.detach()).to("cpu", torch.float64)
    if not bool(torch.isfinite(x).all()):
        raise ValueError("it holds numbers that are not finite")
    return x


def nearest(weight: Tensor) -> Tensor:
    r"""The matrix with orthonormal columns nearest to a weight, its polar factor, in float64.

    .. math:: W = U \Sigma V^\top \mapsto U V^\top

    >>> nearest(torch.tensor([[3.0, 0.0], [0.0, -2.0]]))
    tensor([[ 1.,  0.],
            [ 0., -1.]], dtype=torch.float64)
    """
    u, sigma, vh = torch.linalg.svd(exact(weight), full_matrices=False)
    # By the precision of the decomposition, not of the weight: by single precision's one random
    # matrix of 1024 × 1024 in five would count as singular, by bfloat16's every one of 128 × 128.
    eps = torch.finfo(sigma.dtype).eps
    rank = int((sigma > eps * max(weight.shape) * sigma[:1]).sum())
    if rank < weight.shape[-1]:
        raise ValueError(
            f"its rank is {rank} of {weight.shape[-1]}, so no orthogonal matrix is the nearest; "
            "start it with torch.nn.init.orthogonal_, or leave it out"
        )
    polar: Tensor = u @ vh
    return polar


def polished(w: Tensor) -> Tensor:
    r"""w, orthonormal up to rounding already, moved to the nearest orthonormal matrix.

    .. math:: W + \tfrac12 W (I - W^\top W)

    A Newton step: what rounding has done to :math:`W^\top W`, it squares. In exact arithmetic the
    step is zero along the whole path of W, so that no derivative goes through it. What is left is
    the rounding of :math:`W^\top W` itself.
    """
    with torch.no_grad():
        eye = torch.eye(w.shape[-1], dtype=w.dtype, device=w.device)
        step = w @ (eye - _gram(w)) / 2
    return w + step


def _gram(w: Tensor) -> Tensor:
    """WᵀW, summed over at most eight blocks of rows.

    Rounding grows with the length of a sum: for 512 rows in single precision one product leaves
    up to 1e-5 in the norm, and blocks up to 5e-6.
    """
    first, *rest = w.split(max(64, -(-w.shape[-2] // 8)), dim=-2)
    gram: Tensor = first.mT @ first
    for rows in rest:
        gram = gram + rows.mT @ rows
    return gram
