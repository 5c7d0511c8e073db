"""The compiled path gives the plain one's results, up to rounding.

Compiling takes seconds, so few combinations are compiled here; ``test_combinations.py`` traces them
all, and compiles them on a GPU.
"""

import copy
import functools
import pickle
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

import nanode
from nanode.gradients import compiled
from tests.gradients.models import X, conv_field, passed, passed_twice

pytestmark = pytest.mark.usefixtures("compile_all")


class Doubling(torch.autograd.Function):
    """The identity with a derivative of two, which only a true call of ``backward`` can give."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad


class Doubled(nn.Module):
    def forward(self, x):
        return Doubling.apply(x)


@pytest.mark.parametrize(
    ("solver", "gradient"),
    [
        (nanode.Euler(), nanode.Backprop()),
        (nanode.Heun(), nanode.Checkpointed()),
        (nanode.Coupled(), nanode.Reversal()),
        (nanode.ReversibleHeun(), nanode.Reversal(chunk=2)),
    ],
    ids=repr,
)
def test_equals_the_plain_path(solver, gradient):
    """Outputs, gradients, statistics and eval mode; the field contains a custom function."""
    field = conv_field(Doubled())
    plain = passed_twice(nanode.ODEBlock(copy.deepcopy(field), 4, solver, gradient), X)
    fast = passed_twice(nanode.ODEBlock(copy.deepcopy(field), 4, solver, gradient, compile=True), X)
    for a, b in zip(fast, plain, strict=True):
        assert (a - b).norm() <= 1e-13 * b.norm()


def test_a_field_that_draws_random_numbers_falls_back():
    field = conv_field(nn.Dropout(0.5))
    block = nanode.ODEBlock(field, 3, nanode.Coupled(), nanode.Reversal(), compile=True)
    torch.manual_seed(3)
    block(X)  # finds out, and draws
    torch.manual_seed(3)
    found = torch.autograd.grad(block(X), list(block.parameters()), X)
    torch.manual_seed(3)
    plain = nanode.ODEBlock(field, 3, nanode.Coupled(), nanode.Backprop())
    expected = torch.autograd.grad(plain(X), list(plain.parameters()), X)
    for a, b in zip(found, expected, strict=True):
        assert (a - b).norm() <= 1e-12 * b.norm()


class AlwaysDropping(nn.Module):
    def forward(self, x):
        return nn.functional.dropout(x, 0.5, training=True)


@pytest.mark.parametrize(
    ("solver", "gradient"),
    [(nanode.Euler(), nanode.Checkpointed()), (nanode.Coupled(), nanode.Reversal())],
    ids=repr,
)
def test_random_numbers_in_eval_mode_are_noticed(solver, gradient):
    field = conv_field(AlwaysDropping())
    nanode.ODEBlock(field, 3, solver)(X)  # statistics, which eval mode needs
    found = []
    for compile in (True, False):
        block = nanode.ODEBlock(field, 3, solver, gradient, compile=compile).eval()
        torch.manual_seed(3)  # the first call looks whether it draws, and draws the same then
        y = block(X)
        found.append([y, *torch.autograd.grad(y, list(block.parameters()), X)])
    for a, b in zip(*found, strict=True):
        assert torch.equal(a, b)


class Deciding(nn.Module):
    def forward(self, x):
        return x.tanh() if x.sum() > 1e6 else 0.5 * x.tanh()


def test_a_field_that_cannot_be_traced_runs_as_it_is():
    """A decision by values, which one graph can't hold."""
    field = conv_field(Deciding())
    block = nanode.ODEBlock(copy.deepcopy(field), 3, gradient=nanode.Checkpointed(), compile=True)
    with pytest.warns(UserWarning, match="can't be compiled and runs as it is"):
        fast = passed_twice(block, X)
    plain = nanode.ODEBlock(copy.deepcopy(field), 3, gradient=nanode.Checkpointed())
    for a, b in zip(fast, passed_twice(plain, X), strict=True):
        assert torch.equal(a, b)
    assert block.nfe.forward == 3
    with warnings.catch_warnings():  # said once
        warnings.simplefilter("error")
        block(X)


class Odd(nn.Module):
    """Breaks the graph where x requires grad, which the first state of a solve doesn't."""

    def forward(self, x):
        return x.tanh() if x.requires_grad and x.sum() > 1e6 else 0.5 * x.tanh()


