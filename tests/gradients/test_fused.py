"""Fused solves against the plain ones.

On a CPU, and in float64 anywhere, the kernels are their references: that shows the algebra of a
whole solve. The kernels themselves solve in ``tests/kernels/test_solves.py`` and, on a GPU, in bf16
below.
"""

import copy

import pytest
import torch

import nanode
from nanode.fields.norms import norms_in
from nanode.gradients.compiled import Compiled
from nanode.gradients.fused import solve as fused_solve
from nanode.gradients.fused.solve import Fused
from nanode.kernels.language import INTERPRETED
from nanode.kernels.language import serves as kernels_serve
from tests.gradients.models import bottleneck_field, passed, refuse

COMBINATIONS = [
    (nanode.Euler(), nanode.Backprop()),
    (nanode.Euler(), nanode.Checkpointed()),
    (nanode.Euler(), nanode.Checkpointed(segments=2)),
    (nanode.Coupled(nanode.Euler()), nanode.Reversal()),
    (nanode.Coupled(nanode.Euler(), coupling=0.7), nanode.Reversal()),
]
CUDA = pytest.param("cuda", marks=pytest.mark.gpu)


@pytest.mark.parametrize("device", ["cpu", CUDA])
@pytest.mark.parametrize("kind", ["moving", "constant norms", "buckets", "autonomous"])
@pytest.mark.parametrize(("solver", "gradient"), COMBINATIONS, ids=repr)
@pytest.mark.parametrize("steps", [1, 2, 6])
def test_fused_equals_plain(steps, solver, gradient, kind, device, monkeypatch):
    """Outputs, gradients and statistics, in float64: only the order of sums differs."""
    field = bottleneck_field(kind).to(device, torch.float64)
    x = torch.randn(3, 16, 5, 7, generator=torch.Generator().manual_seed(2))
    x = x.to(device, torch.float64)
    plain = passed(nanode.ODEBlock(copy.deepcopy(field), steps, solver, gradient, scale=2.0), x)
    fused = nanode.ODEBlock(field, steps, solver, Compiled(gradient, fused=True), scale=2.0)
    monkeypatch.setattr(type(gradient), "solve", refuse)
    for a, b in zip(passed(fused, x), plain, strict=True):
        # Undoing coupled steps multiplies rounding by 0.7^-6 at the most.
        assert (a - b).norm() <= 1e-12 * b.norm()
    assert fused.nfe.forward == len(fused._plan.stages)
    again = not isinstance(gradient, nanode.Backprop)
    assert fused.nfe.backward == again * fused.nfe.forward


@pytest.mark.parametrize("device", ["cpu", CUDA])
@pytest.mark.parametrize("hidden", [2, 32])
@pytest.mark.parametrize("segments", [1, 3, 5, None])
def test_segments(segments, hidden, device, monkeypatch):
    """Narrow middles are all kept; wide ones are made again, a segment at a time."""
    field = bottleneck_field("moving", hidden=hidden).to(device, torch.float64)
    x = torch.randn(3, 16, 5, 7, generator=torch.Generator().manual_seed(2))
    x = x.to(device, torch.float64)
    gradient = nanode.Checkpointed(segments)
    plain = passed(nanode.ODEBlock(copy.deepcopy(field), 12, gradient=gradient), x)
    monkeypatch.setattr(nanode.Checkpointed, "solve", refuse)
    fused = passed(nanode.ODEBlock(field, 12, gradient=Compiled(gradient, fused=True)), x)
    for a, b in zip(fused, plain, strict=True):
        assert (a - b).norm() <= 1e-12 * b.norm()


@pytest.mark.parametrize("hidden", [2, 32])
@pytest.mark.parametrize(("solver", "gradient"), COMBINATIONS, ids=repr)
@pytest.mark.parametrize("steps", [2, 12])
def test_a_solve_may_own_its_memory(steps, solver, gradient, hidden, monkeypatch):
    """As a captured one does: x, states and cotangents are then written over, results the same."""

    class Owning(fused_solve.Run):
        def __init__(self, *args):
            super().__init__(*args)
            self.owned = True

    field = bottleneck_field("moving", hidden=hidden).double()
    x = torch.randn(3, 16, 5, 7, generator=torch.Generator().manual_seed(2)).double()
    fused = nanode.ODEBlock(field, steps, solver, Compiled(gradient, fused=True))
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


