r"""Norm, ReLU and a 1×1 convolution as one product, with the statistics of what comes out.

.. math:: h = \mathrm{relu}(\mathrm{norm}(x))\, W^\top

The state is read once, in its own precision; the normalised activation exists only in registers.
Traffic for R rows: 4CR bytes in (fp32), 2MR out.
"""

import torch
from torch import Tensor

from nanode.kernels.language import (
    Norm,
    Tile,
    column_moments,
    dot,
    folded,
    jit,
    padded,
    serves,
    tl,
)
from nanode.kernels.moments import merge_moments, moments_reference, parts_for


@jit
def _project(  # type: ignore[no-untyped-def]
    x,
    weight,
    bias,
    mean,
    rstd,
    matrix,
    h,
    parts,
    R,
    C: tl.constexpr,
    M: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    MP: tl.constexpr,
    MOMENTS: tl.constexpr,
):
    block = tl.program_id(0)
    start = block.to(tl.int64) * ROWS
    r = tl.arange(0, ROWS)
    m = tl.arange(0, MP)
    row_in = (r < (R - start).to(tl.int32))[:, None]
    x += start * C
    out = tl.zeros((ROWS, MP), tl.float32)
    for first in range(0, C, COLUMNS):
        c = first + tl.arange(0, COLUMNS)
        c_in = c < C
        value = tl.load(x + r[:, None] * C + c[None, :], mask=row_in & c_in[None, :], other=0.0)
        scale, shift = folded(weight, bias, mean, rstd, c, c_in)
        active = tl.maximum(value.to(tl.float32) * scale[None, :] + shift[None, :], 0.0)
        matrix_in = c_in[:, None] & (m < M)[None, :]
        factor = tl.load(matrix + m[None, :] * C + c[:, None], mask=matrix_in, other=0.0)
        out = dot(active.to(factor.dtype), factor, out)
    m_in = m < M
    result = out.to(h.dtype.element_ty)
    h += start * M
    tl.store(h + r[:, None] * M + m[None, :], result, mask=row_in & m_in[None, :])
    if MOMENTS:
        count = tl.minimum(R - start, ROWS).to(tl.float32)
        mu, m2 = column_moments(result.to(tl.float32), row_in, count)
        tl.store(parts + block * 2 * M + m, mu, mask=m_in)
        tl.store(parts + block * 2 * M + M + m, m2, mask=m_in)


Moments = tuple[Tensor, Tensor]


def project_reference(
    x: Tensor, norm: Norm, matrix: Tensor, *, eps: float | None = 1e-5
) -> tuple[Tensor, Moments | None]:
    """:func:`project` in plain PyTorch."""
    active = torch.relu((x - norm.mean) * (norm.rstd * norm.weight) + norm.bias)
    h = active.to(matrix.dtype) @ matrix.mT
    return h, None if eps is None else moments_reference(h, eps)


def project(
    x: Tensor,
    norm: Norm,
    matrix: Tensor,
    *,
    eps: float | None = 1e-5,
    tile: Tile | None = None,
) -> tuple[Tensor, Moments | None]:
    """``relu(norm(x)) @ matrix.T`` and the moments (mean, rstd) of its columns.

    Shapes: x is ``(R, C)``, matrix ``(M, C)``, the result ``(R, M)`` in the matrix's dtype.
    With ``eps=None`` no moments are taken.
    """
    rows, channels = x.shape
    width = matrix.shape[0]
    if not serves(x, matrix) or padded(width) > 256:
        return project_reference(x, norm, matrix, eps=eps)
    tile = tile or Tile(128, padded(channels, 32), 4, 4)
    h = torch.empty(rows, width, device=x.device, dtype=matrix.dtype)
    parts = parts_for(x, width, tile.rows) if eps is not None else h
    _project[(-(-rows // tile.rows),)](
        x,
        *norm,
        matrix,
        h,
        parts,
        rows,
        C=channels,
        M=width,
        ROWS=tile.rows,
        COLUMNS=tile.columns,
        MP=padded(width),
        MOMENTS=eps is not None,
        **tile.options(),
    )
    return h, None if eps is None else merge_moments(parts, rows, tile.rows, eps)
