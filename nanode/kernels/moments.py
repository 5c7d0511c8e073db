r"""Statistics of a batch norm, in one pass and safely.

Each program takes the mean and the sum of squared deviations M2 of its own rows; one small kernel
merges them by Chan's formula,

.. math:: \mu = \sum_b n_b \mu_b / R, \quad M_2 = \sum_b M_{2,b} + \sum_b n_b (\mu_b - \mu)^2,

so that no sum of squares ever cancels against a squared sum. The other kernels of this package
make the parts of what they write, so a norm after them needs no pass of its own. Merging is in a
fixed order: two runs give the same bits.
"""

import torch
from torch import Tensor

from nanode.kernels.language import Tile, column_moments, jit, padded, serves, tl


@jit
def _parts(x, parts, R, C: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]
    block = tl.program_id(0)
    start = block.to(tl.int64) * ROWS
    r = tl.arange(0, ROWS)
    c = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (r[:, None] < R - start) & (c[None, :] < C)
    value = tl.load(x + start * C + r[:, None] * C + c[None, :], mask=inside, other=0.0)
    count = tl.minimum(R - start, ROWS).to(tl.float32)
    mean, m2 = column_moments(value.to(tl.float32), inside, count)
    tl.store(parts + block * 2 * C + c, mean, mask=c < C)
    tl.store(parts + block * 2 * C + C + c, m2, mask=c < C)


@jit
def _merge(  # type: ignore[no-untyped-def]
    parts,
    out,
    R,
    B,
    eps,
    C: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCKS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    c = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    total = 0.0
    mean = tl.zeros((COLUMNS,), tl.float32)
    m2 = tl.zeros((COLUMNS,), tl.float32)
    for first in range(0, B, BLOCKS):
        b = first + tl.arange(0, BLOCKS)
        inside = (b[:, None] < B) & (c[None, :] < C)
        where = parts + b[:, None] * 2 * C + c[None, :]
        means = tl.load(where, mask=inside, other=0.0)
        m2s = tl.load(where + C, mask=inside, other=0.0)
        counts = tl.where(b < B, tl.minimum(R - b * ROWS, ROWS), 0).to(tl.float32)
        count = tl.sum(counts, 0)
        chunk = tl.sum(means * counts[:, None], 0) / count
        apart = means - chunk[None, :]
        chunk_m2 = tl.sum(m2s + counts[:, None] * apart * apart, 0)
        delta = chunk - mean
        both = total + count
        mean += delta * (count / both)
        m2 += chunk_m2 + delta * delta * (total * count / both)
        total = both
    tl.store(out + c, mean, mask=c < C)
    tl.store(out + C + c, 1.0 / tl.sqrt(m2 / total + eps), mask=c < C)


def parts_for(x: Tensor, channels: int, rows: int) -> Tensor:
    """Room for the moments of every block of ``rows`` rows: ``(blocks, 2, channels)``."""
    blocks = -(-x.shape[0] // rows)
    return torch.empty(blocks, 2, channels, device=x.device, dtype=torch.float32)


def merge_moments(parts: Tensor, rows: int, block: int, eps: float) -> tuple[Tensor, Tensor]:
    """Mean and 1/sqrt(var + eps) of all rows, from the moments of blocks of ``block`` rows."""
    blocks, _, channels = parts.shape
    out = parts.new_empty(2, channels)
    columns = 8
    _merge[(-(-channels // columns),)](
        parts,
        out,
        rows,
        blocks,
        eps,
        C=channels,
        ROWS=block,
        BLOCKS=padded(blocks, 1024),
        COLUMNS=columns,
        num_warps=8,
    )
    return out[0], out[1]


def moments_reference(x: Tensor, eps: float = 1e-5) -> tuple[Tensor, Tensor]:
    """:func:`moments` in plain PyTorch."""
    var, mean = torch.var_mean(x.double() if x.dtype == torch.float64 else x.float(), 0, False)
    return mean, torch.rsqrt(var + eps)


def moments(x: Tensor, eps: float = 1e-5, *, tile: Tile | None = None) -> tuple[Tensor, Tensor]:
    r"""Mean and :math:`1/\sqrt{\sigma^2+\epsilon}` of every channel of ``x``, ``(R, C)``.

    >>> mean, rstd = moments(torch.tensor([[1.0, 5.0], [3.0, 5.0]]), eps=0.25)
    >>> mean.tolist(), rstd.tolist()[1]
    ([2.0, 5.0], 2.0)
    """
    if not serves(x):
        return moments_reference(x, eps)
    rows, channels = x.shape
    tile = tile or Tile(512, padded(channels, 64), 4, 1)
    parts = parts_for(x, channels, tile.rows)
    grid = (parts.shape[0], -(-channels // tile.columns))
    _parts[grid](x, parts, rows, C=channels, ROWS=tile.rows, COLUMNS=tile.columns, **tile.options())
    return merge_moments(parts, rows, tile.rows, eps)
