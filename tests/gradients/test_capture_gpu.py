"""Captured solves, by real CUDA graphs. Run by ``make test-gpu``."""

import copy
import gc
import warnings
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

import nanode
from nanode.models.layers import bottleneck
from tests.gpu import COMBINATIONS, close, conv_field, gradients

pytestmark = pytest.mark.gpu


SHAPES = [(4, 8, 9, 9), (1, 8, 33, 31), (130, 8, 7, 7), (3, 8, 1, 1), (2, 8, 16, 16), (5, 8, 3, 4)]


@pytest.mark.parametrize(
    ("solver", "gradient", "shape"),
    [(*pair, shape) for pair, shape in zip(COMBINATIONS, SHAPES, strict=True)],
    ids=repr,
)
def test_a_captured_solve_equals_the_plain_one(solver, gradient, shape):
    """Outputs, gradients and statistics over several passes, in float64."""
    field = conv_field().double().cuda()
    plain = nanode.ODEBlock(copy.deepcopy(field), 6, solver, gradient)
    fast = nanode.ODEBlock(copy.deepcopy(field), 6, solver, gradient, compile=True)
    for _ in range(3):
        x = torch.randn(shape, dtype=torch.float64, device="cuda")
        close(gradients(fast, x), gradients(plain, x), 1e-11)
        close(fast.buffers(), plain.buffers(), 1e-12)
        assert fast.nfe == plain.nfe
    captured = next(iter(fast.gradient._solves.values()))
    assert captured.refusal is None
    with torch.no_grad():
        close([fast.eval()(x)], [plain.eval()(x)], 1e-12)


def test_shapes_take_turns():
    """Each has a capture of its own."""
    field = conv_field().double().cuda()
    plain = nanode.ODEBlock(copy.deepcopy(field), 6)
    fast = nanode.ODEBlock(field, 6, compile=True)
    for n in range(6):
        x = torch.randn(SHAPES[n % 2], dtype=torch.float64, device="cuda")
        close(gradients(fast, x), gradients(plain, x), 1e-11)
    assert [solve.refusal for solve in fast.gradient._solves.values()] == [None, None]


@pytest.mark.parametrize(("solver", "gradient"), COMBINATIONS, ids=repr)
def test_a_captured_solve_is_the_same_every_time(solver, gradient, monkeypatch):
    """To the bit: a result that moves between two runs on the same input would be a race."""
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)  # else it may use atomics
    block = nanode.ODEBlock(conv_field().cuda(), 6, solver, gradient, compile=True)
    x = torch.randn(4, 8, 9, 9, device="cuda")
    first = gradients(block, x)
    for _ in range(3):
        gradients(block, torch.randn_like(x))
        assert all(map(torch.equal, gradients(block, x), first))


def test_two_forward_passes_before_a_backward_one():
    """The second must not overwrite what the first still needs."""
    field = conv_field().double().cuda()
    plain = nanode.ODEBlock(copy.deepcopy(field), 6, nanode.Coupled(), nanode.Reversal())
    fast = nanode.ODEBlock(field, 6, nanode.Coupled(), nanode.Reversal(), compile=True)
    one, two = (torch.randn(4, 8, 9, 9, dtype=torch.float64, device="cuda") for _ in range(2))
    found = []
    for block in (plain, fast):
        block(one).sum().backward()  # captures
        block.zero_grad()
        (block(one).sin() * block(two).cos()).sum().backward()
        found.append([p.grad.clone() for p in block.parameters()])
    close(found[1], found[0], 1e-11)


