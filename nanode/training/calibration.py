"""Norm statistics found anew over a number of batches, each batch counting the same.

Running statistics lag behind the weights, and those of averaged weights were never seen. Before the
last evaluation they are replaced by plain means over training batches.

Note *reading a batch's own statistics*: a norm's momentum may be baked into compiled code, so it
can't be changed for the occasion. Instead the running statistics are set to zero before each batch;
after it they are momentum × the batch's.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from nanode.bases import Basis
from nanode.block import flows
from nanode.fields import BatchNorm
from nanode.fields.norms import norms_in, prepare_norms


@torch.no_grad()
def calibrate(
    model: nn.Module, forward: Callable[[Tensor], object], batches: Iterable[Tensor]
) -> None:
    """Replace the statistics of every norm by their means over these batches.

    ``forward`` is what is called: the model itself, or a function that calls it. Random layers are
    off. A norm that is called several times in a batch has a mean in which later calls count more;
    one that is never called keeps its statistics.
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
    try:
        model.eval()
        for norm in norms:
            norm.train()
        for block in flows(model).values():  # those in eval mode may have those of another grid
            if (plan := block.plan()) is not None:
                prepare_norms(block.field, plan.times)
        _replace(model, norms, forward, batches)
    finally:
        for part, training in modes:
            part.training = training


def _replace(
    model: nn.Module,
    norms: Sequence[Any],
    forward: Callable[[Tensor], object],
    batches: Iterable[Tensor],
) -> None:
    """Statistics by their means; after an error they are as they were."""
    before = [{name: b.clone() for name, b in norm.named_buffers()} for norm in norms]
    found = before
    try:
        with _counted(model) as calls:
            found = _means(norms, before, forward, batches, calls)
    finally:
        for norm, values in zip(norms, found, strict=True):
            for name, buffer in norm.named_buffers():
                buffer.copy_(values[name])


def _means(
    norms: Sequence[Any],
    before: Sequence[dict[str, Tensor]],
    forward: Callable[[Tensor], object],
    batches: Iterable[Tensor],
    calls: Counter[nn.Module],
) -> list[dict[str, Tensor]]:
    """What each norm's buffers should be: statistics averaged over all batches that reached it."""
    totals = [[torch.zeros_like(s, dtype=torch.float64) for s in _statistics(n)] for n in norms]
    reached, count = [0] * len(norms), 0
    for images in batches:
        for norm in norms:
            for _, buffer in norm.named_buffers():
                buffer.zero_()
        calls.clear()
        forward(images)
        count += 1
        for n, norm in enumerate(norms):
            made = _made(norm, calls)
            if not made:
                continue
            reached[n] += 1
            share = _share(norm.momentum, made)
            for total, statistic in zip(totals[n], _statistics(norm), strict=True):
                total += statistic.double() / share
    if not count:
        raise ValueError("calibration needs at least one batch, got none")
    return [
        old | dict(zip(_NAMES, (total / times for total in both), strict=True)) if times else old
        for old, both, times in zip(before, totals, reached, strict=True)
    ]


def _share(momentum: float | None, calls: int) -> float:
    """Of what was seen, how much is in running statistics that were zero so many calls before."""
    if momentum is None:  # torch's norm then takes the mean itself
        return 1.0
    return momentum if calls == 1 else 1 - (1 - momentum) ** calls


_NAMES = ("running_mean", "running_var")


def _statistics(norm: Any) -> tuple[Tensor, Tensor]:
    return norm.running_mean, norm.running_var


def _made(norm: Any, calls: Counter[nn.Module]) -> int:
    """How often a norm's statistics were moved since they were zero."""
    if isinstance(norm, nn.modules.batchnorm._BatchNorm):
        return int(norm.num_batches_tracked)  # type: ignore[arg-type]
    # Compiled code takes no notice of hooks, and nearly always makes one solve a batch.
    return calls[norm] or int(norm.running_var.any())


@contextmanager
def _counted(model: nn.Module) -> Iterator[Counter[nn.Module]]:
    """How many solves each of our norms is part of."""
    calls: Counter[nn.Module] = Counter()

    def solved(norms: Sequence[BatchNorm]) -> Callable[..., None]:
        return lambda *_: calls.update(norms)

    def evaluated(norm: BatchNorm, *_: object) -> None:
        if norm.stage is not None and norm.stage.index == 0:
            calls[norm] += 1

    blocks = flows(model).values()
    inside = {norm for block in blocks for norm in norms_in(block.field)}
    with ExitStack() as hooks:
        for block in blocks:
            # Not on the norms: a captured solve calls none, and hooks would have it captured anew.
            hooks.callback(block.register_forward_hook(solved(norms_in(block.field))).remove)
        for norm in norms_in(model):
            if norm not in inside:  # of a field that is solved without a block
                hooks.callback(norm.register_forward_hook(evaluated).remove)
        yield calls


@contextmanager
def kept_statistics(model: nn.Module) -> Iterator[None]:
    """The model's buffers are afterwards what they were before."""
    # Not a basis's, which nothing moves: it makes its values anew for buffers that were written to.
    parts = [part for part in model.modules() if not isinstance(part, Basis)]
    before = [
        (part, name, buffer, buffer.clone())
        for part in parts
        for name, buffer in part.named_buffers(recurse=False)
    ]
    times = [(part, part.times) for part in parts if isinstance(part, BatchNorm)]
    try:
        yield
    finally:
        for part, name, buffer, values in before:
            part._buffers[name] = buffer.copy_(values)  # another one, if the grid was another
        for norm, grid in times:
            norm.times = grid
