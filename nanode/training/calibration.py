"""Norm statistics found anew over a number of batches, each batch counting the same.

Running statistics lag behind the weights, and those of averaged weights were never seen. Before the
last evaluation they are replaced by plain means over training batches.

Note *reading a batch's own statistics*: a norm's momentum may be baked into compiled code, so it
can't be changed for the occasion. Instead the running statistics are set to zero before each batch;
after it they are momentum × the batch's.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from nanode.bases import Basis
from nanode.fields import BatchNorm


@torch.no_grad()
def calibrate(
    model: nn.Module, forward: Callable[[Tensor], object], batches: Iterable[Tensor]
) -> None:
    """Replace the statistics of every norm by their means over these batches.

    ``forward`` is what is called: the model itself, or a function that calls it. Random layers are
    off.
    """
    norms = [
        part
        for part in model.modules()
        if isinstance(part, BatchNorm)
        or (isinstance(part, nn.modules.batchnorm._BatchNorm) and part.track_running_stats)
    ]
    if not norms:
        return
    if any(norm.momentum == 0 for norm in norms):
        raise ValueError("a norm of momentum 0 ignores every batch; give it a momentum above 0")
    modes = [(part, part.training) for part in model.modules()]
    running = [(norm, s) for norm in norms for s in (norm.running_mean, norm.running_var)]
    found = [s.clone() for _, s in running if s is not None]
    try:
        model.eval()
        for norm in norms:
            norm.train()
        found = _means(running, forward, batches)
    finally:  # after an error, as they were
        for (_, statistic), values in zip(running, found, strict=True):
            assert statistic is not None
            statistic.copy_(values)
        for part, training in modes:
            part.training = training


def _means(
    running: Sequence[tuple[Any, Tensor | None]],
    forward: Callable[[Tensor], object],
    batches: Iterable[Tensor],
) -> list[Tensor]:
    """The mean of each statistic over all batches."""
    totals = [torch.zeros_like(s, dtype=torch.float64) for _, s in running if s is not None]
    count = 0
    for images in batches:
        for norm, statistic in running:
            assert statistic is not None
            statistic.zero_()
            if isinstance(norm, nn.modules.batchnorm._BatchNorm):
                assert norm.num_batches_tracked is not None
                norm.num_batches_tracked.zero_()
        forward(images)
        for (norm, statistic), total in zip(running, totals, strict=True):
            assert statistic is not None
            # Without a momentum, torch's norm takes the first batch as it is.
            total += statistic.double() / (1.0 if norm.momentum is None else norm.momentum)
        count += 1
    if not count:
        raise ValueError("calibration needs at least one batch, got none")
    return [total / count for total in totals]


@contextmanager
def kept_statistics(model: nn.Module) -> Iterator[None]:
    """The model's buffers are afterwards what they were before."""
    # Not a basis's, which nothing moves: it makes its values anew for buffers that were written to.
    parts = [part for part in model.modules() if not isinstance(part, Basis)]
    buffers = [buffer for part in parts for buffer in part.buffers(recurse=False)]
    before = [(buffer, buffer.clone()) for buffer in buffers]
    try:
        yield
    finally:
        for buffer, values in before:
            buffer.copy_(values)
