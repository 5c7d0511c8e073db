"""What is held between the forward and the backward pass, counted in states."""

import gc
import math
import weakref
from itertools import pairwise

import pytest
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef

import nanode
from tests.gradients.models import DOUBLE, Net, moving

SIZES = [10, 20, 40, 80, 160]
STATE = (64, 3)
BYTES = math.prod(STATE) * 8


def reachable(root):
    """Every tensor that Python objects below root hold, leaving modules aside."""
    seen, todo, found = set(), [root], []
    while todo:
        item = todo.pop()
        if id(item) in seen or isinstance(item, torch.nn.Module | type) or callable(item):
            continue
        seen.add(id(item))
        if isinstance(item, Tensor):
            found.append(item)
        elif isinstance(item, dict | list | tuple | set) or hasattr(item, "__dict__"):
            todo.extend(gc.get_referents(item))
    return found


def held(block, x, *conditioning):
    """Bytes that the graph of y = block(x) holds, without parameters, each storage once."""
    saved = []

    def pack(tensor):
        saved.append(tensor)
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        y = block(x, *conditioning)
    # What autograd nodes of nanode's own hold by a side door.
    node = y.grad_fn
    side = reachable(node.job) if hasattr(node, "job") else []
    own = {p.untyped_storage().data_ptr() for p in block.parameters()}
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage() for t in [*saved, *side]}
    y.sum().backward()  # the graph was alive until here
    return sum(storage.nbytes() for pointer, storage in storages.items() if pointer not in own)


def bytes_held(gradient, solver, steps):
    # Constant weights: the table of moving ones is counted apart, below.
    torch.manual_seed(0)
    block = nanode.ODEBlock(nanode.Autonomous(Net().double()), steps, solver, gradient)
    return held(block, torch.randn(STATE, dtype=DOUBLE, requires_grad=True))


@pytest.mark.parametrize(
    ("solver", "carry"),
    [
        (nanode.Leapfrog(), 2),
        (nanode.ReversibleHeun(), 3),
        (nanode.Coupled(nanode.Midpoint()), 2),
    ],
    ids=repr,
)
def test_reversal_holds_the_end_whatever_the_number_of_steps(solver, carry):
    counts = {bytes_held(nanode.Reversal(), solver, steps) for steps in SIZES}
    # The carry of the last step, and nothing else: not even x.
    assert counts == {carry * BYTES}


def test_backsolve_holds_the_end():
    assert {bytes_held(nanode.Backsolve(), nanode.RK4(), steps) for steps in SIZES} == {BYTES}


@pytest.mark.parametrize(("solver", "carry"), [(nanode.RK4(), 1), (nanode.Leapfrog(), 2)], ids=repr)
def test_checkpointed_holds_the_root_of_the_steps(solver, carry):
    for steps in SIZES:
        count = bytes_held(nanode.Checkpointed(), solver, steps) / BYTES
        # x, and a carry for each of ⌈√K⌉ segments but the first.
        assert count == 1 + carry * (math.ceil(math.sqrt(steps)) - 1)


@pytest.mark.parametrize("segments", [1, 4, 10])
def test_checkpointed_holds_one_state_a_segment(segments):
    for steps in SIZES:
        count = bytes_held(nanode.Checkpointed(segments), nanode.Euler(), steps) / BYTES
        assert count == segments


def test_backprop_holds_every_evaluation():
    counts = [bytes_held(nanode.Backprop(), nanode.Euler(), steps) for steps in SIZES]
    # Linear in K, but for a constant: per step at least the state that f starts from.
    sizes = zip(pairwise(counts), pairwise(SIZES), strict=True)
    slopes = {(b - a) / (m - n) for (a, b), (n, m) in sizes}
    assert len(slopes) == 1
    assert slopes.pop() >= BYTES


def test_conditioning_is_held_once():
    torch.manual_seed(0)
    block = nanode.ODEBlock(
        nanode.Autonomous(Net().double()), 50, nanode.Leapfrog(), nanode.Reversal()
    )
    x = torch.randn(STATE, dtype=DOUBLE, requires_grad=True)
    between = torch.randn(STATE[0], 4, dtype=DOUBLE, requires_grad=True)
    assert held(block, x, between) == 2 * BYTES + between.numel() * 8


# ---- the table of weights


