r"""Backward of :mod:`nanode.kernels.project`, in two passes over the state.

The norm's backward needs two sums over all rows before any row can be finished. The first pass
makes them, and the weight's gradient, from two products over the rows, with :math:`m` the ReLU's
mask and :math:`\hat x` the normalised state: :math:`T_0 = g_h^\top m`,
:math:`T_1 = g_h^\top (m\hat x)` give

.. math:: \textstyle\sum_r g_a = \sum W \odot T_0, \quad \sum_r g_a \hat x = \sum W \odot T_1,
          \quad g_W = w\, T_1 + b\, T_0

without ever forming :math:`g_a = m \odot g_h W`. The second pass forms it, in registers, and adds
the result to the cotangents of the state:

.. math:: g' = \sum_i c_i g_i + w\rho\,\bigl(g_a - \tfrac1R\textstyle\sum g_a
          - \hat x\,\tfrac1R\sum g_a \hat x\bigr) .
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from nanode.kernels.activate import add_parts
from nanode.kernels.language import Norm, Tile, dot, folded, jit, padded, programs, serves, tl, unit


@jit
def _sums(  # type: ignore[no-untyped-def]
    gh,
    x,
    weight,
    bias,
    mean,
    rstd,
    matrix,
    parts,
    R,
    C: tl.constexpr,
    M: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    MP: tl.constexpr,
    STAGES: tl.constexpr,
):
    m = tl.arange(0, MP)
    c = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    r = tl.arange(0, ROWS)
    m_in = m < M
    c_in = c < C
    scale, shift = folded(weight, bias, mean, rstd, c, c_in)
    rho, centre = unit(mean, rstd, c, c_in)
    factor_in = m_in[:, None] & c_in[None, :]
    origin = tl.zeros((), tl.int64)
    masks = tl.zeros((MP, COLUMNS), tl.float32)
    units = tl.zeros((MP, COLUMNS), tl.float32)
    for block in tl.range(
        tl.program_id(1), tl.cdiv(R, ROWS), tl.num_programs(1), num_stages=STAGES
    ):
        start = origin + block * ROWS
        row_in = (r < (R - start).to(tl.int32))[:, None]
        there = row_in & m_in[None, :]
        back = tl.load(gh + start * M + (r[:, None] * M + m[None, :]), mask=there, other=0.0)
        there = row_in & c_in[None, :]
        value = tl.load(x + start * C + (r[:, None] * C + c[None, :]), mask=there, other=0.0)
        value = value.to(tl.float32)
        # Rows outside have gh = 0, so they add nothing anywhere.
        on = value * scale[None, :] + shift[None, :] > 0
        hat = tl.where(on, value * rho[None, :] + centre[None, :], 0.0)
        masks = dot(tl.trans(back), tl.where(on, 1.0, 0.0).to(back.dtype), masks)
        units = dot(tl.trans(back), hat.to(back.dtype), units)
    factor = tl.load(matrix + m[:, None] * C + c[None, :], mask=factor_in, other=0.0)
    factor = factor.to(tl.float32)
    w = tl.load(weight + c, mask=c_in, other=0.0)[None, :]
    b = tl.load(bias + c, mask=c_in, other=0.0)[None, :]
    parts += tl.program_id(1).to(tl.int64) * (C * M + 2 * C)
    tl.store(parts + c, tl.sum(masks * factor, 0), mask=c_in)
    tl.store(parts + C + c, tl.sum(units * factor, 0), mask=c_in)
    gw = units * w + masks * b
    tl.store(parts + 2 * C + m[:, None] * C + c[None, :], gw, mask=factor_in)


@jit
def _project_backward(  # type: ignore[no-untyped-def]
    gh,
    x,
    weight,
    bias,
    mean,
    rstd,
    matrix,
    sums,
    first_cotangent,
    second_cotangent,
    out,
    R,
    c0,
    c1,
    C: tl.constexpr,
    M: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    MP: tl.constexpr,
    MANY: tl.constexpr,
):
    start = tl.program_id(0).to(tl.int64) * ROWS
    m = tl.arange(0, MP)
    r = tl.arange(0, ROWS)
    m_in = m < M
    row_in = (r < (R - start).to(tl.int32))[None, :]
    there = m_in[:, None] & row_in
    back = tl.load(gh + start * M + (r[None, :] * M + m[:, None]), mask=there, other=0.0)
    x += start * C
    first_cotangent += start * C
    second_cotangent += start * C
    out += start * C
    # Channels go down, rows across: see "Channels down" in language.py.
    for first in range(0, C, COLUMNS):
        c = first + tl.arange(0, COLUMNS)
        c_in = c < C
        inside = c_in[:, None] & row_in
        where = r[None, :] * C + c[:, None]
        value = tl.load(x + where, mask=inside, other=0.0).to(tl.float32)
        scale, shift = folded(weight, bias, mean, rstd, c, c_in)
        rho, centre = unit(mean, rstd, c, c_in)
        moment = scale * (tl.load(sums + C + c, mask=c_in, other=0.0) / R)
        plain = scale * (tl.load(sums + c, mask=c_in, other=0.0) / R) + centre * moment
        moment *= rho
        factor_in = c_in[:, None] & m_in[None, :]
        factor = tl.load(matrix + m[None, :] * C + c[:, None], mask=factor_in, other=0.0)
        grad = -value * moment[:, None] - plain[:, None]
        if MANY > 0:
            grad += c0 * tl.load(first_cotangent + where, mask=inside, other=0.0).to(tl.float32)
        if MANY > 1:
            grad += c1 * tl.load(second_cotangent + where, mask=inside, other=0.0).to(tl.float32)
        product = dot(factor, back, tl.zeros((COLUMNS, ROWS), tl.float32))
        on = value * scale[:, None] + shift[:, None] > 0
        grad += tl.where(on, scale[:, None] * product, 0.0)
        tl.store(out + where, grad.to(out.dtype.element_ty), mask=inside)


def _unit_and_grad(gh: Tensor, x: Tensor, norm: Norm, matrix: Tensor) -> tuple[Tensor, Tensor]:
    unit = (x - norm.mean) * norm.rstd
    product = gh.to(unit.dtype) @ matrix.to(unit.dtype)
    return unit, torch.where(unit * norm.weight + norm.bias > 0, product, 0)


def project_backward_sums_reference(
    gh: Tensor,
    x: Tensor,
    norm: Norm,
    matrix: Tensor,
    *,
    out: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """:func:`project_backward_sums` in plain PyTorch."""
    unit, grad = _unit_and_grad(gh, x, norm, matrix)
    active = torch.relu(unit * norm.weight + norm.bias).to(matrix.dtype).to(unit.dtype)
    sums, gw = torch.stack((grad.sum(0), (grad * unit).sum(0))), gh.mT.to(unit.dtype) @ active
    return (sums, gw) if out is None else (out[0].copy_(sums), out[1].copy_(gw))


def project_backward_sums(
    gh: Tensor,
    x: Tensor,
    norm: Norm,
    matrix: Tensor,
    *,
    out: tuple[Tensor, Tensor] | None = None,
    tile: Tile | None = None,
) -> tuple[Tensor, Tensor]:
    """The sums of the norm's backward ``(2, C)`` and the matrix's gradient ``(M, C)``, fp32.

    Shapes: gh is ``(R, M)``, x ``(R, C)``, matrix ``(M, C)``. The sums are also the gradients of
    the norm's bias and weight. Both are written to ``out`` if given.
    """
    rows, channels = x.shape
    width = matrix.shape[0]
    if not serves(gh, x, matrix) or padded(width) > 128:
        return project_backward_sums_reference(gh, x, norm, matrix, out=out)
    tile = tile or Tile(128, padded(channels, 32), 4, 2)
    chunks = -(-channels // tile.columns)
    many = min(max(1, programs(x, 3) // chunks), -(-rows // tile.rows))
    parts = torch.empty(many, (width + 2) * channels, device=x.device, dtype=torch.float32)
    _sums[(chunks, many)](
        gh,
        x,
        *norm,
        matrix,
        parts,
        rows,
        C=channels,
        M=width,
        ROWS=tile.rows,
        COLUMNS=tile.columns,
        MP=padded(width),
        STAGES=tile.stages,
        **tile.options(),
    )
    sums, gw = out or (parts.new_empty(2, channels), parts.new_empty(width, channels))
    add_parts(parts, sums, gw)
    return sums, gw


def project_backward_reference(
    gh: Tensor,
    x: Tensor,
    norm: Norm,
    matrix: Tensor,
    sums: Tensor,
    cotangents: Sequence[tuple[float, Tensor]] = (),
    *,
    out: Tensor | None = None,
) -> Tensor:
    """:func:`project_backward` in plain PyTorch."""
    unit, grad = _unit_and_grad(gh, x, norm, matrix)
    plain, moment = sums / x.shape[0]
    grad = (norm.weight * norm.rstd) * (grad - plain - unit * moment)
    for coefficient, cotangent in cotangents:
        grad = grad + coefficient * cotangent
    return grad if out is None else out.copy_(grad)


def project_backward(
    gh: Tensor,
    x: Tensor,
    norm: Norm,
    matrix: Tensor,
    sums: Tensor,
    cotangents: Sequence[tuple[float, Tensor]] = (),
    *,
    out: Tensor | None = None,
    tile: Tile | None = None,
) -> Tensor:
    """The state's new cotangent: ``sum(c * g for c, g in cotangents)`` plus the field's own.

    Shapes as in :func:`project_backward_sums`, which gives ``sums``; cotangents and the result are
    ``(R, C)``, at most two of them, and ``out`` may be one of them.
    """
    if len(cotangents) > 2:
        raise ValueError(f"expected at most 2 cotangents to combine, got {len(cotangents)}")
    rows, channels = x.shape
    width = matrix.shape[0]
    if not serves(gh, x, matrix, *(g for _, g in cotangents)) or padded(width) > 128:
        return project_backward_reference(gh, x, norm, matrix, sums, cotangents, out=out)
    tile = tile or Tile(32, padded(channels, 128), 4, 1, 128)
    (c0, first), (c1, second) = (
        (cotangents[0], cotangents[-1]) if cotangents else ((0.0, x), (0.0, x))
    )
    new = torch.empty_like(x, dtype=torch.float32) if out is None else out
    _project_backward[(-(-rows // tile.rows),)](
        gh,
        x,
        *norm,
        matrix,
        sums,
        first,
        second,
        new,
        rows,
        c0,
        c1,
        C=channels,
        M=width,
        ROWS=tile.rows,
        COLUMNS=tile.columns,
        MP=padded(width),
        MANY=len(cotangents),
        **tile.options(),
    )
    return new
