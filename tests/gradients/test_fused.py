"""Fused solves against the plain ones; on a CPU the kernels are their references."""

import copy

import pytest
import torch
from torch import nn

import nanode
from nanode.fields.norms import norms_in
from nanode.gradients.compiled import Compiled
from nanode.gradients.fused import solve as fused_solve
from nanode.gradients.fused.bottleneck import is_bottleneck
from nanode.models.layers import batch_norm, bottleneck, group_norm

COMBINATIONS = [
    (nanode.Euler(), nanode.Backprop()),
    (nanode.Euler(), nanode.Checkpointed()),
    (nanode.Euler(), nanode.Checkpointed(segments=2)),
    (nanode.Coupled(nanode.Euler()), nanode.Reversal()),
    (nanode.Coupled(nanode.Euler(), coupling=0.7), nanode.Reversal()),
]
NORMS = dict.fromkeys(["0", "3", "6"])
CUDA = pytest.param(
    "cuda",
    marks=[
        pytest.mark.gpu,
        pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    ],
)


def make_field(kind, width=16, hidden=8):
    torch.manual_seed(0)
    module = bottleneck(width, hidden, batch_norm)
    for norm in list(module)[::3]:
        nn.init.normal_(norm.weight, 1, 0.2)
        nn.init.normal_(norm.bias, 0, 0.2)
    if kind == "autonomous":
        return nanode.Autonomous(module)
    overrides = NORMS if kind == "constant norms" else None
    basis = nanode.Bucketed(3) if kind == "buckets" else nanode.Trigonometric(order=2)
    return nanode.TimeVarying(module, basis, start=nanode.Noisy(0.3), overrides=overrides)


def passed(block, x):
    x = x.clone().requires_grad_()
    y = block(x)
    cotangent = torch.randn(y.shape, generator=torch.Generator().manual_seed(1)).to(y)
    grads = torch.autograd.grad(y, [x, *block.parameters()], cotangent)
    return [y, *grads, *(buffer.clone() for buffer in block.buffers())]


def refuse(*args):
    raise AssertionError("the plain method ran")


@pytest.mark.parametrize("device", ["cpu", CUDA])
@pytest.mark.parametrize("kind", ["moving", "constant norms", "buckets", "autonomous"])
@pytest.mark.parametrize(("solver", "gradient"), COMBINATIONS, ids=repr)
def test_fused_equals_plain(solver, gradient, kind, device, monkeypatch):
    """Outputs, gradients and statistics, in float64: only the order of sums differs."""
    field = make_field(kind).to(device, torch.float64)
    x = torch.randn(3, 16, 5, 7, generator=torch.Generator().manual_seed(2))
    x = x.to(device, torch.float64)
    plain = passed(nanode.ODEBlock(copy.deepcopy(field), 6, solver, gradient, scale=2.0), x)
    fused = nanode.ODEBlock(field, 6, solver, Compiled(gradient, fused=True), scale=2.0)
    monkeypatch.setattr(type(gradient), "solve", refuse)
    for a, b in zip(passed(fused, x), plain, strict=True):
        # Undoing six coupled steps multiplies rounding by 0.7^-6 at the most.
        assert (a - b).norm() <= 1e-12 * b.norm()
    assert fused.nfe.forward == len(fused._plan.stages)


@pytest.mark.parametrize("device", ["cpu", CUDA])
@pytest.mark.parametrize("hidden", [2, 32])
@pytest.mark.parametrize("segments", [1, 3, 5, None])
def test_segments(segments, hidden, device):
    """Narrow middles are all kept; wide ones are made again, a segment at a time."""
    field = make_field("moving", hidden=hidden).to(device, torch.float64)
    x = torch.randn(3, 16, 5, 7, generator=torch.Generator().manual_seed(2))
    x = x.to(device, torch.float64)
    gradient = nanode.Checkpointed(segments)
    plain = passed(nanode.ODEBlock(copy.deepcopy(field), 12, gradient=gradient), x)
    fused = passed(nanode.ODEBlock(field, 12, gradient=Compiled(gradient, fused=True)), x)
    for a, b in zip(fused, plain, strict=True):
        assert (a - b).norm() <= 1e-12 * b.norm()


