"""Products of Householder reflections by matrix products: the paper's orthogonal weights.

Note *signs*. The paper maps :math:`u_1, \\dots, u_d` and one sign s to
:math:`s\\, H(u_1) \\cdots H(u_d)` and calls that all of O(d). A reflection has determinant −1, so
the product has :math:`s^d (-1)^d`: for even d it is 1 whatever s is, and half of O(d) is out of
reach. A sign a column, fixed at the start, reaches both halves for every d:
:math:`H(u_1) \\cdots H(u_d) D` with :math:`D = \\mathrm{diag}(\\pm 1)`.
"""

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from nanode.trajectories.forms import Form, nearest, polished
from nanode.values import checked_count


@final
@dataclass(frozen=True)
class Householder(Form):
    r"""A product of reflections along the free vectors.

    .. math:: W(t) = H(u_1(t)) \cdots H(u_k(t))\, B, \qquad H(u) = I - 2 \frac{u u^\top}{u^\top u}

    Shapes: u are the columns of the free numbers, ``(m, k)``; B is ``(m, n)``, fixed. By default
    k = n and B is a signed identity: every matrix with orthonormal columns is reached (for m = n
    every one with the determinant of the start; see note *signs*, ``householder.py``). With fewer
    ``reflections`` the others stay as they started, inside B; one fewer than n loses nothing of a
    square matrix. A vector that is zero reflects nothing, so there the determinant of a square
    matrix is the opposite one. ``Orthogonal`` refuses starts with one, where it looks.

    >>> import nanode
    >>> form, q = nanode.Householder(), torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    >>> torch.allclose(form.matrix(*form.right_inverse(q)).float(), q)
    True
    """

    reflections: int | None = None

    def __post_init__(self) -> None:
        if self.reflections is not None:
            checked_count("reflections", self.reflections, least=1)

    def right_inverse(self, weight: Tensor) -> tuple[Tensor, Tensor | None]:
        """The vectors of a QR decomposition of the nearest matrix, whose R is the signs."""
        m, n = weight.shape
        k = n if self.reflections is None else self.reflections
        if k > n:
            raise ValueError(
                f"{k} reflections are more than the {n} dimensions of a {m}×{n} matrix; "
                f"use at most {n}, which reach all of them"
            )
        r, tau = torch.geqrf(nearest(weight))
        signs = r.diagonal().sign()
        # Where a column needs no reflection LAPACK makes none (tau = 0). Ours makes one along its
        # own axis, and the sign takes it back.
        signs = torch.where(tau == 0, -signs, signs)
        u = r.tril(-1) + torch.eye(m, n, dtype=r.dtype, device=r.device)
        u = u / torch.linalg.vector_norm(u, dim=0)
        return (u, signs) if k == n else (u[:, :k].clone(), reflected(u[:, k:], signs))

    def matrix(self, free: Tensor, fixed: Tensor | None) -> Tensor:
        """All reflections at once."""
        assert fixed is not None
        moved = polished(reflected(free, fixed))
        # A fixed matrix may have been rounded on its way through another precision.
        return moved if fixed.ndim == 1 else polished(moved)

    def check(self, free: Tensor) -> None:
        """Refuse a vector of length zero."""
        zero = ~_long(free.square().sum(-2))
        if bool(zero.any()):
            raise ValueError(
                f"reflection vector {int(zero.nonzero()[0])} is zero, and reflects along no "
                "direction; start from coefficients that don't cancel, or leave the weight out"
            )


def reflected(vectors: Tensor, base: Tensor) -> Tensor:
    r"""A product of reflections, applied to a matrix, in compact WY form.

    .. math:: H(u_1) \cdots H(u_k) B = B - U T U^\top B, \qquad
              T^{-1} = \mathrm{striu}(U^\top U) + \tfrac12 \mathrm{diag}(U^\top U)

    Three matrix products and a triangular solve in place of k reflections one after another.
    Solving by blocks of 32 to 128 vectors was no faster.

    Shapes: vectors ``(..., m, k)``; base ``(m, n)``, or ``(n,)`` for the diagonal of a signed
    identity; the result is ``(..., m, n)``. A zero vector is left out: it gets a row of its own in
    T, and no gradient.

    >>> u = torch.tensor([[1.0], [0.0]])
    >>> reflected(u, torch.ones(2))
    tensor([[-1.,  0.],
            [ 0.,  1.]])
    """
    m, n = vectors.shape[-2], base.shape[-1]
    gram = vectors.mT @ vectors
    squares = gram.diagonal(dim1=-2, dim2=-1)
    halves = torch.where(_long(squares), squares / 2, 1)
    if base.ndim == 1:
        seen = vectors[..., :n, :].mT * base
        base = torch.eye(m, n, dtype=gram.dtype, device=gram.device) * base
    else:
        seen = vectors.mT @ base
    inverse = gram.triu(1) + torch.diag_embed(halves)
    product: Tensor = base - vectors @ torch.linalg.solve_triangular(inverse, seen, upper=True)
    return product


def _long(squares: Tensor) -> Tensor:
    """Which vectors reflect, by their squared lengths: those above underflow."""
    return squares > torch.finfo(squares.dtype).tiny
