"""When a solve is captured, when anew and when not: CUDA graphs themselves are a GPU's."""

import contextlib
import functools
import gc
import types

import numpy as np
import pytest
import torch
from torch import nn
from torch.torch_version import TorchVersion

import nanode
from nanode.gradients import capture, compiled
from tests.gradients.models import X, conv_field

pytestmark = pytest.mark.usefixtures("compile_all")


def test_captures_are_found_by_their_grid_and_not_kept_beyond_it(monkeypatch):
    """Another grid may get the id of one that is gone; its graphs must not be found by it."""
    monkeypatch.setattr(compiled.Compiled, "_captures", lambda self, problem, x: True)
    replayed = []

    class Recorder:
        def __init__(self, method, evaluator, plan, prepare):
            self.plan, self.steps = plan, plan.grid.steps

        def __call__(self, problem, x):
            replayed.append((self.steps, problem.plan.grid.steps))
            return [x]

    monkeypatch.setattr(compiled, "Captured", Recorder)
    block = nanode.ODEBlock(conv_field().float(), 3, compile=True)
    for steps in range(1, 200):
        block.regrid(steps % 50 + 1)
        block(X.float())
        block(X.float())
        gc.collect()
    assert all(captured == asked for captured, asked in replayed)
    assert len(block.gradient._solves) == 1
    for batch in range(1, 30):  # as many shapes
        block(torch.randn(batch, 4, 5, 5))
        block(torch.randn(batch, 4, 5, 5))
    assert len(block.gradient._solves) == compiled.MOST_KEPT


def put(block, name, module):
    setattr(block.field.module, name, module)


CHANGES = {
    "another activation": lambda block: put(block, "1", nn.ReLU()),
    "a hook": lambda block: block.field.module[1].register_forward_hook(lambda m, x, y: 2 * y),
    "a number in an attribute": lambda block: setattr(block.field.module[1], "strength", 0.5),
    "its type": lambda block: setattr(block.field.module[2], "flag", True),
    "a number of numpy's": lambda block: setattr(block.field.module[1], "by", np.float64(0.5)),
    "a word": lambda block: setattr(block.field.module[2], "padding_mode", "circular"),
    "a norm's momentum": lambda block: setattr(block.field.module[0], "momentum", 0.5),
    "its mode": lambda block: block.eval(),
    "frozen weights": lambda block: next(block.parameters()).requires_grad_(False),
    "moved weights": lambda block: block.double().float(),
    "a tensor in an attribute": lambda block: setattr(block.field.module[1], "by", X + 1),
    "one that requires grad": lambda block: block.field.module[2].by.requires_grad_(),
    "its layout": lambda block: block.field.module[2].by.t_(),
    "other frequencies": lambda block: block.load_state_dict(
        nanode.ODEBlock(random_field(seed=1), 3).state_dict()
    ),
}


def random_field(seed):
    module = nn.Sequential(nanode.BatchNorm(4), nn.Tanh(), nn.Conv2d(4, 4, 3, padding=1))
    module[2].by, module[2].flag = torch.ones(2, 2), 1  # plain attributes
    return nanode.TimeVarying(module, nanode.RandomFourier(features=4, seed=seed))


def recorded(monkeypatch):
    """Captures to come, none of which needs a GPU or solves anything."""
    monkeypatch.setattr(compiled.Compiled, "_captures", lambda self, problem, x: True)
    made = []

    class Recorder:
        def __init__(self, method, evaluator, plan, prepare):
            self.plan = plan
            made.append(self)

        def __call__(self, problem, x):
            return [x]

    monkeypatch.setattr(compiled, "Captured", Recorder)
    return made


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_changed_field_is_captured_anew(change, monkeypatch):
    made = recorded(monkeypatch)
    block = nanode.ODEBlock(random_field(seed=0), 3, compile=True)
    block(X.float())
    block(X.float())
    assert len(made) == 1
    change(block)
    block(X.float())
    assert len(made) == 2


def test_an_annealed_number_holds_the_memory_of_one_capture(monkeypatch):
    made = recorded(monkeypatch)
    block = nanode.ODEBlock(random_field(seed=0), 3, compile=True)
    for strength in range(5):
        block.field.module[1].strength = 0.1 * strength
        for count in (1, 2):  # images: shapes take turns
            block(X[:count].float())
            block(X[:count].float())
    assert len(made) == 10
    assert len(block.gradient._solves) == 2


