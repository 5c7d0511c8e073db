"""Linear maps known by their products, and their largest singular values and eigenvalues.

A Jacobian of a large network is never formed: J V comes from forward mode, Jᵀ U from reverse mode.
Singular values follow by a randomised block Krylov method (Musco & Musco, 2015): Gaussian columns
Ω, the span of Ω, JᵀJ Ω, (JᵀJ)² Ω, …, and the singular values of J restricted to it. They never
exceed the true ones but by rounding, and grow towards them with ``depth``.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from nanode.doubles import hosted
from nanode.values import checked_count

#: How far powers of JᵀJ go. With one column more than values are wanted it is the cheapest depth
#: that keeps Gaussian matrices, the hardest case, within 2 %: of 300 to 4,000 numbers, one to eight
#: values, the worst was 1.6 % off (3.1 % without the column more, 2.1 % at depth 7).
DEPTH = 8
#: So many times as far they go for an eigenvalue that is small beside the spread of the others.
DEEPER = 4

#: Numbers in the tangents that are pushed through a function at once.
_CHUNK = 2**22


@dataclass(frozen=True)
class Operator:
    """A linear map from R^size: ``apply`` and ``transpose`` take columns, ``(·, m)`` to ``(·, m)``.

    ``like`` is any tensor of the map's dtype and device.
    """

    size: int
    like: Tensor
    apply: Callable[[Tensor], Tensor]
    transpose: Callable[[Tensor], Tensor]

    def dense(self) -> Tensor:
        """The matrix itself."""
        return self.apply(torch.eye(self.size, dtype=self.like.dtype, device=self.like.device))


def derivative(function: Callable[[Tensor], Tensor], at: Tensor) -> Operator:
    """The Jacobian of a map between vectors at a point.

    >>> import torch
    >>> derivative(torch.sin, torch.tensor([0.0, torch.pi])).dense()
    tensor([[ 1.,  0.],
            [-0., -1.]])
    """

    def push(columns: Tensor) -> Tensor:
        with forward_mode():
            return push_forward(function, at, columns)

    def pull(columns: Tensor) -> Tensor:
        with torch.enable_grad():
            point = at.detach().requires_grad_()
            value = function(point)
            if not value.requires_grad:  # constant in the point
                return columns.new_zeros(len(at), columns.shape[1])
            # One by one, since recomputing modules (checkpoints) can't be batched.
            rows = [
                torch.autograd.grad(value, point, column, retain_graph=True)[0]
                for column in columns.unbind(1)
            ]
        return torch.stack(rows, dim=1)

    return Operator(len(at), at, push, pull)


def push_forward(function: Callable[[Tensor], Tensor], at: Tensor, columns: Tensor) -> Tensor:
    """The function's Jacobian at a point times columns, in forward mode."""

    def along(direction: Tensor) -> Tensor:
        moved: Tensor = torch.func.jvp(function, (at,), (direction,))[1]
        return moved

    chunk = max(1, _CHUNK // max(1, len(at)))
    # Not by out_dims=1, which fails where the output doesn't depend on the direction.
    pushed: Tensor = torch.func.vmap(along, in_dims=1, chunk_size=chunk)(columns)
    return pushed.T


@contextmanager
def forward_mode() -> Iterator[None]:
    """Without grad, and without the kernels of attention that have no forward mode."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


def largest_singular_values(
    operator: Operator, count: int, *, depth: int = DEPTH, seed: int = 0
) -> Tensor:
    """The ``count`` largest singular values, by products with the map and its transpose alone.

    Costs ``(depth + 1) * (count + 1)`` products and about as many transposed ones.
    """
    found: list[Tensor] = []

    def normal(block: Tensor) -> Tensor:
        found.append(operator.apply(block))
        return operator.transpose(found[-1])

    _krylov(normal, operator, count, depth, seed)
    values: Tensor = torch.linalg.svdvals(hosted(torch.cat(found, dim=1)))
    return values[:count]


def largest_eigenvalue(symmetric: Operator, *, depth: int = 3 * DEPTH, seed: int = 0) -> float:
    """The largest eigenvalue (not the largest in size) of a symmetric map, by Rayleigh–Ritz.

    Powers of the map and not of its square are taken, so it needs more depth. At this one alone
    Gaussian matrices would be up to 1.2 % off, and an eigenvalue that is small beside the spread of
    the others much more (0.86 for the 1 of −100 … 1). So the map is applied further, up to
    ``DEEPER`` times as often, until the residual of the eigenvector says that an eigenvalue is
    within 1 %.
    """
    found: list[Tensor] = []

    def spy(block: Tensor) -> Tensor:
        found.append(symmetric.apply(block))
        return found[-1]

    def settled(basis: Tensor) -> bool:
        if len(found) < depth:
            return False
        value, residual = _top(basis, torch.cat(found, dim=1))
        return residual <= 0.01 * abs(value)

    basis = _krylov(spy, symmetric, 1, DEEPER * depth, seed, settled)
    return _top(basis, torch.cat(found, dim=1))[0]


def _top(basis: Tensor, images: Tensor) -> tuple[float, float]:
    """The largest Ritz value, and how far its vector is from an eigenvector."""
    basis, images = hosted(basis), hosted(images)
    projected = basis.T @ images
    values, vectors = torch.linalg.eigh((projected + projected.T) / 2)
    value, vector = values[-1], vectors[:, -1]
    return float(value), float(torch.linalg.vector_norm(images @ vector - value * basis @ vector))


def symmetric_part(operator: Operator, sign: int = 1) -> Operator:
    """±(J + Jᵀ)/2 of a square map."""

    def apply(block: Tensor) -> Tensor:
        return sign * (operator.apply(block) + operator.transpose(block)) / 2

    return Operator(operator.size, operator.like, apply, apply)


def _krylov(
    apply: Callable[[Tensor], Tensor],
    operator: Operator,
    count: int,
    depth: int,
    seed: int,
    settled: Callable[[Tensor], bool] = lambda basis: False,
) -> Tensor:
    """Orthonormal columns that span Ω, MΩ, …, M^depth Ω; M is applied to each of them, once.

    As soon as they are ``settled`` no more are made.
    """
    count = checked_count("count", count, least=1)
    if count > operator.size:
        raise ValueError(f"count={count} is more than the {operator.size} values that there are")
    checked_count("depth", depth, least=1)
    width = min(count + 1, operator.size)
    generator = torch.Generator().manual_seed(seed)
    start = torch.randn(
        operator.size, width, generator=generator, dtype=torch.float64, device="cpu"
    )
    block: Tensor = torch.linalg.qr(hosted(start.to(operator.like)))[0]
    basis = block
    for _ in range(depth):
        block = _new_directions(hosted(apply(block.to(operator.like))), basis)
        if block.shape[1] == 0 or settled(basis):  # or invariant: nothing is left to find in it
            return basis
        basis = torch.cat([basis, block], dim=1)
    apply(block.to(operator.like))
    return basis


def _new_directions(block: Tensor, basis: Tensor) -> Tensor:
    """Orthonormal columns for what a block has outside the basis."""
    size = float(torch.linalg.matrix_norm(block, 2))
    vectors, values, _ = torch.linalg.svd(_outside(block, basis), full_matrices=False)
    room = basis.shape[0] - basis.shape[1]
    kept = (values > 100 * torch.finfo(block.dtype).eps * size).nonzero()[:room, 0]
    # Once more, since what was scaled up from near nothing carries its rounding along.
    directions: Tensor = torch.linalg.qr(_outside(vectors[:, kept], basis))[0]
    return directions


def _outside(block: Tensor, basis: Tensor) -> Tensor:
    """What is left of columns without their part in the span of an orthonormal basis."""
    for _ in range(2):
        block = block - basis @ (basis.T @ block)
    return block