@pytest.mark.parametrize("hidden", [2, 32])
@pytest.mark.parametrize(("solver", "gradient"), COMBINATIONS, ids=repr)
def test_a_solve_may_own_its_memory(solver, gradient, hidden, monkeypatch):
    """As a captured one does: x, states and cotangents are then written over, results the same."""

    class Owning(fused_solve.Run):
        def __init__(self, *args):
            super().__init__(*args)
            self.owned = True

    field = make_field("moving", hidden=hidden).double()
    x = torch.randn(3, 16, 5, 7, generator=torch.Generator().manual_seed(2)).double()
    fused = nanode.ODEBlock(field, 12, solver, Compiled(gradient, fused=True))
    plain = passed(fused, x)
    monkeypatch.setattr(fused_solve, "Run", Owning)
    own = x.clone().to(memory_format=torch.channels_last).requires_grad_()
    y = fused(own)
    assert torch.equal(y, plain[0])
    cotangent = torch.randn(y.shape, generator=torch.Generator().manual_seed(1)).double()
    cotangent = cotangent.to(memory_format=torch.channels_last)
    before = cotangent.clone()
    for a, b in zip(
        torch.autograd.grad(y, [own, *fused.parameters()], cotangent), plain[1:], strict=False
    ):
        assert (a - b).norm() <= 1e-12 * b.norm()
    assert not torch.equal(cotangent, before)


