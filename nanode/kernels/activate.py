r"""Norm and ReLU on their own, forward and backward, where a library convolution comes next.

Backward, with the statistics' own dependence on x, for R rows and
:math:`g = \mathbb 1[\mathrm{norm}(x) > 0]\,g_a`:

.. math:: g_x = w\rho\,\bigl(g - \tfrac1R\textstyle\sum g - \hat x\,\tfrac1R\sum g\hat x\bigr)

The two sums are also the gradients of the norm's bias and weight.
"""

import torch
from torch import Tensor

from nanode.kernels.language import Norm, Tile, folded, jit, padded, programs, serves, tl, unit


@jit
def _activate(  # type: ignore[no-untyped-def]
    x, weight, bias, mean, rstd, out, R, C: tl.constexpr, ROWS: tl.constexpr, CP: tl.constexpr
):
    start = tl.program_id(0).to(tl.int64) * ROWS
    r = tl.arange(0, ROWS)
    c = tl.arange(0, CP)
    inside = (r[:, None] < R - start) & (c[None, :] < C)
    where = r[:, None] * C + c[None, :]
    scale, shift = folded(weight, bias, mean, rstd, c, c < C)
    value = tl.load(x + start * C + where, mask=inside, other=0.0).to(tl.float32)
    active = tl.maximum(value * scale[None, :] + shift[None, :], 0.0)
    tl.store(out + start * C + where, active.to(out.dtype.element_ty), mask=inside)


@jit
def _sums(  # type: ignore[no-untyped-def]
    g,
    x,
    weight,
    bias,
    mean,
    rstd,
    parts,
    R,
    C: tl.constexpr,
    ROWS: tl.constexpr,
    CP: tl.constexpr,
):
    c = tl.arange(0, CP)
    c_in = c < C
    scale, shift = folded(weight, bias, mean, rstd, c, c_in)
    rho, centre = unit(mean, rstd, c, c_in)
    origin = tl.zeros((), tl.int64)
    plain = tl.zeros((ROWS, CP), tl.float32)
    moment = tl.zeros((ROWS, CP), tl.float32)
    for block in range(tl.program_id(0), tl.cdiv(R, ROWS), tl.num_programs(0)):
        start = origin + block * ROWS
        r = tl.arange(0, ROWS)
        inside = (r[:, None] < R - start) & c_in[None, :]
        where = r[:, None] * C + c[None, :]
        value = tl.load(x + start * C + where, mask=inside, other=0.0).to(tl.float32)
        grad = tl.load(g + start * C + where, mask=inside, other=0.0).to(tl.float32)
        grad = tl.where(value * scale[None, :] + shift[None, :] > 0, grad, 0.0)
        plain += grad
        moment += grad * (value * rho[None, :] + centre[None, :])
    parts += tl.program_id(0) * 2 * C
    tl.store(parts + c, tl.sum(plain, 0), mask=c_in)
    tl.store(parts + C + c, tl.sum(moment, 0), mask=c_in)


@jit
def _backward(  # type: ignore[no-untyped-def]
    g,
    x,
    weight,
    bias,
    mean,
    rstd,
    sums,
    out,
    R,
    C: tl.constexpr,
    ROWS: tl.constexpr,
    CP: tl.constexpr,
):
    start = tl.program_id(0).to(tl.int64) * ROWS
    r = tl.arange(0, ROWS)
    c = tl.arange(0, CP)
    c_in = c < C
    inside = (r[:, None] < R - start) & c_in[None, :]
    where = r[:, None] * C + c[None, :]
    scale, shift = folded(weight, bias, mean, rstd, c, c_in)
    rho, centre = unit(mean, rstd, c, c_in)
    moment = tl.load(sums + C + c, mask=c_in, other=0.0) / R
    plain = tl.load(sums + c, mask=c_in, other=0.0) / R + centre * moment
    moment *= rho
    value = tl.load(x + start * C + where, mask=inside, other=0.0).to(tl.float32)
    grad = tl.load(g + start * C + where, mask=inside, other=0.0).to(tl.float32)
    grad = tl.where(value * scale[None, :] + shift[None, :] > 0, grad, 0.0)
    grad = scale[None, :] * (grad - plain[None, :] - value * moment[None, :])
    tl.store(out + start * C + where, grad.to(out.dtype.element_ty), mask=inside)