def test_statistics_moved_before_a_trace_failed_are_put_back():
    field = conv_field(Odd())
    block = nanode.ODEBlock(copy.deepcopy(field), 3, compile=True)
    with pytest.warns(UserWarning, match="can't be compiled and runs as it is"):
        block(X)
    assert block.nfe.forward == 3
    plain = nanode.ODEBlock(copy.deepcopy(field), 3)
    plain(X)
    for a, b in zip(block.buffers(), plain.buffers(), strict=True):
        assert torch.equal(a, b)


def test_more_shapes_than_torch_compiles_for():
    block = nanode.ODEBlock(conv_field(), 2, gradient=nanode.Checkpointed(), compile=True)
    plain = nanode.ODEBlock(conv_field(), 2)
    with (
        torch._dynamo.config.patch(recompile_limit=2),
        warnings.catch_warnings(record=True) as said,
    ):
        warnings.simplefilter("always")
        for batch in range(2, 6):
            x = torch.randn(batch, 4, 5, 5, dtype=torch.float64)
            assert torch.allclose(block(x), plain(x), atol=1e-13)
    assert any("runs as it is" in str(warning.message) for warning in said)


@pytest.mark.parametrize(
    ("solver", "gradient"),
    [(nanode.Euler(), nanode.Checkpointed()), (nanode.Coupled(), nanode.Reversal())],
    ids=repr,
)
@pytest.mark.filterwarnings("ignore:compile=True")
def test_a_backward_pass_that_torch_compiles_no_more_for(solver, gradient):
    """Its evaluations are recorded, those of the forward pass are not: each counts."""
    fast = nanode.ODEBlock(conv_field(), 2, solver, gradient, compile=True)
    plain = nanode.ODEBlock(conv_field(), 2, solver, gradient)
    with torch._dynamo.config.patch(recompile_limit=1):
        for a, b in zip(passed(fast, X), passed(plain, X), strict=True):
            assert torch.allclose(a, b, rtol=1e-10, atol=1e-12)


class Counting(nn.Module):
    """Its output depends on a buffer that every call moves."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return x * self.calls


def test_trials_move_nothing():
    fast, plain = (nanode.ODEBlock(conv_field(Counting()), 2, compile=c) for c in (True, False))
    for _ in range(2):
        assert torch.allclose(fast(X), plain(X), atol=1e-13)
        assert fast.field.module[3].calls == plain.field.module[3].calls


def test_threads_that_call_a_block_for_the_first_time(monkeypatch):
    """While one compiles, torch says to all threads that they do."""
    eager = functools.partial(torch.compile, backend="aot_eager")
    monkeypatch.setattr(torch, "compile", eager)
    plain = nanode.ODEBlock(conv_field(), 4)
    with torch.no_grad():
        expected = plain.eval()(X)
    for _ in range(4):
        torch.compiler.reset()
        blocks = [nanode.ODEBlock(conv_field(), 4, compile=c).eval() for c in (True, False)]
        barrier = threading.Barrier(6)

        def work(block, barrier=barrier):
            barrier.wait(timeout=30)
            with torch.no_grad():
                return [block(X) for _ in range(4)]

        with ThreadPoolExecutor(6) as pool:
            futures = [pool.submit(work, block) for block in (*3 * blocks[:1], *3 * blocks[1:])]
            found = [y for future in futures for y in future.result()]
        assert all(torch.allclose(y, expected, atol=1e-13) for y in found)


@pytest.mark.parametrize("flag", ["_is_compiling_flag", "_is_exporting_flag"])
def test_compiling_elsewhere_is_not_being_compiled(flag, monkeypatch):
    monkeypatch.setattr(torch.compiler, flag, True)  # another thread's
    block = nanode.ODEBlock(conv_field(), 4)
    block(X)
    assert block.nfe.forward == 4
    with pytest.raises(ValueError, match="changed x in place"):
        nanode.ODEBlock(nanode.Autonomous(nn.ReLU(inplace=True)), 2)(X.clone())


def test_in_inference_mode():
    block = nanode.ODEBlock(conv_field(), 2, compile=True)
    expected = block(X)
    block.eval()
    with torch.inference_mode():
        assert block(X.clone()).shape == expected.shape


def test_hooks_of_a_field_that_was_compiled_without():
    """torch.compile takes no notice of them."""
    block = nanode.ODEBlock(conv_field(), 2, compile=True)
    before = block(X)
    handle = block.field.module[1].register_forward_hook(lambda module, given, out: 2 * out)
    hooked = nanode.ODEBlock(copy.deepcopy(block.field), 2)(X)
    assert not torch.allclose(hooked, before)
    assert torch.allclose(block(X), hooked, atol=1e-13)
    handle.remove()
    assert torch.allclose(block(X), before, atol=1e-13)


@pytest.mark.parametrize("replaced", [False, True], ids=["a new probability", "a new module"])
def test_dropout_of_a_field_that_was_compiled_without(replaced):
    """It must be drawn again for the backward pass, which compiled evaluations can't do."""
    field = conv_field(nn.Dropout(0.0))
    block = nanode.ODEBlock(field, 2, gradient=nanode.Checkpointed(), compile=True)
    block(X)
    if replaced:
        field.module[3] = nn.Dropout(0.5)
    else:
        field.module[3].p = 0.5
    found = []
    for one in (block, nanode.ODEBlock(field, 2, gradient=nanode.Backprop())):
        torch.manual_seed(3)
        found.append(torch.autograd.grad(one(X), list(field.parameters()), X))
    for a, b in zip(*found, strict=True):
        assert (a - b).norm() <= 1e-11 * b.norm()


