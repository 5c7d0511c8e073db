"""Weights that stay orthogonal while they move: a form on top of another trajectory."""

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, nn

from nanode.bases.quadrature import gauss
from nanode.stages import Side, Stages
from nanode.trajectories.forms import Form
from nanode.trajectories.joined import joined
from nanode.trajectories.matrices import as_matrix, as_weight, is_wide
from nanode.trajectories.trajectory import (
    Named,
    Trajectory,
    TrajectoryFactory,
    Tree,
    full_precision,
    trainable,
)


class Orthogonal(Trajectory):
    r"""Weights with orthonormal columns or rows at every time.

    .. math:: W(t) = \mathcal{M}(G(t))

    G moves by another trajectory, without constraint, and the map :math:`\mathcal{M}` is a form:
    ``Householder``, ``Exponential``, ``Cayley``, or ``Skew`` for skew-symmetric weights. Everything
    starts at the orthogonal matrix nearest to the given one, held in time wherever the trajectory
    of G holds its start.

    Shapes: a weight ``(out, *rest)`` is read as a matrix of out × prod(rest), so a convolution
    kernel ``(out, in, kh, kw)`` as out × (in·kh·kw). Its columns are orthonormal if it has at least
    as many rows, else its rows. For a kernel larger than 1×1 that bounds the norm of the
    convolution by :math:`\sqrt{kh \cdot kw}` and doesn't make it norm-preserving; groups are not
    taken apart. G is stored in the weight's own shape (with fewer reflections, as a matrix).

    Args:
        parameters: the weights to start from, each of two axes or more.
        weights: makes the trajectory of G from named tensors.
        form: one form for all, or one by name.

    >>> import nanode
    >>> basis = nanode.Chebyshev(degree=3)
    >>> start = {"weight": torch.randn(5, 3)}
    >>> path = nanode.Orthogonal(start, lambda g: nanode.Expansion(g, basis), nanode.Householder())
    >>> _ = torch.nn.init.normal_(path.inner.coefficients.weight)
    >>> w = path(0.3)["weight"]
    >>> torch.allclose(w.T @ w, torch.eye(3), atol=1e-5)
    True
    """

    inner: Trajectory

    def __init__(
        self,
        parameters: Mapping[str, Tensor],
        weights: TrajectoryFactory,
        form: Form | Mapping[str, Form],
    ) -> None:
        super().__init__()
        if not parameters:
            raise ValueError("an orthogonal trajectory needs at least one weight, got none")
        forms = dict.fromkeys(parameters, form) if isinstance(form, Form) else form
        if not isinstance(forms, Mapping) or forms.keys() != parameters.keys():
            raise ValueError(
                "form must be one such as nanode.Householder(), or one for each of "
                f"{list(parameters)}, got {form!r}"
            )
        self.forms = dict(forms)
        self.shapes = {name: value.shape for name, value in parameters.items()}
        free, fixed = {}, {}
        for name, value in parameters.items():
            free[name], held = self._start(name, value)
            if held is not None:
                fixed[name] = held
        self.inner = weights(free)
        self.interval = self.inner.interval
        self.settle()
        self.fixed = Tree(fixed)
        self.check(self._landmarks())

    def settle(self) -> None:
        """Take over where G jumps; again after its trajectory was replaced."""
        self.breakpoints, self.jumps = self.inner.breakpoints, self.inner.jumps

    def forward(self, t: float | Tensor, side: Side = "right") -> Named:
        """Every weight at time t."""
        return self._matrices(self.inner(t, side), lead=0)

    def table(self, stages: Stages) -> Named:
        """Every weight at every stage, all stages at once."""
        return self._matrices(self.inner.table(stages), lead=1)

    def energy(self, m: int = 0) -> Tensor:
        r"""The sum over all weights of :math:`\int W^{(m)2} dt` for m = 0 or 1, by quadrature.

        For m = 0 it is constant unless the form is ``Skew``. Where weights jump, m = 1 takes first
        differences between the pieces, divided by their width. Elsewhere 64 nodes and more serve,
        which is as good as they resolve W(t): a reflection vector near zero turns fast.
        """
        if m not in (0, 1):
            raise ValueError(
                f"an orthogonal trajectory's energy is known for m = 0 and 1, got m = {m!r}"
            )
        return torch.stack([self._energy(part, m) for part in joined(self.inner)]).sum()

    def _energy(self, inner: Trajectory, m: int) -> Tensor:
        """That of the weights whose free numbers move by one trajectory."""
        edges = (inner.interval[0], *inner.breakpoints, inner.interval[1])
        if m == 1 and inner.jumps:
            middles = [(a + b) / 2 for a, b in pairwise(edges)]
            width = (edges[-1] - edges[0]) / len(middles)
            values = self._matrices(inner.table(Stages.alone(middles)), lead=1).values()
            return torch.stack([w.diff(dim=0).square().sum() / width for w in values]).sum()
        # One smooth piece needs many nodes, many short ones few.
        nodes, weights = gauss(edges, count=max(4, 64 // (len(edges) - 1)))
        if m == 0:
            values = self._matrices(inner.table(Stages.alone(nodes.tolist())), lead=1).values()
        else:
            values = torch.func.vmap(partial(self._velocity, inner))(nodes).values()
        return torch.stack([w.flatten(1).square().sum(1) @ weights.to(w) for w in values]).sum()

    @torch.no_grad()
    def check(self, times: Sequence[float]) -> None:
        """Raise where free numbers stand for no matrix, such as a reflection vector of zeros.

        Done at the start for the ends and the middles of all pieces between breakpoints, and never
        in a solve, where a GPU would have to wait for it. A vector may pass through zero between
        the times of a solve: a reflection is the same along −u. Only a weight at that very time
        lacks the reflection.
        """
        if all(type(form).check is Form.check for form in self.forms.values()):
            return  # any numbers will do
        for name, free in self.inner.table(Stages.alone(times)).items():
            if free.is_meta:
                continue
            wide = torch.promote_types(free.dtype, torch.float32)
            rows = as_matrix(free, self.shapes[name], lead=1)
            for t, g in zip(times, rows, strict=True):
                try:
                    self.forms[name].check(g.to(wide))
                except ValueError as why:
                    raise ValueError(f"{name!r} at t = {t}: {why}") from None

    def _velocity(self, inner: Trajectory, t: Tensor) -> Named:
        """dW/dt at time t of the weights whose free numbers move by one trajectory."""

        def at(t: Tensor) -> Named:
            return self._matrices(inner(t), lead=0)

        velocity: Named = torch.func.jvp(at, (t,), (torch.ones_like(t),))[1]
        return velocity

    def _start(self, name: str, value: Tensor) -> tuple[Tensor, Tensor | None]:
        """Free numbers to start from, laid out as the weight where they fill it, and fixed ones."""
        if value.ndim < 2 or not value.numel() or value.is_complex():
            raise ValueError(
                f"{name!r} can't be kept orthogonal: expected a real matrix or kernel, got "
                f"{value.dtype} of shape {tuple(value.shape)}; leave it out of orthogonal="
            )
        try:
            free, fixed = self.forms[name].right_inverse(as_matrix(value, value.shape))
        except ValueError as why:
            shape = tuple(value.shape)
            raise ValueError(f"{name!r} of shape {shape} can't be started: {why}") from None
        wide = is_wide(value.shape)
        free = (free.mT if wide else free).to(device=value.device, dtype=value.dtype)
        if free.numel() == value.numel():
            free = free.reshape(value.shape)
        if fixed is not None:
            fixed = fixed.to(device=value.device, dtype=value.dtype)
        return nn.Parameter(free.contiguous(), requires_grad=trainable(value)), fixed

    def _matrices(self, free: Named, lead: int) -> Named:
        fixed = dict(iter(self.fixed))
        return {
            name: _made(self.forms[name], g, fixed.get(name), self.shapes[name], lead)
            for name, g in free.items()
        }

    def _landmarks(self) -> list[float]:
        """The ends and the middles of all pieces: every bucket and every knot among them."""
        edges = [self.interval[0], *self.breakpoints, self.interval[1]]
        return sorted([*edges, *((a + b) / 2 for a, b in pairwise(edges))])

    def extra_repr(self) -> str:
        """The form of each weight."""
        return ", ".join(f"{name}: {form}" for name, form in self.forms.items())


def _made(form: Form, free: Tensor, fixed: Tensor | None, shape: torch.Size, lead: int) -> Tensor:
    """The weights of free numbers, leading axes kept."""
    # In half precision neither solves exist nor would the result be orthogonal.
    wide = torch.promote_types(free.dtype, torch.float32)
    with full_precision(free):
        matrix = form.matrix(
            as_matrix(free, shape, lead).to(wide), None if fixed is None else fixed.to(wide)
        ).to(free.dtype)
    return as_weight(matrix, shape)