def test_an_optimizer_step_is_seen():
    block = nanode.ODEBlock(conv_field().double().cuda(), 4, compile=True)
    x = torch.randn(4, 8, 9, 9, dtype=torch.float64, device="cuda", requires_grad=True)
    before = block(x)
    before.square().sum().backward()
    with torch.no_grad():
        for parameter in block.parameters():
            parameter -= 0.1 * parameter.grad
    plain = nanode.ODEBlock(block.field, 4)
    close([block(x)], [plain(x)], 1e-12)
    assert (block(x) - before).norm() > 1e-3


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=repr)
@pytest.mark.parametrize(
    ("solver", "gradient"), [COMBINATIONS[0], COMBINATIONS[1], COMBINATIONS[3]], ids=repr
)
def test_autocast_under_capture(solver, gradient, layout):
    field = conv_field().cuda()
    plain = nanode.ODEBlock(copy.deepcopy(field), 6, solver, gradient)
    fast = nanode.ODEBlock(field, 6, solver, gradient, compile=True)
    x = torch.randn(4, 8, 9, 9, device="cuda").to(memory_format=layout)
    found = []
    for block in (plain, fast):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            y = block(x)
        assert y.dtype == torch.float32
        cotangent = torch.randn(y.shape, generator=torch.Generator().manual_seed(2)).cuda()
        found.append(torch.autograd.grad(y, list(block.parameters()), cotangent))
    # Two ways to round to eight bits.
    close(found[1], found[0], 5e-2)


@pytest.mark.parametrize("form", [nanode.Householder(), nanode.Cayley(), nanode.Exponential()])
def test_orthogonal_weights(form):
    """Captured where the form doesn't wait for the GPU; the same gradients in any case.

    ``torch.matrix_exp`` looks at its argument's size, and waits for it.
    """
    torch.manual_seed(0)
    module = nn.Sequential(nn.GroupNorm(2, 8), nn.Tanh(), nn.Conv2d(8, 8, 3, padding=1))
    field = nanode.TimeVarying(module, nanode.Chebyshev(degree=3), orthogonal=form)
    field = field.double().cuda()
    plain = nanode.ODEBlock(copy.deepcopy(field), 5)
    fast = nanode.ODEBlock(field, 5, compile=True)
    x = torch.randn(3, 8, 7, 7, dtype=torch.float64, device="cuda")
    for _ in range(2):
        close(gradients(fast, x), gradients(plain, x), 1e-10)
    refusal = next(iter(fast.gradient._solves.values())).refusal
    if isinstance(form, nanode.Householder):
        assert refusal is None
    if isinstance(form, nanode.Exponential):
        assert refusal is not None