def test_copies_and_pickles_start_anew():
    module = nn.Linear(4, 4).double()
    field = nanode.TimeVarying(module, nanode.Legendre(degree=1))
    block = nanode.ODEBlock(field, 2, compile=True)
    x = X[..., 0, 0]
    y = block(x)
    for twin in (copy.deepcopy(block), pickle.loads(pickle.dumps(block))):
        assert not twin.gradient._functions
        assert torch.allclose(twin(x), y, atol=1e-15)


def test_an_in_place_field_is_refused():
    module = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, 4))
    block = nanode.ODEBlock(nanode.TimeVarying(module, nanode.Constant()), 2, compile=True)
    with pytest.raises(ValueError, match="in place"):
        block(torch.randn(2, 4))


def test_what_the_method_refuses_stays_refused():
    field = nanode.TimeVarying(nn.Linear(4, 4), nanode.Constant())
    with pytest.raises(ValueError, match="invertible"):
        nanode.ODEBlock(field, 2, nanode.Euler(), nanode.Reversal(), compile=True)


def test_small_states_on_a_cpu_are_not_compiled(monkeypatch):
    monkeypatch.setattr(compiled, "WORTH_COMPILING", X.numel() + 1)
    block = nanode.ODEBlock(conv_field(), 3, compile=True)
    assert torch.equal(block(X), nanode.ODEBlock(conv_field(), 3)(X))
    assert not block.gradient._functions
    monkeypatch.setattr(compiled, "WORTH_COMPILING", X.numel())
    block(X)
    assert block.gradient._functions


def test_an_evaluation_is_compiled_once_for_all_stages():
    """Once in each direction, however many stages and passes there are."""
    for gradient, most in ((nanode.Backprop(), 1), (nanode.Checkpointed(), 2)):
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        block = nanode.ODEBlock(conv_field(), 6, gradient=gradient, compile=True)
        for _ in range(2):
            x = X.clone().requires_grad_()
            y = block(x)
            torch.autograd.grad(y, [x, *block.parameters()], torch.ones_like(y))
        assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == most


def test_a_compiler_that_has_compiled_enough_says_so():
    limit = torch._dynamo.exc.FailOnRecompileLimitHit("Hard failure due to fullgraph=True")
    assert "pass a tensor" in compiled._reason(limit)
    assert compiled._reason(RuntimeError("\nno\nmore")) == "no"


def test_a_time_is_no_number_of_an_evaluation():
    """Both are kept as tensors; here evaluation 1 is at the time 1."""
    fast, plain = (
        nanode.ODEBlock(lambda t, x: x * (t / 3), 2, interval=(0.0, 2.0), compile=compile)
        for compile in (True, False)
    )
    assert torch.allclose(fast(X), plain(X), rtol=1e-13, atol=0)


def test_statistics_of_another_grid_are_interpolated_as_without():
    field = conv_field()
    nanode.ODEBlock(field, 4)(X)
    field.eval()
    fast, plain = (nanode.ODEBlock(field, 6, compile=compile) for compile in (True, False))
    assert torch.allclose(fast(X), plain(X), rtol=1e-13, atol=0)


def test_copies_keep_their_settings():
    method = compiled.Compiled(nanode.Checkpointed(), capture=False, fused=True)
    for twin in (copy.deepcopy(method), pickle.loads(pickle.dumps(method))):
        assert (twin.method, twin.capture, twin.fused) == (nanode.Checkpointed(), False, True)
