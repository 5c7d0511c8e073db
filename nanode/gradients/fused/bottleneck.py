"""Solves of the pre-activation bottleneck by fused kernels: few passes over the state.

For the field norm, ReLU, 1×1 convolution; norm, ReLU, 3×3 convolution; norm, ReLU, 1×1 convolution
(batch norm in training), every kernel reads the state once for all that can be done with it: see
:mod:`nanode.kernels`. Statistics of every evaluation are remembered, so nothing is reduced twice;
undoing a step, the kernel that rebuilds the state makes the next evaluation's first product too.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nanode.fields import Autonomous, BatchNorm, Field, TimeVarying
from nanode.fields.walk import hooks, parts_of
from nanode.kernels import (
    Norm,
    activate,
    activate_backward,
    activate_sums,
    expand,
    expand_backward,
    moments,
    project,
    project_backward,
    project_backward_sums,
)
from nanode.kernels.project import Moments

#: The weights of a bottleneck by their place in the module, convolutions first.
NAMES = tuple(f"{n}.weight" for n in (2, 5, 8)) + tuple(
    f"{n}.{leaf}" for n in (0, 3, 6) for leaf in ("weight", "bias")
)


def is_bottleneck(field: Field) -> bool:
    """Whether the kernels serve this field: a bottleneck, its norms in one mode."""
    module = getattr(field, "module", None)
    # Not subclasses, which may do something else.
    if type(field) not in (TimeVarying, Autonomous) or type(module) is not nn.Sequential:
        return False
    parts = list(module)
    if len(parts) != 9 or len({part.training for part in parts[::3]}) > 1:
        return False
    if hooks(parts_of(module)):
        return False
    norms, activations, convolutions = parts[::3], parts[1::3], parts[2::3]
    return (
        all(type(part) is BatchNorm and part.affine for part in norms)
        and _unshared(field)
        and len({(part.eps, part.momentum) for part in norms}) == 1
        and all(type(part) is nn.ReLU for part in activations)
        and all(_plain(part, size) for part, size in zip(convolutions, (1, 3, 1), strict=True))
        and _fits(norms, convolutions)
    )


def _unshared(field: Field) -> bool:
    """Whether every weight goes by its own name, as it doesn't where two are one."""
    lender: Any = getattr(field, "_lender", None)
    return {name for *_, name, own in lender.places if name == own}.issuperset(NAMES)


def _fits(norms: Sequence[Any], convolutions: Sequence[Any]) -> bool:
    """Whether each layer takes what the one before gives: kernels ask nobody."""
    wide, narrow, same = (norm.features for norm in norms)
    given = [(wide, narrow), (narrow, same), (same, wide)]
    found = [(part.in_channels, part.out_channels) for part in convolutions]
    return narrow == same and found == given