def identity_after(name, act):
    """A module that gives x back after something was done on the way; it compiles."""

    def identity(x: torch.Tensor) -> torch.Tensor:
        act(x)
        return x.clone()

    operation = torch.library.custom_op(f"nanode_tests::{name}", identity, mutates_args=())
    operation.register_fake(torch.empty_like)
    operation.register_autograd(lambda ctx, grad: grad)

    class After(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return operation(x)

    return After


#: The CPU has to wait for a value of x, so that no CUDA graph can hold it.
LookedAt = identity_after("looked_at", lambda x: x.sum().isfinite().item())
WaitedFor = identity_after("waited_for", lambda x: torch.cuda.synchronize())


@pytest.mark.parametrize(
    ("solver", "gradient"), [COMBINATIONS[0], COMBINATIONS[1], COMBINATIONS[3]], ids=repr
)
def test_a_field_that_cannot_be_captured(solver, gradient):
    """Outputs, gradients and statistics are the plain block's: trials of a capture leave nothing.

    Not in the buffers, whose statistics move once a pass, and not in what torch shares: the
    stream, cuDNN's settings and the random numbers.
    """
    field = conv_field(LookedAt()).double().cuda()
    plain = nanode.ODEBlock(copy.deepcopy(field), 6, solver, gradient)
    fast = nanode.ODEBlock(field, 6, solver, gradient, compile=True)
    stream, benchmark = torch.cuda.current_stream(), torch.backends.cudnn.benchmark
    for seed in range(2):
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(4, 8, 9, 9, dtype=torch.float64, generator=generator).cuda()
        close(gradients(fast, x), gradients(plain, x), 1e-11)
        close(fast.buffers(), plain.buffers(), 1e-12)
        assert fast.nfe == plain.nfe
        (solve,) = fast.gradient._solves.values()
        assert solve.refusal is not None
        assert solve.graphs is None
    assert torch.cuda.current_stream() == stream
    assert torch.backends.cudnn.benchmark == benchmark
    with torch.no_grad():
        close([fast.eval()(x)], [plain.eval()(x)], 1e-12)


def test_a_refused_capture_leaves_the_gpu_usable():
    """torch's generator stays in the mode of a failed capture, unless it is brought back."""
    torch.manual_seed(5)
    expected = torch.randn(7, device="cuda")
    x = torch.randn(4, 8, 9, 9, dtype=torch.float64, device="cuda")
    refused = nanode.ODEBlock(conv_field(LookedAt()).double().cuda(), 3, compile=True)
    gradients(refused, x)
    assert next(iter(refused.gradient._solves.values())).refusal is not None
    torch.manual_seed(5)
    assert torch.equal(torch.randn(7, device="cuda"), expected)
    other = nanode.ODEBlock(conv_field().double().cuda(), 3, compile=True)
    gradients(other, x)
    assert next(iter(other.gradient._solves.values())).refusal is None


def left_in_pools() -> int:
    """Bytes of graphs' pools that outlive all that is gone.

    Libraries' workspaces may stay (tens of MB), of earlier captures too; no state of a solve does.
    """
    torch.compiler.reset()
    gc.collect()
    torch.cuda.empty_cache()
    segments = torch.cuda.memory_snapshot()
    return sum(s["total_size"] for s in segments if tuple(s["segment_pool_id"]) != (0, 0))


def test_a_capture_that_fails_midway_says_so_and_keeps_no_memory():
    x = torch.randn(64, 8, 256, 256, device="cuda")
    block = nanode.ODEBlock(conv_field(WaitedFor()).cuda(), 3, compile=True)
    with pytest.warns(UserWarning, match="can't be captured"):
        gradients(block, x)
    del block
    assert left_in_pools() < x.nbytes
    held = torch.cuda.memory_reserved()
    spare = torch.empty(2**28, device="cuda")
    size = spare.nbytes
    del spare
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() < held + size


#: No call of CUDA fails, so that the graph's capture comes to an end.
Refusing = identity_after("refusing", lambda x: refuse_captures())


def refuse_captures() -> None:
    if torch.cuda.is_current_stream_capturing():
        raise RuntimeError("not in a graph")


def test_a_field_that_refuses_to_be_captured():
    """Its pool is given back once: torch ends the process at the second time."""
    field = conv_field(Refusing()).double().cuda()
    x = torch.randn(64, 8, 192, 192, dtype=torch.float64, device="cuda")
    expected = gradients(nanode.ODEBlock(copy.deepcopy(field), 3), x)
    block = nanode.ODEBlock(field, 3, compile=True)
    with pytest.warns(UserWarning, match="not in a graph"):
        close(gradients(block, x), expected, 1e-11)
    del block, field
    assert left_in_pools() < x.nbytes


def test_captures_leave_no_more_behind_than_one():
    """Libraries keep workspaces for every stream that was ever used."""
    x = torch.randn(64, 256, device="cuda")
    held = []
    for _ in range(5):
        field = nanode.TimeVarying(nn.Linear(256, 256), nanode.Trigonometric(order=1)).cuda()
        block = nanode.ODEBlock(field, 3, compile=True)
        gradients(block, x)
        assert next(iter(block.gradient._solves.values())).graphs is not None
        del field, block
        torch.compiler.reset()
        gc.collect()
        held.append(torch.cuda.memory_allocated())
    assert max(held[1:]) < held[0] + 2**20


@pytest.mark.parametrize("gone", [0, 1])
def test_a_capture_outlives_another(gone):
    """It goes on writing into the workspace that cuBLAS had when it was made, and nowhere else."""
    # Gradients of weights are sums of many products, which are made in a workspace.
    x = torch.randn(32768, 640, device="cuda", dtype=torch.bfloat16)
    blocks, first, graphs = [], [], []
    for _ in range(2):
        field = nanode.TimeVarying(nn.Linear(640, 640), nanode.Trigonometric(order=1))
        blocks.append(nanode.ODEBlock(field.to(x), 2, compile=True))
        first.append(gradients(blocks[-1], x))
        graphs.append(weakref.ref(next(iter(blocks[-1].gradient._solves.values())).graphs))
    del blocks[gone], first[gone], field
    gc.collect()
    torch.cuda.empty_cache()
    assert graphs[gone]() is None
    assert graphs[1 - gone]() is not None
    other = torch.zeros(2**28, device="cuda")
    for _ in range(2):
        close(gradients(*blocks, x), *first, 1e-2)
    assert not other.any()


def linear_field() -> nanode.TimeVarying:
    """All of whose weights have one shape, so that gradients of one could pass as another's."""
    torch.manual_seed(0)
    module = nn.Sequential(*(nn.Linear(8, 8, bias=False, dtype=torch.float64) for _ in range(3)))
    return nanode.TimeVarying(module, nanode.Trigonometric(order=1), start=nanode.Noisy(0.3)).cuda()


def test_what_is_frozen_between_the_passes_takes_nobody_elses_gradient():
    x, found = torch.randn(3, 8, dtype=torch.float64, device="cuda"), []
    for compile in (False, True):
        block = nanode.ODEBlock(linear_field(), 3, compile=compile)
        y = block(x)
        next(block.parameters()).requires_grad_(False)
        (y**2).sum().backward()
        found.append([p.grad for p in block.parameters() if p.requires_grad])
    assert len(found[1]) == 2
    close(found[1], found[0], 1e-11)


@pytest.mark.parametrize("before", [False, True], ids=["from the start", "after a capture"])
@pytest.mark.parametrize("gradient", [nanode.Backprop(), nanode.Checkpointed()], ids=repr)
def test_inside_of_a_checkpoint(gradient, before):
    x, found = torch.randn(8, 8, dtype=torch.float64, device="cuda", requires_grad=True), []
    for compile in (False, True):
        block = nanode.ODEBlock(linear_field(), 3, gradient=gradient, compile=compile)
        if before:
            gradients(block, x.detach())
        around = nn.Linear(8, 8, dtype=torch.float64, device="cuda")
        nn.init.eye_(around.weight)
        nn.init.zeros_(around.bias)
        model = nn.Sequential(around, block, around)
        y = torch.utils.checkpoint.checkpoint(model, x, use_reentrant=False)
        found.append(torch.autograd.grad(y.square().sum(), [x, *model.parameters()]))
    close(found[1], found[0], 1e-11)


@pytest.mark.parametrize("by", [0.5, 0.9])
def test_a_number_on_the_cpu_is_read_anew(by):
    block = nanode.ODEBlock(lambda t, x, by: torch.tanh(by * x), 3, compile=True)
    plain = nanode.ODEBlock(lambda t, x, by: torch.tanh(by * x), 3)
    x = torch.randn(8, 8, dtype=torch.float64, device="cuda", requires_grad=True)
    for value in (0.1, by):
        y, expected = (b(x, torch.tensor(value)) for b in (block, plain))
        close(torch.autograd.grad(y.sum(), x), torch.autograd.grad(expected.sum(), x), 1e-11)


def shared_block(steps, shape, count):
    """A block to be captured, some inputs, and what a plain block makes of them."""
    field = conv_field(norm=nn.Identity).double().cuda()
    plain = nanode.ODEBlock(copy.deepcopy(field), steps)
    given = [torch.randn(shape, dtype=torch.float64, device="cuda") for _ in range(count)]
    return nanode.ODEBlock(field, steps, compile=True), given, [gradients(plain, x) for x in given]


def test_streams_in_turn():
    """A replay waits for what was done with the same memory on another stream."""
    fast, given, expected = shared_block(20, (64, 8, 64, 64), 6)
    gradients(fast, given[0])
    torch.cuda.synchronize()
    streams, found = [torch.cuda.Stream() for _ in range(2)], []
    for n, x in enumerate(given):
        with torch.cuda.stream(streams[n % 2]):
            found.append(gradients(fast, x))
    torch.cuda.synchronize()
    for here, there in zip(found, expected, strict=True):
        close(here, there, 1e-11)


def test_threads_that_share_a_captured_block():
    """From their first call on: one captures, and all get their own gradients."""
    fast, given, expected = shared_block(5, (4, 8, 9, 9), 4)
    torch.cuda.synchronize()

    def work(x: torch.Tensor) -> list[list[torch.Tensor]]:
        found = [gradients(fast, x) for _ in range(10)]
        torch.cuda.synchronize()
        return found

    with ThreadPoolExecutor(4) as pool:
        for found, there in zip(pool.map(work, given), expected, strict=True):
            for here in found:
                close(here, there, 1e-11)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
@pytest.mark.parametrize("width", [8, 16], ids=["compiled", "fused"])
def test_a_second_gpu_while_the_first_is_current(width):
    for device in ("cuda:0", "cuda:1", "cuda:0"):
        torch.manual_seed(0)
        module = (
            bottleneck(width, 8, nanode.BatchNorm) if width == 16 else nn.Conv2d(8, 8, 3, padding=1)
        )
        field = nanode.TimeVarying(module, nanode.Trigonometric(order=1)).to(device)
        plain = nanode.ODEBlock(copy.deepcopy(field), 4)
        fast = nanode.ODEBlock(field, 4, compile=True)
        for seed in range(3):
            x = torch.randn(4, width, 9, 9, generator=torch.Generator().manual_seed(seed))
            with torch.autocast("cuda", dtype=torch.bfloat16):
                found, expected = (gradients(block, x.to(device)) for block in (fast, plain))
            close(found, expected, 0.1)
        (solve,) = fast.gradient._solves.values()
        assert solve.refusal is None


def test_what_a_function_closes_over_gets_its_gradient():
    """Which a capture couldn't give it."""
    factor = torch.randn(8, 1, 1, dtype=torch.float64, device="cuda", requires_grad=True)
    x = torch.randn(4, 8, 9, 9, dtype=torch.float64, device="cuda", requires_grad=True)
    found = []
    for compile in (False, True):
        block = nanode.ODEBlock(lambda t, x: torch.tanh(factor * x), 6, compile=compile)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            y = block(x)
        found.append(torch.autograd.grad(y.square().sum(), [x, factor]))
    close(found[1], found[0], 1e-11)


@pytest.mark.parametrize("moving", [True, False])
@pytest.mark.parametrize(("solver", "gradient"), COMBINATIONS, ids=repr)
def test_gradient_accumulators_that_live_on(solver, gradient, moving):
    """DDP keeps them, and so does any graph with a weight in it, such as a penalty's."""
    field = conv_field()
    if not moving:
        field = nanode.Autonomous(nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.Tanh()))
    field = field.double().cuda()
    x = torch.randn(4, 8, 9, 9, dtype=torch.float64, device="cuda")
    expected = gradients(nanode.ODEBlock(copy.deepcopy(field), 6, solver, gradient), x)
    kept = [p.view_as(p).grad_fn.next_functions[0][0] for p in field.parameters()]
    block = nanode.ODEBlock(field, 6, solver, gradient, compile=True)
    for _ in range(2):
        close(gradients(block, x), expected, 1e-10)
    assert [solve.refusal for solve in block.gradient._solves.values()] == [None]
    del kept


def test_a_field_changed_after_its_capture():
    """One activation in another's place has no weights that could tell."""
    field = conv_field().double().cuda()
    block = nanode.ODEBlock(field, 3, compile=True)
    x = torch.randn(4, 8, 9, 9, dtype=torch.float64, device="cuda")
    before = gradients(block, x)
    field.module[1] = nn.Tanh()
    after = gradients(block, x)
    close(after, gradients(nanode.ODEBlock(copy.deepcopy(field), 3), x), 1e-11)
    assert not torch.allclose(after[0], before[0])
    assert all(solve.refusal is None for solve in block.gradient._solves.values())


def test_weights_changed_before_the_backward_pass_of_a_captured_solve():
    block = nanode.ODEBlock(conv_field().double().cuda(), 3, compile=True)
    y = block(torch.randn(4, 8, 9, 9, dtype=torch.float64, device="cuda", requires_grad=True))
    assert next(iter(block.gradient._solves.values())).graphs is not None
    with torch.no_grad():
        next(block.parameters()).mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