#: The three fused methods. Rewinding is what `Checkpointed` does where middles are narrow.
REAL = [
    (nanode.Euler(), nanode.Backprop()),
    (nanode.Euler(), nanode.Checkpointed()),
    (nanode.Coupled(nanode.Euler()), nanode.Reversal()),
]


@pytest.mark.parametrize(
    ("width", "hidden", "shape"),
    [(8, 4, (1, 7, 7)), (24, 5, (3, 1, 1)), (16, 16, (2, 33, 31)), (17, 3, (5, 2, 9))],
)
@pytest.mark.parametrize(("solver", "gradient"), REAL, ids=repr)
@pytest.mark.parametrize("device", ["cpu", CUDA])
def test_odd_shapes(width, hidden, shape, solver, gradient, device, monkeypatch):
    """In float32, which the kernels themselves take: loose, for one ReLU may flip at its kink."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    field = bottleneck_field("moving", width, hidden).to(device)
    n, *space = shape
    x = torch.randn(n, width, *space, generator=torch.Generator().manual_seed(2)).to(device)
    if n * space[0] * space[1] < 4:
        x = x.repeat(3, 1, 1, 1)  # statistics of three pixels are no statistics
    plain = passed(nanode.ODEBlock(copy.deepcopy(field), 3, solver, gradient), x)
    monkeypatch.setattr(type(gradient), "solve", refuse)
    fused = passed(nanode.ODEBlock(field, 3, solver, Compiled(gradient, fused=True)), x)
    for a, b in zip(fused, plain, strict=True):
        assert (a - b).norm() <= 5e-3 * b.norm()
    assert device == "cpu" or kernels_serve(x)


def in_bf16(block, x):
    with torch.autocast(x.device.type, dtype=torch.bfloat16):
        return passed(block, x)


def is_captured(block):
    """Whether the only solve of the block so far was fused and captured, by real kernels."""
    (solve,) = block.gradient._solves.values()
    real = kernels_serve(torch.zeros(1, 16, device="cuda"))
    return real and isinstance(solve.method, Fused) and solve.refusal is None


KINDS = ("moving", "constant norms", "buckets", "autonomous")
ON_CPU = pytest.mark.skipif(
    INTERPRETED, reason="Triton's interpreter cuts bf16 off instead of rounding"
)
#: Kind of field; batch, width, hidden width and image: batches that no tile divides.
SIZES = [
    *(pytest.param("cpu", kind, (16, 32, 16, 9), id=f"cpu {kind}", marks=ON_CPU) for kind in KINDS),
    *(
        pytest.param("cuda", "moving", size, marks=CUDA.marks, id=f"cuda {size}")
        # In the last, middles are wider than the state, so that segments are made again.
        for size in [(130, 256, 64, 8), (3, 256, 64, 7), (1, 256, 64, 33), (16, 32, 128, 9)]
    ),
    *(
        pytest.param("cuda", kind, (3, 256, 64, 8), marks=CUDA.marks, id=f"cuda {kind}")
        for kind in KINDS[1:]
    ),
]


@pytest.mark.parametrize(("device", "kind", "size"), SIZES)
@pytest.mark.parametrize(("solver", "gradient"), REAL, ids=repr)
def test_in_bf16_it_is_as_far_from_the_truth_as_plain_bf16(
    solver, gradient, device, kind, size, monkeypatch
):
    """The truth is backprop in float64, and the measure its distance from backprop in bf16."""
    batch, width, hidden, image = size
    field = bottleneck_field(kind, width, hidden).to(device)
    x = torch.randn(batch, width, image, image, generator=torch.Generator().manual_seed(2))
    x = x.to(device)
    truth = passed(nanode.ODEBlock(copy.deepcopy(field).double(), 5, solver), x.double())
    fast = Compiled(gradient, fused=True)
    fused = nanode.ODEBlock(copy.deepcopy(field), 5, solver, fast)
    plain = nanode.ODEBlock(copy.deepcopy(field), 5, solver)
    count = 1 + len(list(field.parameters()))
    mean = {}
    for name, block in (("plain", plain), ("fused", fused)):
        found = in_bf16(block, x)
        errors = [
            float((a - b).norm() / b.norm())
            for a, b in zip(found[1 : 1 + count], truth[1 : 1 + count], strict=True)
        ]
        # Rounding to eight bits: single tensors vary, their mean doesn't.
        mean[name] = sum(errors) / count
        for a, b in zip(
            [found[0], *found[1 + count :]], [truth[0], *truth[1 + count :]], strict=True
        ):
            assert (a - b).norm() <= 1e-2 * b.norm()
        monkeypatch.setattr(type(gradient), "solve", refuse)
    assert 1e-4 < mean["plain"] < 0.2
    assert mean["fused"] <= 1.2 * mean["plain"]
    if device == "cuda":
        assert is_captured(fused)


@pytest.mark.parametrize("device", [CUDA])
@pytest.mark.parametrize("batch", [130, 3])
@pytest.mark.parametrize(("solver", "gradient"), REAL, ids=repr)
def test_a_captured_fused_solve_has_the_same_bits_every_time(
    solver, gradient, batch, device, monkeypatch
):
    """Every sum of the kernels is taken in a fixed order: a bit that moves would be a race.

    cuDNN's gradients of the middle convolution may add atomically, unless told not to.
    """
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    field = bottleneck_field("moving", 256, 64).to(device)
    block = nanode.ODEBlock(field, 5, solver, gradient, compile=True)
    start = {name: buffer.clone() for name, buffer in block.named_buffers()}
    x = torch.randn(batch, 256, 8, 8, generator=torch.Generator().manual_seed(2)).to(device)
    first = in_bf16(block, x)
    assert is_captured(block)
    for seed in range(3, 8):
        other = torch.randn(x.shape, generator=torch.Generator().manual_seed(seed)).to(device)
        in_bf16(block, other)
        for name, buffer in block.named_buffers():
            buffer.copy_(start[name])
        for n, (a, b) in enumerate(zip(in_bf16(block, x), first, strict=True)):
            assert torch.equal(a, b), n


@pytest.mark.parametrize("device", ["cpu", CUDA])
@pytest.mark.parametrize("kind", ["moving", "autonomous"])
@pytest.mark.parametrize(("solver", "gradient"), COMBINATIONS, ids=repr)
def test_without_gradients(solver, gradient, kind, device, monkeypatch):
    """Training mode (statistics move) and eval mode (they are used), in float64."""
    field = bottleneck_field(kind).to(device, torch.float64)
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


@pytest.mark.parametrize("device", [pytest.param("cpu", marks=ON_CPU), CUDA])
@pytest.mark.parametrize(("solver", "gradient"), [REAL[0], REAL[2]], ids=repr)
def test_eval_mode_in_bf16(solver, gradient, device, monkeypatch):
    """By stored statistics, as far from float64 as the plain solve."""
    field = bottleneck_field("moving", 64, 32).to(device)
    x = torch.randn(3, 64, 7, 7, generator=torch.Generator().manual_seed(2)).to(device)
    block = nanode.ODEBlock(field, 6, solver, gradient)
    fused = nanode.ODEBlock(field, 6, solver, Compiled(gradient, fused=True))
    with torch.no_grad():
        for _ in range(5):
            block(x)  # moves the statistics of both
        truth = nanode.ODEBlock(copy.deepcopy(field).double().eval(), 6, solver)(x.double())
        errors = []
        for one in (block.eval(), fused.eval()):
            with torch.autocast(device, dtype=torch.bfloat16):
                y = one(x)
            errors.append(float((y - truth).norm() / truth.norm()))
            monkeypatch.setattr(type(gradient), "solve", refuse)
    assert 1e-5 < errors[0] < 0.05
    assert errors[1] <= 1.5 * errors[0]


def test_calibration_is_fused(monkeypatch):
    """Norms in training mode, everything else in eval mode."""
    x = torch.randn(3, 16, 5, 7)
    fused = nanode.ODEBlock(
        bottleneck_field("moving"), 4, gradient=Compiled(nanode.Backprop(), fused=True)
    )
    plain = nanode.ODEBlock(bottleneck_field("moving"), 4)
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
    plain = nanode.ODEBlock(bottleneck_field("moving"), 4)
    fused = nanode.ODEBlock(
        bottleneck_field("moving"), 4, gradient=Compiled(nanode.Backprop(), fused=True)
    )
    results = []
    for block in (plain, fused):
        block(x)
        results += torch.autograd.grad(block.eval()(x).square().sum(), x)
    assert torch.allclose(*results, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("solver", "gradient"), COMBINATIONS, ids=repr)
def test_what_the_caller_holds_is_not_written_over(solver, gradient):
    x, g = (torch.randn(3, 16, 5, 7).contiguous(memory_format=torch.channels_last) for _ in "xg")
    before = x.clone(), g.clone()
    fused = Compiled(gradient, fused=True)
    nanode.ODEBlock(bottleneck_field("moving"), 3, solver, fused)(x).backward(g)
    assert torch.equal(x, before[0])
    assert torch.equal(g, before[1])


@torch.no_grad()
def test_statistics_of_another_grid_are_interpolated():
    field, x = bottleneck_field("moving"), torch.randn(2, 16, 3, 3)
    for _ in range(5):
        nanode.ODEBlock(field, 4)(x)
    field.eval()
    fused = nanode.ODEBlock(field, 6, gradient=Compiled(nanode.Backprop(), fused=True))
    assert torch.allclose(fused(x), nanode.ODEBlock(field, 6)(x), rtol=1e-4, atol=1e-5)


def test_the_momentum_is_that_of_the_norms():
    field, x, found = bottleneck_field("moving"), torch.randn(2, 16, 3, 3), []
    for norm in norms_in(field):
        norm.momentum = 0.4
    for method in (nanode.Backprop(), Compiled(nanode.Backprop(), fused=True)):
        block = nanode.ODEBlock(copy.deepcopy(field), 3, gradient=method)
        block(x)
        found.append(list(block.buffers()))
    for a, b in zip(*found, strict=True):
        assert torch.allclose(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("method", [nanode.Backprop(), nanode.Checkpointed()], ids=repr)
def test_the_end_may_be_changed_in_place(method):
    x, found = torch.randn(3, 16, 5, 5, dtype=torch.float64), []
    for gradient in (method, Compiled(method, fused=True)):
        field = bottleneck_field("moving").double()
        block = nanode.ODEBlock(field, 3, gradient=gradient)
        y = block(x).mul_(2).relu_()
        found.append([y, *torch.autograd.grad(y.square().sum(), list(block.parameters()))])
    for a, b in zip(*found, strict=True):
        assert (a - b).norm() <= 1e-12 * b.norm()


def test_weights_changed_between_the_passes_are_noticed():
    field = bottleneck_field("constant norms")
    block = nanode.ODEBlock(field, 3, gradient=Compiled(nanode.Backprop(), fused=True))
    y = block(torch.randn(2, 16, 4, 4, requires_grad=True))
    with torch.no_grad():
        field.module[0].weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_second_derivatives_are_refused():
    block = nanode.ODEBlock(
        bottleneck_field("moving"), 3, gradient=Compiled(nanode.Backprop(), fused=True)
    )
    x = torch.randn(2, 16, 4, 4, requires_grad=True)
    with pytest.raises(RuntimeError, match="first derivatives only"):
        torch.autograd.grad(block(x).sum(), x, create_graph=True)