@pytest.mark.parametrize(
    ("width", "hidden", "shape"),
    [(8, 4, (1, 7, 7)), (24, 5, (3, 1, 1)), (16, 16, (2, 33, 31)), (17, 3, (5, 2, 9))],
)
@pytest.mark.parametrize("device", ["cpu", CUDA])
def test_odd_shapes(width, hidden, shape, device, monkeypatch):
    """In float32, which the kernels themselves take: loose, for one ReLU may flip at its kink."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    field = make_field("moving", width, hidden).to(device)
    n, *space = shape
    x = torch.randn(n, width, *space, generator=torch.Generator().manual_seed(2)).to(device)
    if n * space[0] * space[1] < 4:
        x = x.repeat(3, 1, 1, 1)  # statistics of three pixels are no statistics
    solver, gradient = nanode.Coupled(), nanode.Reversal()
    plain = passed(nanode.ODEBlock(copy.deepcopy(field), 3, solver, gradient), x)
    fused = passed(nanode.ODEBlock(field, 3, solver, Compiled(gradient, fused=True)), x)
    for a, b in zip(fused, plain, strict=True):
        assert (a - b).norm() <= 5e-3 * b.norm()


@pytest.mark.parametrize("device", ["cpu", CUDA])
def test_in_bf16_it_is_as_far_from_the_truth_as_plain_bf16(device):
    field = make_field("moving", 32, 16).to(device)
    x = torch.randn(16, 32, 9, 9, generator=torch.Generator().manual_seed(2)).to(device)
    truth = passed(nanode.ODEBlock(copy.deepcopy(field).double(), 5), x.double())
    errors = {}
    for name, gradient in (
        ("plain", nanode.Backprop()),
        ("fused", Compiled(nanode.Backprop(), fused=True)),
    ):
        block = nanode.ODEBlock(copy.deepcopy(field), 5, gradient=gradient)
        with torch.autocast(device, dtype=torch.bfloat16):
            found = passed(block, x)
        count = 1 + len(list(block.parameters()))
        errors[name] = [
            float((a - b).norm() / b.norm())
            for a, b in zip(found[1 : 1 + count], truth[1 : 1 + count], strict=True)
        ]
    # Rounding to eight bits: single tensors vary, their mean doesn't.
    mean = {name: sum(values) / len(values) for name, values in errors.items()}
    assert 1e-4 < mean["plain"] < 0.2
    assert mean["fused"] < 1.3 * mean["plain"]


@pytest.mark.parametrize("device", ["cpu", CUDA])
@pytest.mark.parametrize("kind", ["moving", "autonomous"])
@pytest.mark.parametrize(("solver", "gradient"), COMBINATIONS, ids=repr)
def test_without_gradients(solver, gradient, kind, device, monkeypatch):
    """Training mode (statistics move) and eval mode (they are used), in float64."""
    field = make_field(kind).to(device, torch.float64)
    x = torch.randn(3, 16, 5, 7, generator=torch.Generator().manual_seed(2))
    x = x.to(device, torch.float64)
    plain = nanode.ODEBlock(copy.deepcopy(field), 6, solver, gradient)
    fused = nanode.ODEBlock(field, 6, solver, Compiled(gradient, fused=True))
    with torch.no_grad():
        expected = [plain(x), plain.eval()(2 * x), *plain.buffers()]
        monkeypatch.setattr(type(gradient), "solve", refuse)
        before = x.clone()
        found = [fused(x), fused.eval()(2 * x), *fused.buffers()]
    assert torch.equal(x, before)
    for a, b in zip(found, expected, strict=True):
        assert (a - b).norm() <= 1e-12 * b.norm()


def test_calibration_is_fused(monkeypatch):
    """Norms in training mode, everything else in eval mode."""
    x = torch.randn(3, 16, 5, 7)
    fused = nanode.ODEBlock(
        make_field("moving"), 4, gradient=Compiled(nanode.Backprop(), fused=True)
    )
    plain = nanode.ODEBlock(make_field("moving"), 4)
    found = []
    for block in (plain, fused):
        for norm in norms_in(block.eval()):
            norm.train()
        with torch.no_grad():
            found.append([block(x), *block.buffers()])
        monkeypatch.setattr(nanode.Backprop, "solve", refuse)
    for a, b in zip(*found, strict=True):
        assert torch.allclose(a, b, rtol=1e-4, atol=1e-5)


def test_eval_mode_with_gradients_is_not_fused():
    x = torch.randn(3, 16, 5, 7, requires_grad=True)
    plain = nanode.ODEBlock(make_field("moving"), 4)
    fused = nanode.ODEBlock(
        make_field("moving"), 4, gradient=Compiled(nanode.Backprop(), fused=True)
    )
    results = []
    for block in (plain, fused):
        block(x)
        results += torch.autograd.grad(block.eval()(x).square().sum(), x)
    assert torch.allclose(*results, rtol=1e-4, atol=1e-5)


def test_what_is_no_bottleneck_runs_as_ever():
    assert is_bottleneck(make_field("moving"))
    mixed = make_field("moving")
    mixed.module[3].eval()
    assert not is_bottleneck(mixed)
    assert not is_bottleneck(nanode.Autonomous(bottleneck(16, 8, group_norm)))
    assert not is_bottleneck(nanode.Autonomous(nn.Conv2d(4, 4, 1)))
    hooked = make_field("moving")
    hooked.module[1].register_forward_hook(lambda *args: None)
    assert not is_bottleneck(hooked)
    strided = bottleneck(16, 8, batch_norm)
    strided[5].dilation = (2, 2)
    assert not is_bottleneck(nanode.Autonomous(strided))


def test_weights_changed_between_the_passes_are_noticed():
    field = make_field("constant norms")
    block = nanode.ODEBlock(field, 3, gradient=Compiled(nanode.Backprop(), fused=True))
    y = block(torch.randn(2, 16, 4, 4, requires_grad=True))
    with torch.no_grad():
        field.module[0].weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_second_derivatives_are_refused():
    block = nanode.ODEBlock(
        make_field("moving"), 3, gradient=Compiled(nanode.Backprop(), fused=True)
    )
    x = torch.randn(2, 16, 4, 4, requires_grad=True)
    (slope,) = torch.autograd.grad(block(x).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="first derivatives only"):
        slope.square().sum().backward()
