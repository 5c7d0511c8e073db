"""What one training step of a model costs: memory, and the share of time spent in its flows.

Everything is measured on a copy, so that a run isn't changed by being measured.
"""

import copy
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nanode.analysis import measure_memory
from nanode.bases import Basis
from nanode.block import ODEBlock, flows, uncompiled
from nanode.gradients.randomness import undrawn
from nanode.training.records import Costs, Flow
from nanode.training.setup import Setup, compiled
from nanode.trajectories import Hypernetwork, Orthogonal

if TYPE_CHECKING:
    from lightning_fabric import Fabric

T = TypeVar("T")


def describe(name: str, block: ODEBlock) -> Flow:
    """How a flow is solved, in words."""
    return Flow(
        name=name,
        field=f"{type(block.field).__name__}({', '.join(dict.fromkeys(_motions(block.field)))})",
        steps=str(block.steps),
        solver=repr(block.solver),
        gradient=repr(block.gradient),
        scale=float(block.scale),
        augment=block.augment,
    )


def _motions(field: nn.Module) -> Iterator[str]:
    """By what functions of time a field's weights move, and what forms they keep."""
    for part in field.modules():
        if isinstance(part, Basis):
            yield repr(part)
        elif isinstance(part, Hypernetwork):
            yield type(part).__name__
        elif isinstance(part, Orthogonal):
            yield from map(repr, part.forms.values())


def measure_costs(setup: Setup) -> Costs:
    """Bytes of one training step on one batch, by a copy of the setup's model."""
    images, labels = setup.batches.batch(0, 0)
    with undrawn([images.device]):
        model = copy.deepcopy(setup.model).train()

        def loss() -> Tensor:
            return _loss(model, images, labels, setup)

        costs = costs_of_step(setup, model, loss, images)
        if setup.config.profile:
            inputs, _ = _inputs(model, loss)
            seconds = partial(_seconds_of_passes, model, inputs, images, labels, setup)
            if (found := _if_it_fits(seconds, images.device)) is not None:
                alone, whole = found
                costs = replace(costs, flow_time_share=alone / whole, flow_seconds=alone)
            if setup.config.compile:
                torch.compiler.reset()  # the run itself must not count as one model more
    return costs


def costs_of_step(setup: Any, model: nn.Module, loss: Callable[[], Tensor], data: Tensor) -> Costs:
    """What a step costs with a copy of a setup's model; ``loss`` runs its forward pass on data."""
    held = _if_it_fits(partial(_held_bytes, model, loss, data, setup.fabric), data.device)
    moved = {id(p): p for block in flows(model).values() for p in block.parameters()}
    return Costs(
        batch_size=setup.config.batch_size,
        precision=setup.config.precision,
        parameters=sum(p.numel() for p in model.parameters()),
        parameter_bytes=sum(p.nbytes for p in model.parameters()),
        flow_parameter_bytes=sum(p.nbytes for p in moved.values()),
        **(held or {}),
    )


def _if_it_fits(measure: Callable[[], T], device: torch.device) -> T | None:
    """What is measured on a device; None if its memory is too small for that.

    A run may fit all the same: what is measured is a model more, and plain solves hold more than
    fused or captured ones.
    """
    try:
        return measure()
    except RuntimeError as why:  # also by the driver and libraries, which have words of their own
        if not any(words in str(why) for words in ("out of memory", "ALLOC_FAILED")):
            raise
    if device.type == "cuda":
        torch.cuda.empty_cache()  # what has failed has reserved all there is
    return None


def _held_bytes(
    model: nn.Module, loss: Callable[[], Tensor], data: Tensor, fabric: "Fabric"
) -> dict[str, int]:
    """What plain solves hold, by its name in ``Costs``."""
    blocks = flows(model)
    # Captured and compiled solves hide what they hold.
    with uncompiled(blocks.values()):
        inputs, calls = _inputs(model, loss)
        with fabric.autocast():
            found = {name: measure_memory(blocks[name], *given) for name, given in inputs.items()}
        saved = _saved_bytes(model, loss, data)
    return {
        "flow_activation_bytes": sum(calls[name] * memory.held for name, memory in found.items()),
        "flow_table_bytes": sum(calls[name] * memory.table_held for name, memory in found.items()),
        "flow_peak_bytes": max((memory.peak for memory in found.values()), default=0),
        "saved_bytes": saved,
    }


def _inputs(
    model: nn.Module, loss: Callable[[], Tensor]
) -> tuple[dict[str, tuple[Any, ...]], Counter[str]]:
    """What each flow is given at its first call in a forward pass, and how often it is called."""
    given: dict[str, tuple[Any, ...]] = {}
    calls: Counter[str] = Counter()

    def note(name: str) -> Callable[[nn.Module, tuple[Any, ...]], None]:
        def before(block: nn.Module, inputs: tuple[Any, ...]) -> None:
            given.setdefault(name, inputs)
            calls[name] += 1

        return before

    hooks = [block.register_forward_pre_hook(note(name)) for name, block in flows(model).items()]
    with torch.no_grad():
        loss()
    for hook in hooks:
        hook.remove()
    return given, calls


class _Saved:
    """A tensor that autograd holds for the backward pass."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


def _saved_bytes(model: nn.Module, loss: Callable[[], Tensor], data: Tensor) -> int:
    """Bytes that autograd holds between the passes, each storage once, parameters left out."""
    # Weakly: what is saved and dropped again inside the forward pass isn't held.
    alive: weakref.WeakSet[_Saved] = weakref.WeakSet()

    def pack(tensor: Tensor) -> _Saved:
        # Detached: a node that holds its own output, and the output the node, would never be freed.
        saved = _Saved(tensor.detach())
        alive.add(saved)
        return saved

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved.tensor):
        value = loss()
    storages = [saved.tensor.untyped_storage() for saved in alive]
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    own.add(data.untyped_storage().data_ptr())
    sizes = {s.data_ptr(): s.nbytes() for s in storages if s.data_ptr() not in own}
    del value  # held until here, with all it saved
    return sum(sizes.values())


def _loss(forward: nn.Module, images: Tensor, labels: Tensor, setup: Setup) -> Tensor:
    with setup.fabric.autocast():
        logits = forward(images)
    return F.cross_entropy(logits.float(), labels)


def _seconds_of_passes(
    model: nn.Module,
    inputs: dict[str, tuple[Any, ...]],
    images: Tensor,
    labels: Tensor,
    setup: Setup,
) -> tuple[float, float]:
    """What the flows alone take, and what the whole model takes, forward and backward."""
    wrap = compiled if setup.config.compile else lambda module: module
    forward = wrap(model)
    blocks = {name: wrap(block) for name, block in flows(model).items() if name in inputs}

    def whole() -> None:
        _loss(forward, images, labels, setup).backward()

    def alone() -> None:
        for name, (x, *conditioning) in inputs.items():
            with setup.fabric.autocast():
                y = blocks[name](x.detach().requires_grad_(), *conditioning)
            y.backward(torch.ones_like(y))

    return _seconds(alone, images.device), _seconds(whole, images.device)


def _seconds(work: Callable[[], None], device: torch.device) -> float:
    """The shortest of five runs, after two to warm up."""
    found = []
    for _ in range(7):
        start = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        found.append(time.perf_counter() - start)
    return min(found[2:])