@jit
def _add(  # type: ignore[no-untyped-def]
    parts, head, tail, P, N, HEAD, MANY: tl.constexpr, COLUMNS: tl.constexpr
):
    n = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((COLUMNS,), tl.float32)
    for first in range(0, P, MANY):
        p = first + tl.arange(0, MANY)
        inside = (p[:, None] < P) & (n[None, :] < N)
        total += tl.sum(tl.load(parts + p[:, None] * N + n[None, :], mask=inside, other=0.0), 0)
    tl.store(head + n, total, mask=n < HEAD)
    tl.store(tail + (n - HEAD), total, mask=(n >= HEAD) & (n < N))


def add_parts(parts: Tensor, head: Tensor, tail: Tensor | None = None) -> None:
    """The sum of the rows of ``(P, N)``, in a fixed order: first what fills head, then tail."""
    many, size = parts.shape
    columns = 64 if size > 4096 else 16
    _add[(-(-size // columns),)](
        parts,
        head,
        head if tail is None else tail,
        many,
        size,
        head.numel(),
        MANY=padded(many, 128),
        COLUMNS=columns,
        num_warps=8,
    )


def activate_reference(x: Tensor, norm: Norm, *, dtype: torch.dtype) -> Tensor:
    """:func:`activate` in plain PyTorch."""
    return torch.relu((x - norm.mean) * (norm.rstd * norm.weight) + norm.bias).to(dtype)


def activate(x: Tensor, norm: Norm, *, dtype: torch.dtype, tile: Tile | None = None) -> Tensor:
    """``relu(norm(x))`` of a matrix ``(R, C)``, in another dtype."""
    rows, width = x.shape
    if not serves(x) or padded(width) > 1024:
        return activate_reference(x, norm, dtype=dtype)
    tile = tile or Tile(256, 0, 4, 1)
    out = torch.empty_like(x, dtype=dtype)
    _activate[(-(-rows // tile.rows),)](
        x, *norm, out, rows, C=width, ROWS=tile.rows, CP=padded(width), **tile.options()
    )
    return out


def activate_sums_reference(
    g: Tensor, x: Tensor, norm: Norm, *, out: Tensor | None = None
) -> Tensor:
    """:func:`activate_sums` in plain PyTorch."""
    unit = (x - norm.mean) * norm.rstd
    grad = torch.where(unit * norm.weight + norm.bias > 0, g.to(unit.dtype), 0)
    return torch.stack((grad.sum(0), (grad * unit).sum(0)), out=out)


def activate_sums(
    g: Tensor, x: Tensor, norm: Norm, *, out: Tensor | None = None, tile: Tile | None = None
) -> Tensor:
    """The gradients of the norm's bias and weight, ``(2, C)``: the sums its backward needs."""
    rows, width = x.shape
    if not serves(g, x) or padded(width) > 256:
        return activate_sums_reference(g, x, norm, out=out)
    tile = tile or Tile(64, 2, 4, 1)
    many = min(programs(x, tile.columns), -(-rows // tile.rows))
    parts = torch.empty(many, 2 * width, device=x.device, dtype=torch.float32)
    _sums[(many,)](
        g, x, *norm, parts, rows, C=width, ROWS=tile.rows, CP=padded(width), **tile.options()
    )
    sums = parts.new_empty(2, width) if out is None else out
    add_parts(parts, sums)
    return sums


def activate_backward_reference(
    g: Tensor, x: Tensor, norm: Norm, sums: Tensor, *, out: Tensor | None = None
) -> Tensor:
    """:func:`activate_backward` in plain PyTorch."""
    unit = (x - norm.mean) * norm.rstd
    grad = torch.where(unit * norm.weight + norm.bias > 0, g.to(unit.dtype), 0)
    plain, moment = sums / x.shape[0]
    result = ((norm.weight * norm.rstd) * (grad - plain - unit * moment)).to(g.dtype)
    return result if out is None else out.copy_(result)


def activate_backward(
    g: Tensor,
    x: Tensor,
    norm: Norm,
    sums: Tensor,
    *,
    out: Tensor | None = None,
    tile: Tile | None = None,
) -> Tensor:
    """The cotangent of x from that of ``relu(norm(x))``, given :func:`activate_sums`.

    ``out`` may be g.
    """
    rows, width = x.shape
    if not serves(g, x) or padded(width) > 1024:
        return activate_backward_reference(g, x, norm, sums, out=out)
    tile = tile or Tile(32, 0, 2, 1)
    out = torch.empty_like(g) if out is None else out
    _backward[(-(-rows // tile.rows),)](
        g,
        x,
        *norm,
        sums,
        out,
        rows,
        C=width,
        ROWS=tile.rows,
        CP=padded(width),
        **tile.options(),
    )
    return out