class Spy:
    """Watches the tables that a field makes: how long each is, and how many rows are alive."""

    def __init__(self, field):
        self.lengths, self.made, self.most_alive = [], [], 0
        weights = type(field).weights

        def watched(stages):
            result = weights(field, stages)
            self.lengths.append(len(stages))
            # Storages, not tensors: a row is a view that keeps the whole table.
            for table in result.moving.values():
                self.made.append((StorageWeakRef(table.untyped_storage()), len(stages)))
            self.most_alive = max(self.most_alive, self.alive)
            return result

        field.weights = watched

    @property
    def alive(self):
        return sum(length for storage, length in self.made if not storage.expired())


RECOMPUTING = [
    (nanode.Checkpointed, nanode.Euler(), 1),
    (nanode.Reversal, nanode.Coupled(nanode.Euler()), 2),
    (nanode.Reversal, nanode.ReversibleHeun(), 1),
]


def one_weight():
    """A field with a single moving tensor, so that tables can be counted."""
    return moving(nanode.Trigonometric(1), net=torch.nn.Linear(3, 3, bias=False))


@pytest.mark.parametrize(("gradient", "solver", "per"), RECOMPUTING)
def test_the_table_is_not_held_between_the_passes(gradient, solver, per):
    field = one_weight()
    block = nanode.ODEBlock(field, 40, solver, gradient())
    spy = Spy(field)
    y = block(torch.randn(STATE, dtype=DOUBLE, requires_grad=True))
    gc.collect()
    assert max(spy.lengths) >= 40 * per
    assert spy.alive == 0
    y.sum().backward()
    gc.collect()
    assert spy.alive == 0


def test_backprop_holds_the_table():
    block = nanode.ODEBlock(one_weight(), 40)
    x = torch.randn(STATE, dtype=DOUBLE, requires_grad=True)
    saved = []

    def pack(tensor):
        saved.append(tensor.untyped_storage().nbytes())
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        block(x)
    assert 40 * 9 * 8 in saved  # 40 rows of nine numbers


@pytest.mark.parametrize(("gradient", "solver", "per"), RECOMPUTING)
@pytest.mark.parametrize("chunk", [1, 4, 7])
def test_chunks_bound_the_table(gradient, solver, per, chunk):
    field = one_weight()
    block = nanode.ODEBlock(field, 40, solver, gradient(chunk=chunk))
    spy = Spy(field)
    x = torch.randn(STATE, dtype=DOUBLE, requires_grad=True)
    y = block(x)
    assert spy.most_alive <= chunk
    y.sum().backward()
    # A step may straddle two chunks and a segment touch several.
    segment = math.ceil(40 / 7) if gradient is nanode.Checkpointed else 0
    assert spy.most_alive <= segment + 2 * chunk
    gc.collect()
    assert max(spy.lengths) == chunk
    assert spy.alive == 0
    # Each row once in each direction.
    stages = 40 * per + isinstance(solver, nanode.ReversibleHeun)
    assert sum(spy.lengths) == 2 * stages


@pytest.mark.parametrize(
    "solver", [nanode.Leapfrog(), nanode.ReversibleHeun(), nanode.Coupled()], ids=repr
)
def test_steps_after_the_last_wanted_state_are_undone_and_forgotten(solver):
    field = one_weight()
    block = nanode.ODEBlock(
        field, 40, solver, nanode.Reversal(chunk=4), at=[0.0, 0.25], interval=(0.0, 1.0)
    )
    spy = Spy(field)
    block(torch.randn(STATE, dtype=DOUBLE, requires_grad=True)).sum().backward()
    assert spy.most_alive <= 2 * 4 + 1


@pytest.mark.parametrize(
    ("gradient", "solver"),
    [(nanode.Checkpointed(), nanode.Euler()), (nanode.Reversal(), nanode.Leapfrog())],
    ids=repr,
)
def test_conditioning_is_not_held_after_the_backward_pass(gradient, solver):
    x, factor = torch.ones(2, requires_grad=True), torch.ones(2)
    y = nanode.odeint(
        lambda t, x, factor: factor * x,
        x,
        steps=2,
        solver=solver,
        gradient=gradient,
        conditioning=(factor,),
    )
    y.sum().backward()
    alive = weakref.ref(factor)
    del factor
    assert alive() is None
    assert y.grad_fn is not None  # which is still there