SETTINGS = {
    "products in TF32": (torch.backends.cuda.matmul, "fp32_precision", "tf32"),
    "convolutions in fp32": (torch.backends.cudnn.conv, "fp32_precision", "ieee"),
    "fixed convolutions": (torch.backends.cudnn, "deterministic", True),
}


@pytest.mark.parametrize(("place", "name", "value"), SETTINGS.values(), ids=SETTINGS)
def test_other_arithmetic_is_captured_anew(place, name, value, monkeypatch):
    made = recorded(monkeypatch)
    block = nanode.ODEBlock(random_field(seed=0), 3, compile=True)
    block(X.float())
    before = getattr(place, name)  # not by monkeypatch, which these modules confuse
    setattr(place, name, value)
    try:
        block(X.float())
    finally:
        setattr(place, name, before)
    assert len(made) == 2
    block(X.float())
    assert len(made) == 2


@pytest.mark.parametrize(
    ("first", "second", "count"),
    [(0.5, 0.5, 1), (0.5, 0.7, 2), (1, True, 2), (None, 0.5, 2), ("a", "b", 2), (X, X + 1, 1)],
    ids=["one number", "two numbers", "another type", "none at first", "words", "tensors"],
)
def test_captures_know_their_conditioning(first, second, count, monkeypatch):
    """Numbers become part of a graph; tensors are copied into it."""
    made = recorded(monkeypatch)
    block = nanode.ODEBlock(lambda t, x, by: x, 1, compile=True)
    block(X, first)
    block(X, second)
    assert len(made) == count


def test_captures_that_are_never_used_again_come_to_an_end(monkeypatch):
    """A number that changes in each call would otherwise cost two trials and a capture each."""
    block = nanode.ODEBlock(lambda t, x, by: x * by, 1, compile=True)
    fewer = compiled.MOST_UNUSED - 1
    with monkeypatch.context() as patch:
        made = recorded(patch)
        for number in range(fewer):
            block(X, number)
        block(X, number)  # used again: counting begins anew
        for number in range(fewer):
            block(X, 100 + number)
    assert would_capture(block)
    with monkeypatch.context() as patch:
        recorded(patch)
        with pytest.warns(UserWarning, match="were never used again"):
            block(X, 1000)
    assert not would_capture(block)
    assert not block.gradient._solves
    assert len(made) == 2 * fewer


def test_conditioning_that_has_no_hash_is_not_captured(monkeypatch):
    made = recorded(monkeypatch)
    block = nanode.ODEBlock(lambda t, x, by: x * len(by), 1, compile=True)
    assert torch.allclose(block(X, {2.0, 3.0}), 3 * X)
    assert not made


def would_capture(block, requires_grad=True):
    """Whether a solve on a GPU would be captured."""
    x = types.SimpleNamespace(device=torch.device("cuda"), requires_grad=requires_grad)
    problem = types.SimpleNamespace(
        conditioning=types.SimpleNamespace(tensors=[]), plan=block._plan, interpolates=False
    )
    return block.gradient._captures(problem, (x,))


def test_a_frozen_block_is_not_captured():
    block = nanode.ODEBlock(conv_field(), 3, compile=True).requires_grad_(False)
    assert not would_capture(block, requires_grad=False)
    block.requires_grad_(True)
    assert would_capture(block, requires_grad=False)


def net():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    return nanode.TimeVarying(module, nanode.Trigonometric(order=1), start=nanode.Noisy(0.3))


@pytest.mark.usefixtures("make_believe_graphs")
def test_what_is_frozen_between_the_passes_takes_nobody_elses_gradient():
    """All weights here have one shape, so that a shift would go unnoticed."""
    x, found = torch.randn(3, 4), []
    for compile in (False, True):
        block = nanode.ODEBlock(net(), 3, compile=compile)
        y = block(x)
        next(block.parameters()).requires_grad_(False)
        (y**2).sum().backward()
        found.append({name: p.grad for name, p in block.named_parameters() if p.requires_grad})
    plain, fast = found
    assert len(fast) == 3
    for name, grad in plain.items():
        assert torch.allclose(fast[name], grad, rtol=1e-4)


