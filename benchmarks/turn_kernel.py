r"""Finish one evaluation's cotangent and undo the evaluation before it, in one pass.

In the reversal of a coupled solver, the state x at which evaluation e was made is the state that
evaluation e − 1 had changed. So the last pass of e's VJP (:mod:`~nanode.kernels.project_backward`)
and the reversed update of e − 1 (:mod:`~nanode.kernels.expand`) read the same tensor. Here it is
read once:

.. math:: g' = \sum_i c_i g_i + \mathrm{vjp}_e(x), \qquad
          x' = a\,x + b\,y + s\,\mathrm{relu}(\mathrm{norm}(h))\,W^\top,

and of x', still in registers, the first product of the evaluation that was made there.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from nanode.kernels.expand import Following, expand_reference
from nanode.kernels.language import Norm, Tile, dot, folded, jit, padded, serves, tl, unit
from nanode.kernels.project_backward import project_backward_reference


class Cotangent(NamedTuple):
    """What :func:`~nanode.kernels.project_backward.project_backward` takes besides x."""

    gh: Tensor
    norm: Norm
    matrix: Tensor
    sums: Tensor
    cotangents: Sequence[tuple[float, Tensor]]


class Undo(NamedTuple):
    """What :func:`~nanode.kernels.expand.expand` takes, the other states apart from x."""

    h: Tensor
    norm: Norm
    matrix: Tensor
    scale: float
    coefficient: float
    others: Sequence[tuple[float, Tensor]] = ()


@jit
def _turn(  # type: ignore[no-untyped-def]
    x,
    gh,
    weight,
    bias,
    mean,
    rstd,
    matrix,
    sums,
    first_cotangent,
    second_cotangent,
    g_out,
    h,
    inner_weight,
    inner_bias,
    inner_mean,
    inner_rstd,
    up,
    other,
    x_out,
    next_weight,
    next_bias,
    next_mean,
    next_rstd,
    next_matrix,
    next_h,
    R,
    c0,
    c1,
    scale,
    cx,
    cy,
    C: tl.constexpr,
    M: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    MP: tl.constexpr,
    MANY: tl.constexpr,
    OTHER: tl.constexpr,
    NEXT: tl.constexpr,
):
    start = tl.program_id(0).to(tl.int64) * ROWS
    m = tl.arange(0, MP)
    r = tl.arange(0, ROWS)
    m_in = m < M
    row_in = (r < (R - start).to(tl.int32))[None, :]
    there = m_in[:, None] & row_in
    near = r[None, :] * M + m[:, None]
    back = tl.load(gh + start * M + near, mask=there, other=0.0)
    value = tl.load(h + start * M + near, mask=there, other=0.0).to(tl.float32)
    a, b = folded(inner_weight, inner_bias, inner_mean, inner_rstd, m, m_in)
    active = tl.maximum(value * a[:, None] + b[:, None], 0.0).to(up.dtype.element_ty)
    x += start * C
    first_cotangent += start * C
    second_cotangent += start * C
    g_out += start * C
    other += start * C
    x_out += start * C
    following = tl.zeros((MP, ROWS), tl.float32)
    # Channels go down, rows across: see "Channels down" in language.py.
    for first in range(0, C, COLUMNS):
        c = first + tl.arange(0, COLUMNS)
        c_in = c < C
        inside = c_in[:, None] & row_in
        where = r[None, :] * C + c[:, None]
        factor_in = c_in[:, None] & m_in[None, :]
        state = tl.load(x + where, mask=inside, other=0.0).to(tl.float32)
        # The cotangent.
        norm_scale, shift = folded(weight, bias, mean, rstd, c, c_in)
        rho, centre = unit(mean, rstd, c, c_in)
        moment = norm_scale * (tl.load(sums + C + c, mask=c_in, other=0.0) / R)
        plain = norm_scale * (tl.load(sums + c, mask=c_in, other=0.0) / R) + centre * moment
        moment *= rho
        grad = -state * moment[:, None] - plain[:, None]
        grad += c0 * tl.load(first_cotangent + where, mask=inside, other=0.0).to(tl.float32)
        if MANY > 1:
            grad += c1 * tl.load(second_cotangent + where, mask=inside, other=0.0).to(tl.float32)
        factor = tl.load(matrix + m[None, :] * C + c[:, None], mask=factor_in, other=0.0)
        product = dot(factor, back, tl.zeros((COLUMNS, ROWS), tl.float32))
        on = state * norm_scale[:, None] + shift[:, None] > 0
        grad += tl.where(on, norm_scale[:, None] * product, 0.0)
        tl.store(g_out + where, grad.to(g_out.dtype.element_ty), mask=inside)
        # The state.
        state *= cx
        if OTHER:
            state += cy * tl.load(other + where, mask=inside, other=0.0).to(tl.float32)
        factor = tl.load(up + c[:, None] * M + m[None, :], mask=factor_in, other=0.0)
        state += scale * dot(factor, active, tl.zeros((COLUMNS, ROWS), tl.float32))
        tl.store(x_out + where, state.to(x_out.dtype.element_ty), mask=inside)
        if NEXT:
            slope, level = folded(next_weight, next_bias, next_mean, next_rstd, c, c_in)
            ahead = tl.maximum(state * slope[:, None] + level[:, None], 0.0)
            next_in = m_in[:, None] & c_in[None, :]
            second = tl.load(next_matrix + m[:, None] * C + c[None, :], mask=next_in, other=0.0)
            following = dot(second, ahead.to(second.dtype), following)
    if NEXT:
        tl.store(next_h + start * M + near, following.to(next_h.dtype.element_ty), mask=there)


def turn_reference(
    x: Tensor,
    cotangent: Cotangent,
    undo: Undo,
    *,
    g_out: Tensor | None = None,
    x_out: Tensor | None = None,
    following: Following | None = None,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """:func:`turn` in plain PyTorch."""
    gh, norm, matrix, sums, cotangents = cotangent
    g = project_backward_reference(gh, x, norm, matrix, sums, cotangents, out=g_out)
    states = [(undo.coefficient, x), *undo.others]
    new, _, product = expand_reference(
        undo.h, undo.norm, undo.matrix, undo.scale, states, out=x_out, following=following
    )
    return g, new, product


def turn(
    x: Tensor,
    cotangent: Cotangent,
    undo: Undo,
    *,
    g_out: Tensor | None = None,
    x_out: Tensor | None = None,
    following: Following | None = None,
    tile: Tile | None = None,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """The state's new cotangent, the state before, and ``following``'s product there.

    Shapes as in ``project_backward`` and ``expand``; one or two cotangents, no or one other state.
    ``g_out`` may be one of the cotangents and ``x_out`` may be x.
    """
    gh, norm, matrix, sums, cotangents = cotangent
    if len(cotangents) not in (1, 2) or len(undo.others) > 1:
        raise ValueError(
            "expected 1 or 2 cotangents and at most 1 other state, "
            f"got {len(cotangents)} and {len(undo.others)}"
        )
    rows, channels = x.shape
    width = matrix.shape[0]
    next_norm, next_matrix = following or (norm, matrix)
    big = [x, *(t for _, t in cotangents), *(t for _, t in undo.others)]
    same = undo.matrix.shape[1] == next_matrix.shape[0] == width
    if not serves(gh, matrix, undo.h, undo.matrix, next_matrix, *big) or width > 128 or not same:
        return turn_reference(x, cotangent, undo, g_out=g_out, x_out=x_out, following=following)
    tile = tile or Tile(64, padded(channels, 64), 4, 2)
    (c0, first), (c1, second) = cotangents[0], cotangents[-1]
    cy, other = undo.others[0] if undo.others else (0.0, x)
    g = torch.empty_like(x, dtype=torch.float32) if g_out is None else g_out
    new = torch.empty_like(x) if x_out is None else x_out
    next_h = torch.empty_like(gh) if following else gh
    _turn[(-(-rows // tile.rows),)](
        x,
        gh,
        *norm,
        matrix,
        sums,
        first,
        second,
        g,
        undo.h,
        *undo.norm,
        undo.matrix,
        other,
        new,
        *next_norm,
        next_matrix,
        next_h,
        rows,
        c0,
        c1,
        undo.scale,
        undo.coefficient,
        cy,
        C=channels,
        M=width,
        ROWS=tile.rows,
        COLUMNS=tile.columns,
        MP=padded(width),
        MANY=len(cotangents),
        OTHER=bool(undo.others),
        NEXT=following is not None,
        **tile.options(),
    )
    return g, new, next_h if following else None
