r"""Norm, ReLU, the last 1×1 convolution and the state's update, in one pass over the state.

.. math:: x' = \sum_i c_i x_i + s\,\mathrm{relu}(\mathrm{norm}(h))\,W^\top

The field's value never reaches memory. What the next evaluation wants of x' is made while it is
still in registers: in a forward solve its moments; in a backward solve, where moments are
remembered, already the next evaluation's first product (see :mod:`nanode.kernels.project`), which
saves a whole read of the state. Traffic for R rows: 4CR bytes per state read or written.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from nanode.kernels.language import (
    Norm,
    Tile,
    dot,
    folded,
    jit,
    padded,
    row_moments,
    serves,
    tl,
)
from nanode.kernels.moments import merge_moments, moments_reference, parts_for
from nanode.kernels.project import Moments, project_reference


@jit
def _expand(  # type: ignore[no-untyped-def]
    h,
    weight,
    bias,
    mean,
    rstd,
    matrix,
    first_state,
    second_state,
    out,
    parts,
    next_weight,
    next_bias,
    next_mean,
    next_rstd,
    next_matrix,
    next_h,
    R,
    scale,
    c0,
    c1,
    C: tl.constexpr,
    M: tl.constexpr,
    NEXT: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    MP: tl.constexpr,
    NP: tl.constexpr,
    SECOND: tl.constexpr,
    MOMENTS: tl.constexpr,
):
    block = tl.program_id(0)
    start = block.to(tl.int64) * ROWS
    r = tl.arange(0, ROWS)
    m = tl.arange(0, MP)
    n = tl.arange(0, NP)
    row_in = (r < (R - start).to(tl.int32))[None, :]
    count = tl.minimum(R - start, ROWS).to(tl.float32)
    there = (m < M)[:, None] & row_in
    value = tl.load(h + start * M + (r[None, :] * M + m[:, None]), mask=there, other=0.0)
    norm_scale, shift = folded(weight, bias, mean, rstd, m, m < M)
    active = tl.maximum(value.to(tl.float32) * norm_scale[:, None] + shift[:, None], 0.0)
    active = active.to(matrix.dtype.element_ty)
    first_state += start * C
    second_state += start * C
    out += start * C
    product = tl.zeros((NP, ROWS), tl.float32)
    # Channels go down, rows across: see "Channels down" in language.py.
    for first in range(0, C, COLUMNS):
        c = first + tl.arange(0, COLUMNS)
        c_in = c < C
        inside = c_in[:, None] & row_in
        where = r[None, :] * C + c[:, None]
        state = c0 * tl.load(first_state + where, mask=inside, other=0.0).to(tl.float32)
        if SECOND:
            state += c1 * tl.load(second_state + where, mask=inside, other=0.0).to(tl.float32)
        factor_in = c_in[:, None] & (m < M)[None, :]
        factor = tl.load(matrix + c[:, None] * M + m[None, :], mask=factor_in, other=0.0)
        state += scale * dot(factor, active, tl.zeros((COLUMNS, ROWS), tl.float32))
        tl.store(out + where, state.to(out.dtype.element_ty), mask=inside)
        if MOMENTS:
            centre, m2 = row_moments(state, row_in, count)
            tl.store(parts + block * 2 * C + c, centre, mask=c_in)
            tl.store(parts + block * 2 * C + C + c, m2, mask=c_in)
        if NEXT > 0:
            a, b = folded(next_weight, next_bias, next_mean, next_rstd, c, c_in)
            following = tl.maximum(state * a[:, None] + b[:, None], 0.0)
            next_in = (n < NEXT)[:, None] & c_in[None, :]
            second = tl.load(next_matrix + n[:, None] * C + c[None, :], mask=next_in, other=0.0)
            product = dot(second, following.to(second.dtype), product)
    if NEXT > 0:
        next_there = (n < NEXT)[:, None] & row_in
        next_h += start * NEXT
        result = product.to(next_h.dtype.element_ty)
        tl.store(next_h + r[None, :] * NEXT + n[:, None], result, mask=next_there)


Following = tuple[Norm, Tensor]


def _tile(channels: int, states: int, following: bool) -> Tile:
    """The fastest of those tried; a second product wants narrow chunks of channels."""
    if not following:
        return Tile(64, padded(channels, 64), 4, 2)
    return Tile(128 if states == 1 else 64, padded(channels, 32), 4, 3)


def expand_reference(
    h: Tensor,
    norm: Norm,
    matrix: Tensor,
    scale: float,
    states: Sequence[tuple[float, Tensor]],
    *,
    out: Tensor | None = None,
    eps: float | None = None,
    following: Following | None = None,
) -> tuple[Tensor, Moments | None, Tensor | None]:
    """:func:`expand` in plain PyTorch; the product in the states' precision, as in the kernel."""
    active = torch.relu((h - norm.mean) * (norm.rstd * norm.weight) + norm.bias).to(matrix.dtype)
    dtype = states[0][1].dtype
    new = scale * (active.to(dtype) @ matrix.mT.to(dtype))
    for coefficient, state in states:
        new = new + coefficient * state
    new = new if out is None else out.copy_(new)
    projected = None if following is None else project_reference(new, *following, eps=None)[0]
    return new, None if eps is None else moments_reference(new, eps), projected


def expand(
    h: Tensor,
    norm: Norm,
    matrix: Tensor,
    scale: float,
    states: Sequence[tuple[float, Tensor]],
    *,
    out: Tensor | None = None,
    eps: float | None = None,
    following: Following | None = None,
    tile: Tile | None = None,
) -> tuple[Tensor, Moments | None, Tensor | None]:
    """``sum(c * x for c, x in states) + scale * relu(norm(h)) @ matrix.T``, for 1 or 2 states.

    Shapes: h is ``(R, M)``, matrix ``(C, M)``, states and result ``(R, C)``. ``out`` may be one of
    the states. Also returns the result's moments if ``eps`` is given, and, if ``following`` is
    ``(norm, matrix)``, its :func:`~nanode.kernels.project.project`.
    """
    if len(states) not in (1, 2):
        raise ValueError(f"expected 1 or 2 states to combine, got {len(states)}")
    rows, width = h.shape
    channels = matrix.shape[0]
    following_width = following[1].shape[0] if following else 0
    if not serves(h, matrix, *(s for _, s in states)) or max(width, following_width) > 128:
        return expand_reference(
            h, norm, matrix, scale, states, out=out, eps=eps, following=following
        )
    tile = tile or _tile(channels, len(states), following is not None)
    (c0, first), (c1, second) = states[0], states[-1]
    new = torch.empty_like(first) if out is None else out
    parts = parts_for(h, channels, tile.rows) if eps is not None else new
    next_norm, next_matrix = following or (norm, matrix)
    next_h = h.new_empty(rows, following_width, dtype=next_matrix.dtype) if following else h
    _expand[(-(-rows // tile.rows),)](
        h,
        *norm,
        matrix,
        first,
        second,
        new,
        parts,
        *next_norm,
        next_matrix,
        next_h,
        rows,
        scale,
        c0,
        c1,
        C=channels,
        M=width,
        NEXT=following_width,
        ROWS=tile.rows,
        COLUMNS=tile.columns,
        MP=padded(width),
        NP=padded(following_width),
        SECOND=len(states) == 2,
        MOMENTS=eps is not None,
        **tile.options(),
    )
    found = None if eps is None else merge_moments(parts, rows, tile.rows, eps)
    return new, found, next_h if following else None
