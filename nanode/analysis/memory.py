"""What a solve costs in memory: what it holds for the backward pass, and its peak."""

import copy
import gc
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from nanode.analysis.subject import as_block
from nanode.block import ODEBlock
from nanode.fields import Weights
from nanode.gradients.randomness import undrawn
from nanode.stages import Stages


@dataclass(frozen=True)
class Memory:
    """Bytes that one forward and backward pass need beyond inputs, outputs and parameters."""

    #: Held from the forward pass to the backward pass, the table of weights apart.
    held: int
    #: Of the table of weights, held from the forward pass to the backward pass.
    table_held: int
    #: The largest table of weights alive at one time, or built at one time.
    table: int
    #: The peak of everything, gradients and temporaries included.
    peak: int

    def __str__(self) -> str:
        named = {
            "held for backward": self.held,
            "of the weight table": self.table_held,
            "largest table built": self.table,
            "peak": self.peak,
        }
        return "\n".join(f"{name:20} {size / 2**20:10.3f} MiB" for name, size in named.items())


def measure_memory(block: ODEBlock, x: Any, *conditioning: Any) -> Memory:
    """Measure one forward and backward pass of a copy of the block; the random state stays.

    On a CPU every storage that torch's operators allocate is followed from birth to death; scratch
    space inside a kernel is not seen. On a GPU the held bytes and the peak are the allocator's.

    >>> import nanode, torch
    >>> field = nanode.TimeVarying(torch.nn.Linear(64, 64), basis=nanode.Chebyshev(degree=2))
    >>> def held(steps):
    ...     block = nanode.ODEBlock(field, steps, nanode.Leapfrog(), nanode.Reversal())
    ...     return nanode.measure_memory(block, torch.randn(32, 64)).held
    >>> held(10) == held(100)
    True
    """
    block = as_block("measure_memory", block)
    twin = copy.deepcopy(block)
    x = tree_map(lambda part: part.detach().clone().requires_grad_(), x)
    tables = _TableSpy(twin)
    device = next((part.device for part in tree_leaves(x) if isinstance(part, Tensor)), None)
    on_gpu = device is not None and device.type == "cuda"
    measure = partial(_on_gpu, device) if on_gpu else _on_cpu
    with undrawn([] if device is None else [device]):
        # Once before: what is made at first use and then kept is no cost of a pass.
        _pass(twin, x, conditioning, lambda result: None)
        twin.zero_grad(set_to_none=True)
        tables.reset()
        held, table_held, peak = measure(twin, x, conditioning, tables)
    return Memory(held - table_held, table_held, tables.largest, peak)


def _pass(
    block: ODEBlock, x: Any, conditioning: tuple[Any, ...], between: Callable[[Any], None]
) -> None:
    result = block(x, *conditioning)
    between(result)
    outputs = [part for part in tree_leaves(result) if part.requires_grad]
    inputs = [*tree_leaves(x), *(p for p in block.parameters() if p.requires_grad)]
    torch.autograd.grad(outputs, inputs, [torch.ones_like(o) for o in outputs], allow_unused=True)


def _on_cpu(
    block: ODEBlock, x: Any, conditioning: tuple[Any, ...], tables: "_TableSpy"
) -> tuple[int, int, int]:
    found: list[int] = []
    with _Storages() as storages:

        def between(result: Any) -> None:
            outputs = sum(_size(part) for part in tree_leaves(result))
            found.extend([storages.live - outputs, tables.alive()])

        _pass(block, x, conditioning, between)
    return found[0], found[1], storages.peak


def _on_gpu(
    device: torch.device | None,
    block: ODEBlock,
    x: Any,
    conditioning: tuple[Any, ...],
    tables: "_TableSpy",
) -> tuple[int, int, int]:
    gc.collect()  # of others, that would be taken for the pass's own if it went meanwhile
    torch.cuda.synchronize(device)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    found: list[int] = []

    def between(result: Any) -> None:
        outputs = sum(_size(part) for part in tree_leaves(result))
        found.extend([torch.cuda.memory_allocated(device) - before - outputs, tables.alive()])

    _pass(block, x, conditioning, between)
    torch.cuda.synchronize(device)
    return found[0], found[1], torch.cuda.max_memory_allocated(device) - before


class _Storages(TorchDispatchMode):
    """Counts the bytes of every storage made while it is on, until the storage dies."""

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = 0
        self._seen: set[int] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = {_key(part) for part in _dense((args, kwargs))}
        result = func(*args, **(kwargs or {}))
        for part in _dense(result):
            if _key(part) not in given | self._seen:
                self._follow(part)
        return result

    def _follow(self, tensor: Tensor) -> None:
        storage, key, size = tensor.untyped_storage(), _key(tensor), _size(tensor)
        self._seen.add(key)
        self.live += size
        self.peak = max(self.peak, self.live)

        def died() -> None:
            self._seen.discard(key)
            self.live -= size

        weakref.finalize(storage, died)


class _TableSpy:
    """Watches the tables of weights that a block's field makes."""

    def __init__(self, block: ODEBlock) -> None:
        self.largest = 0
        self._alive: dict[int, int] = {}
        original = block.field.weights

        def weights(stages: Stages) -> Weights:
            made = original(stages)
            self._note(made.moving.values())
            return made

        block.field.weights = weights  # type: ignore[method-assign]

    def reset(self) -> None:
        self.largest = 0

    def alive(self) -> int:
        """Bytes of the tables that still exist."""
        return sum(self._alive.values())

    def _note(self, tables: Iterable[Tensor]) -> None:
        for table in tables:
            storage, key = table.untyped_storage(), _key(table)
            self._alive[key] = _size(table)
            weakref.finalize(storage, self._alive.pop, key, None)
        self.largest = max(self.largest, self.alive())


def _dense(values: Any) -> Iterator[Tensor]:
    """All tensors, sparse ones as those that they are made of."""
    for part in tree_leaves(values):
        if not isinstance(part, Tensor):
            continue
        if part.layout is torch.sparse_coo:
            yield from (part._indices(), part._values())
        elif part.layout in (torch.sparse_csr, torch.sparse_bsr):
            yield from (part.crow_indices(), part.col_indices(), part.values())
        elif part.layout in (torch.sparse_csc, torch.sparse_bsc):
            yield from (part.ccol_indices(), part.row_indices(), part.values())
        else:
            yield part


def _key(tensor: Tensor) -> int:
    address: int = tensor.untyped_storage()._cdata
    return address


def _size(tensor: Tensor) -> int:
    return tensor.untyped_storage().nbytes()
