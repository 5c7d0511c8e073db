r"""Backward of :mod:`nanode.kernels.expand`: the state's cotangent is read once.

With :math:`g_k = s\,g` in the product's precision and :math:`a = \mathrm{relu}(\mathrm{norm}(h))`:

.. math:: g_a = \mathbb 1[a > 0]\; g_k W, \qquad g_W = g_k^\top a, \qquad
          \textstyle\sum_r g_a, \quad \sum_r g_a \hat h .

Each program walks over its share of the rows and keeps its part of the weight's gradient in
registers; the parts are added in a fixed order afterwards.
"""

import torch
from torch import Tensor

from nanode.kernels.activate import add_parts
from nanode.kernels.language import Norm, Tile, dot, folded, jit, padded, programs, serves, tl, unit


@jit
def _expand_backward(  # type: ignore[no-untyped-def]
    g,
    h,
    weight,
    bias,
    mean,
    rstd,
    matrix,
    ga,
    parts,
    R,
    scale,
    C: tl.constexpr,
    M: tl.constexpr,
    ROWS: tl.constexpr,
    CP: tl.constexpr,
    MP: tl.constexpr,
    STAGES: tl.constexpr,
):
    m = tl.arange(0, MP)
    c = tl.arange(0, CP)
    r = tl.arange(0, ROWS)
    m_in = m < M
    c_in = c < C
    norm_scale, shift = folded(weight, bias, mean, rstd, m, m_in)
    rho, centre = unit(mean, rstd, m, m_in)
    factor_in = m_in[:, None] & c_in[None, :]
    factor = tl.load(matrix + c[None, :] * M + m[:, None], mask=factor_in, other=0.0)
    origin = tl.zeros((), tl.int64)
    plain = tl.zeros((MP,), tl.float32)
    moment = tl.zeros((MP,), tl.float32)
    gw = tl.zeros((MP, CP), tl.float32)
    # Channels go down, rows across: see "Channels down" in language.py.
    for block in tl.range(
        tl.program_id(0), tl.cdiv(R, ROWS), tl.num_programs(0), num_stages=STAGES
    ):
        start = origin + block * ROWS
        row_in = r < (R - start).to(tl.int32)
        there = row_in[:, None] & c_in[None, :]
        grad = tl.load(g + start * C + (r[:, None] * C + c[None, :]), mask=there, other=0.0)
        there = m_in[:, None] & row_in[None, :]
        where = r[None, :] * M + m[:, None]
        value = tl.load(h + start * M + where, mask=there, other=0.0).to(tl.float32)
        gk = (scale * grad.to(tl.float32)).to(factor.dtype)
        active = tl.maximum(value * norm_scale[:, None] + shift[:, None], 0.0)
        back = dot(factor, tl.trans(gk), tl.zeros((MP, ROWS), tl.float32))
        # Rows outside have a cotangent of zero, so they add nothing anywhere.
        gw = dot(active.to(factor.dtype), gk, gw)
        rounded = tl.where(active > 0, back, 0.0).to(ga.dtype.element_ty)
        tl.store(ga + start * M + where, rounded, mask=there)
        back = rounded.to(tl.float32)
        plain += tl.sum(back, 1)
        moment += tl.sum(back * (value * rho[:, None] + centre[:, None]), 1)
    parts += tl.program_id(0).to(tl.int64) * (C * M + 2 * M)
    tl.store(parts + m, plain, mask=m_in)
    tl.store(parts + M + m, moment, mask=m_in)
    tl.store(parts + 2 * M + c[None, :] * M + m[:, None], gw, mask=factor_in)


def expand_backward_reference(
    g: Tensor,
    scale: float,
    h: Tensor,
    norm: Norm,
    matrix: Tensor,
    *,
    out: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """:func:`expand_backward` in plain PyTorch."""
    unit = (h - norm.mean) * norm.rstd
    active = torch.relu(unit * norm.weight + norm.bias)
    gk = (scale * g).to(matrix.dtype)
    ga = torch.where(active > 0, gk @ matrix, 0)
    sums = torch.stack((ga.to(unit.dtype).sum(0), (ga * unit).sum(0)))
    dtype = torch.promote_types(matrix.dtype, torch.float32)
    gw = gk.mT.to(dtype) @ active.to(matrix.dtype).to(dtype)
    if out is not None:
        sums, gw = out[0].copy_(sums), out[1].copy_(gw)
    return ga, sums, gw


def expand_backward(
    g: Tensor,
    scale: float,
    h: Tensor,
    norm: Norm,
    matrix: Tensor,
    *,
    out: tuple[Tensor, Tensor] | None = None,
    tile: Tile | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """What ``scale * relu(norm(h)) @ matrix.T`` gives back for the cotangent ``g``.

    Returns the masked cotangent of the normalised h, ``(R, M)`` in the matrix's dtype, its two
    sums ``(2, M)`` (the gradients of the norm's bias and weight) and the matrix's gradient
    ``(C, M)`` in fp32, both written to ``out`` if given. Shapes: g is ``(R, C)``, h ``(R, M)``,
    matrix ``(C, M)``.
    """
    rows, width = h.shape
    channels = matrix.shape[0]
    if not serves(g, h, matrix) or padded(width) * padded(channels) > 256 * 64:
        return expand_backward_reference(g, scale, h, norm, matrix, out=out)
    tile = tile or Tile(32, 2, 4, 3)
    many = min(programs(g, tile.columns), -(-rows // tile.rows))
    ga = torch.empty(rows, width, device=g.device, dtype=matrix.dtype)
    parts = torch.empty(many, (channels + 2) * width, device=g.device, dtype=torch.float32)
    _expand_backward[(many,)](
        g,
        h,
        *norm,
        matrix,
        ga,
        parts,
        rows,
        scale,
        C=channels,
        M=width,
        ROWS=tile.rows,
        CP=padded(channels),
        MP=padded(width),
        STAGES=tile.stages,
        **tile.options(),
    )
    sums, gw = out or (parts.new_empty(2, width), parts.new_empty(channels, width))
    add_parts(parts, sums, gw)
    return ga, sums, gw
