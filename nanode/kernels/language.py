"""Triton where it is there, and the choice between a kernel and its plain reference.

Nothing in this package needs Triton to be installed: without it, and on a CPU, every function runs
its PyTorch reference. With ``TRITON_INTERPRET=1`` set before the first import, kernels run on a
CPU too, through Triton's interpreter, which is how they are tested without a GPU.
"""

import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor

triton: Any
tl: Any
try:
    import triton  # type: ignore[no-redef, unused-ignore]
    import triton.language as tl  # type: ignore[no-redef, unused-ignore]
except ImportError:  # kernels are then never compiled, but their modules still import
    triton = None
    tl = SimpleNamespace(constexpr=None)

#: Whether kernels run through Triton's interpreter.
INTERPRETED = triton is not None and os.environ.get("TRITON_INTERPRET", "0") == "1"


def jit(function: Callable[..., Any]) -> Any:
    """``triton.jit``, or the function itself where there is no Triton."""
    return function if triton is None else triton.jit(function)


class Tile(NamedTuple):
    """How one program of a kernel is cut: rows and channels at a time, warps, pipeline stages.

    ``registers`` caps a thread's registers, so that more programs share a multiprocessor: left to
    itself the compiler takes all there are, and memory waits for too few threads.
    """

    rows: int
    columns: int
    warps: int
    stages: int
    registers: int | None = None

    def options(self) -> dict[str, int]:
        """The compiler's part of it."""
        options = {"num_warps": self.warps, "num_stages": self.stages}
        return options if self.registers is None else {**options, "maxnreg": self.registers}


class Norm(NamedTuple):
    r"""A batch norm with known statistics, :math:`w\,(x-\mu)\,\rho + b`; each is ``(C,)``, fp32.

    ``mean`` and ``rstd`` are :math:`\mu` and :math:`\rho = 1/\sqrt{\sigma^2+\epsilon}`.
    """

    weight: Tensor
    bias: Tensor
    mean: Tensor
    rstd: Tensor


def serves(*tensors: Tensor) -> bool:
    """Whether the Triton kernels can take these matrices: on a GPU, contiguous, fp32 or bf16."""
    if triton is None or not all(
        t.is_contiguous() and t.dtype in (torch.float32, torch.bfloat16) for t in tensors
    ):
        return False
    return INTERPRETED or all(t.is_cuda for t in tensors)


def padded(size: int, limit: int = 1 << 30) -> int:
    """The smallest power of two that holds ``size``, between 16 (a matrix unit's) and ``limit``.

    >>> padded(5), padded(64), padded(65), padded(256, 64)
    (16, 64, 128, 64)
    """
    return min(max(16, 1 << (size - 1).bit_length()), limit)


def programs(tensor: Tensor, each: int) -> int:
    """How many programs fill the GPU, ``each`` of them on one multiprocessor."""
    if not tensor.is_cuda:
        return 2 * each  # the interpreter: more than one, so that merging is tried
    return each * torch.cuda.get_device_properties(tensor.device).multi_processor_count


@jit
def folded(weight, bias, mean, rstd, c, inside):  # type: ignore[no-untyped-def]
    """A norm at channels ``c`` as scale and shift: ``x * scale + shift``, zero outside.

    Two vectors live in registers instead of four. The shift cancels against large means, but no
    more than the rounding of x itself does.
    """
    scale = tl.load(weight + c, mask=inside, other=0.0) * tl.load(rstd + c, mask=inside, other=0.0)
    shift = tl.load(bias + c, mask=inside, other=0.0)
    shift -= tl.load(mean + c, mask=inside, other=0.0) * scale
    return scale, shift


@jit
def unit(mean, rstd, c, inside):  # type: ignore[no-untyped-def]
    """The same for the normalised value alone: ``x * scale + shift``."""
    scale = tl.load(rstd + c, mask=inside, other=0.0)
    shift = -tl.load(mean + c, mask=inside, other=0.0) * scale
    return scale, shift


@jit
def column_moments(x, inside, count):  # type: ignore[no-untyped-def]
    """Mean and sum of squared deviations of each column, over ``count`` rows that are inside."""
    mean = tl.sum(tl.where(inside, x, 0.0), 0) / count
    deviation = tl.where(inside, x - mean[None, :], 0.0)
    return mean, tl.sum(deviation * deviation, 0)


@jit
def row_moments(x, inside, count):  # type: ignore[no-untyped-def]
    """:func:`column_moments` of a tile that has its channels down."""
    mean = tl.sum(tl.where(inside, x, 0.0), 1) / count
    deviation = tl.where(inside, x - mean[:, None], 0.0)
    return mean, tl.sum(deviation * deviation, 1)


# Channels down. The matrix unit leaves its result spread so that a thread holds few lines and many
# columns of it. What belongs to a channel (a norm's scale and shift, a sum over rows) should thus
# run down the lines: products are written W·aᵀ, not a·Wᵀ, and tiles are read transposed. Written
# the other way, the norms' vectors alone took half the registers and each sum over rows a hundred
# shuffles a thread.

if INTERPRETED:

    @jit
    def dot(a, b, total):  # type: ignore[no-untyped-def]
        """The interpreter multiplies bf16 by their bit patterns: widen them, after rounding."""
        return tl.dot(a.to(tl.float32), b.to(tl.float32), total)

else:

    @jit
    def dot(a, b, total):  # type: ignore[no-untyped-def]
        """A product with fp32 accumulation; fp32 operands are not cut to tf32."""
        return tl.dot(a, b, total, input_precision="ieee")