def _plain(part: nn.Module, size: int) -> bool:
    """A convolution of that size that keeps the resolution, with nothing special about it."""
    return (
        type(part) is nn.Conv2d
        and part.kernel_size == (size, size)
        and part.stride == part.dilation == (1, 1)
        and part.padding == (size // 2, size // 2)
        and part.groups == 1
        and part.bias is None
        and part.padding_mode == "zeros"
    )


class Weights(NamedTuple):
    """The weights of one evaluation: 1×1 convolutions as matrices, norms as (weight, bias)."""

    first: Tensor
    middle: Tensor
    last: Tensor
    norms: tuple[tuple[Tensor, Tensor], ...]


class Inner(NamedTuple):
    """What an evaluation made inside: its norms with their statistics, and the two products."""

    norms: tuple[Norm, Norm, Norm]
    first: Tensor
    second: Tensor


class Bottlenecks:
    """All evaluations of one solve: forward, again, and pulled back."""

    def __init__(
        self, tensors: Sequence[Tensor], moving: Sequence[bool], dtype: torch.dtype, x: Tensor
    ) -> None:
        self.moving, self.dtype, self.wide, self.eps = list(moving), dtype, x.dtype, 1e-5
        self.size = (x.shape[0], *x.shape[2:])
        self.given = [(t.shape, t.dtype) for t in tensors]
        # Cast and laid out once for all evaluations, not once a step.
        first, middle, last, *affine = tensors
        self.ready = [
            _packed(first.flatten(-3), dtype),
            _packed(middle.movedim(-3, -1), dtype).movedim(-1, -3),
            _packed(last.flatten(-3), dtype),
            *(_packed(tensor, x.dtype) for tensor in affine),
        ]
        self.rows: list[Tensor] = []
        #: The norms' statistics in each evaluation where they are not the batch's own.
        self.fixed: Sequence[tuple[Moments, ...]] = ()

    def weights(self, i: int) -> Weights:
        """The weights of evaluation i."""
        row = [t[i] if m else t for t, m in zip(self.ready, self.moving, strict=True)]
        return Weights(
            row[0], row[1], row[2], ((row[3], row[4]), (row[5], row[6]), (row[7], row[8]))
        )

    def opening(self, x: Tensor) -> Moments | None:
        """The statistics that the first evaluation needs; none where they are fixed."""
        return None if self.fixed else moments(x, self.eps)

    def forward(
        self,
        i: int,
        x: Tensor,
        statistics: Moments | None,
        scale: float,
        states: Sequence[tuple[float, Tensor]],
        out: Tensor | None = None,
    ) -> tuple[Tensor, Moments | None, Inner]:
        """Σ c·state + scale·f(x), its statistics, and what was made inside."""
        inner = self.inside(i, x, statistics)
        matrix, eps = self.weights(i).last, None if self.fixed else self.eps
        new, following, _ = expand(
            inner.second, inner.norms[2], matrix, scale, states, eps=eps, out=out
        )
        return new, following, inner

    def inside(self, i: int, x: Tensor, statistics: Moments | None) -> Inner:
        """Evaluation i at x up to its last norm, of which only f itself is left to be made."""
        w, eps = self.weights(i), None if self.fixed else self.eps
        stored = self.fixed[i] if self.fixed else ()
        one = Norm(*w.norms[0], *(statistics or stored[0]))
        h, found = project(x, one, w.first, eps=eps)
        two = Norm(*w.norms[1], *(found or stored[1]))
        second = self._convolved(activate(h, two, dtype=self.dtype), w.middle)
        three = Norm(*w.norms[2], *(moments(second, eps) if eps else stored[2]))
        return Inner((one, two, three), h, second)

    def again(self, i: int, h: Tensor, norms: tuple[Norm, Norm, Norm]) -> tuple[Tensor, Tensor]:
        """The middle of evaluation i from its first product: activation and second product."""
        active = activate(h, norms[1], dtype=self.dtype)
        return active, self._convolved(active, self.weights(i).middle)

    def pull(
        self,
        i: int,
        x: Tensor,
        inner: Inner,
        active: Tensor,
        g: Tensor,
        scale: float,
        cotangents: Sequence[tuple[float, Tensor]],
        out: Tensor | None = None,
    ) -> Tensor:
        """Σ c·cotangent + the pullback of scale·g to x; gradients of the weights are stored."""
        w, (one, two, three), rows = self.weights(i), inner.norms, self.rows
        into = (rows[2][i], rows[5][i])
        g3, sums3, _ = expand_backward(g, scale, inner.second, three, w.last, out=into)
        g2 = activate_backward(g3, inner.second, three, sums3, out=g3)
        in_active, in_middle, _ = torch.ops.aten.convolution_backward(
            self._images(g2),
            self._images(active),
            w.middle,
            None,
            [1, 1],
            [1, 1],
            [1, 1],
            False,
            [0, 0],
            1,
            [True, True, False],
        )
        rows[4][i].copy_(in_middle)
        del g2, g3
        g1 = rows_of(in_active)
        sums2 = activate_sums(g1, inner.first, two, out=rows[1][i])
        g1 = activate_backward(g1, inner.first, two, sums2, out=g1)
        sums1, _ = project_backward_sums(g1, x, one, w.first, out=(rows[0][i], rows[3][i]))
        return project_backward(g1, x, one, w.first, sums1, cotangents, out=out)

    def prepare_grads(self, evaluations: int, device: torch.device) -> None:
        """Room for what every evaluation gives its weights: norms first, written once each."""
        first, middle, last, *affine = (
            tuple(t.shape[m:]) for t, m in zip(self.ready, self.moving, strict=True)
        )
        shapes = [(2, *affine[n]) for n in (0, 2, 4)] + [first, middle, last]
        self.rows = [torch.empty(evaluations, *s, dtype=self.wide, device=device) for s in shapes]

    def skip(self, i: int) -> None:
        """Evaluation i gets no gradient."""
        torch._foreach_zero_([part[i] for part in self.rows])

    def grads(self) -> list[Tensor]:
        """The gradients of the tables, in their order; those of constants are summed."""
        # A norm's sums are the gradients of its bias and weight, in this order.
        affine = [part for rows in self.rows[:3] for part in (rows[:, 1], rows[:, 0])]
        found = zip([*self.rows[3:], *affine], self.moving, self.given, strict=True)
        return [(g if m else g.sum(0)).reshape(shape).to(dtype) for g, m, (shape, dtype) in found]

    def _convolved(self, active: Tensor, kernel: Tensor) -> Tensor:
        return rows_of(F.conv2d(self._images(active), kernel, padding=1))

    def _images(self, rows: Tensor) -> Tensor:
        return images_of(rows, self.size)


def _packed(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Cast and made contiguous, by one copy at the most."""
    return tensor.to(dtype, memory_format=torch.contiguous_format).contiguous()


def images_of(rows: Tensor, size: Sequence[int]) -> Tensor:
    """Rows of pixels as a channels-last batch; ``size`` is (batch, height, width)."""
    return rows.view(*size, rows.shape[1]).permute(0, 3, 1, 2)


def rows_of(images: Tensor) -> Tensor:
    """Images as a matrix of pixels by channels; a view where channels lie together."""
    return images.permute(0, 2, 3, 1).reshape(-1, images.shape[1])