@pytest.mark.usefixtures("make_believe_graphs")
@pytest.mark.parametrize("first", [True, False], ids=["from the start", "after a capture"])
@pytest.mark.parametrize("gradient", [nanode.Backprop(), nanode.Checkpointed()], ids=repr)
def test_inside_of_a_checkpoint(gradient, first):
    """Which keeps by their places the tensors that autograd saves, and a replay saves none."""
    torch.manual_seed(1)
    x, around = torch.randn(4, 4, requires_grad=True), nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    found = []
    for compile in (False, True):
        torch.manual_seed(2)
        module = nn.Linear(4, 4)
        block = nanode.ODEBlock(nanode.Autonomous(module), 3, gradient=gradient, compile=compile)
        if not first:
            block(x).sum().backward()
        model = nn.Sequential(around, block, around)
        y = torch.utils.checkpoint.checkpoint(model, x, use_reentrant=False)
        found.append(torch.autograd.grad(y.square().sum(), [x, *model.parameters()]))
    for a, b in zip(*found, strict=True):
        assert torch.allclose(a, b, rtol=1e-4, atol=1e-6)


def test_numbers_on_another_device_are_not_captured(monkeypatch):
    """A graph on a GPU would have a number on the host by heart."""
    made = recorded(monkeypatch)
    block = nanode.ODEBlock(lambda t, x, by: x, 1, compile=True)
    block(X, torch.zeros((), device="meta"))
    assert not made
    block(X, torch.zeros(()))
    assert len(made) == 1


@pytest.mark.usefixtures("make_believe_graphs")
def test_nobody_replays_before_the_gradients_are_out(monkeypatch):
    """Another thread may call the block at any time."""
    block = nanode.ODEBlock(net(), 3, compile=True)
    x = torch.randn(3, 4)
    y = block(x)
    (solve,) = block.gradient._solves.values()
    cloned, free = capture._cloned, []

    def watched(graphs):
        free.append(solve.waiting() is None)
        return cloned(graphs)

    monkeypatch.setattr(capture, "_cloned", watched)
    y.sum().backward()
    assert free == [False]
    assert solve.waiting() is None


def test_a_leaf_that_a_capture_would_forget_is_noticed():
    x, known, hidden = (torch.randn(3, requires_grad=True) for _ in range(3))
    outputs = [(x * known).sum(), x.sin()]
    capture._refuse_others(outputs, [x, known])
    with pytest.raises(RuntimeError, match="neither x, conditioning, nor read as a parameter"):
        capture._refuse_others([*outputs, (x * hidden).exp()], [x, known])


def test_what_failed_first_is_named():
    before = StopIteration()

    def failing():
        try:
            raise before
        except StopIteration:
            try:
                raise RuntimeError("the cause")
            finally:
                raise RuntimeError("the end")

    with pytest.raises(RuntimeError, match="the end") as caught:
        failing()
    assert str(capture._first(caught.value, before)) == "the cause"


class Graph:
    """As torch's, which knows its pool once its capture has come to an end."""

    def __init__(self, ended):
        self.ended = ended

    def pool(self):
        if not self.ended:
            raise RuntimeError("Called CUDAGraph::pool() without a preceding successful capture.")


@pytest.mark.parametrize("ended", [True, False])
def test_a_pool_is_given_back_by_a_graph_or_for_it(ended, monkeypatch):
    """Not by both: torch would end the process."""
    given_back = []
    for name in ("_cuda_endAllocateToPool", "_cuda_releasePool"):
        note = functools.partial(lambda name, *_: given_back.append(name), name)
        monkeypatch.setattr(torch._C, name, note, raising=False)
    monkeypatch.setattr(torch, "__version__", TorchVersion("2.13.0"))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "graph", lambda *_, **__: contextlib.nullcontext())
    recording = capture._recording(Graph(ended), (0, 1), None)
    with pytest.raises(RuntimeError, match="midway"), recording:
        raise RuntimeError("midway")
    expected = [] if ended else ["_cuda_endAllocateToPool", "_cuda_releasePool"]
    assert given_back == expected
