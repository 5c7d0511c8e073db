"""The compiled path gives the plain one's results, up to rounding.

Compiling takes seconds, so few combinations are compiled here; ``test_combinations.py`` traces them
all, and compiles them on a GPU.
"""

import copy
import gc
import pickle
import types
import warnings

import pytest
import torch
from torch import nn

import nanode
from nanode.gradients import capture, compiled, layout

X = torch.randn(3, 4, 5, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


@pytest.fixture(autouse=True)
def compile_all(monkeypatch):
    monkeypatch.setattr(compiled, "WORTH_COMPILING", 0)


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


def conv_field(*more):
    torch.manual_seed(0)
    module = nn.Sequential(nanode.BatchNorm(4), nn.Tanh(), nn.Conv2d(4, 4, 3, padding=1), *more)
    return nanode.TimeVarying(
        module.double(),
        nanode.Trigonometric(order=2),
        start=nanode.Noisy(0.3),
        overrides={"0": None},
    )


def passed(block):
    x = X.clone().requires_grad_()
    y = block(x)
    cotangent = torch.randn(y.shape, dtype=y.dtype, generator=torch.Generator().manual_seed(1))
    grads = torch.autograd.grad(y, [x, *block.parameters()], cotangent)
    statistics = [buffer.clone() for buffer in block.buffers()]
    with torch.no_grad():
        after = block.eval()(X)
    return [y, *grads, *statistics, after]


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
    plain = passed(nanode.ODEBlock(copy.deepcopy(field), 4, solver, gradient))
    fast = passed(nanode.ODEBlock(copy.deepcopy(field), 4, solver, gradient, compile=True))
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
        fast = passed(block)
    plain = passed(nanode.ODEBlock(copy.deepcopy(field), 3, gradient=nanode.Checkpointed()))
    for a, b in zip(fast, plain, strict=True):
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


def test_in_inference_mode():
    block = nanode.ODEBlock(conv_field(), 2, compile=True)
    expected = block(X)
    block.eval()
    with torch.inference_mode():
        assert block(X.clone()).shape == expected.shape


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
    "a norm's momentum": lambda block: setattr(block.field.module[0], "momentum", 0.5),
    "its mode": lambda block: block.eval(),
    "frozen weights": lambda block: next(block.parameters()).requires_grad_(False),
    "moved weights": lambda block: block.double().float(),
    "other frequencies": lambda block: block.load_state_dict(
        nanode.ODEBlock(random_field(seed=1), 3).state_dict()
    ),
}


def random_field(seed):
    module = nn.Sequential(nanode.BatchNorm(4), nn.Tanh(), nn.Conv2d(4, 4, 3, padding=1))
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


def would_capture(block, requires_grad=True):
    """Whether a solve on a GPU would be captured."""
    x = type("X", (), {"is_cuda": True, "requires_grad": requires_grad})()
    problem = types.SimpleNamespace(
        conditioning=types.SimpleNamespace(tensors=[]), plan=block._plan, interpolates=False
    )
    return block.gradient._captures(problem, (x,))


def test_a_frozen_block_is_not_captured():
    block = nanode.ODEBlock(conv_field(), 3, compile=True).requires_grad_(False)
    assert not would_capture(block, requires_grad=False)
    block.requires_grad_(True)
    assert would_capture(block, requires_grad=False)


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


@pytest.mark.parametrize("gradient", [nanode.Backprop(), nanode.Checkpointed()], ids=repr)
def test_tables_are_cast_and_laid_out_once(gradient, monkeypatch):
    """Under autocast every stage gets its row ready for use, and the numbers are the same."""
    seen = []
    call = compiled.Evaluator.__call__

    def watched(self, weights, *others):
        seen.append(weights)
        return call(self, weights, *others)

    monkeypatch.setattr(compiled.Evaluator, "__call__", watched)
    torch.manual_seed(0)
    module = nn.Sequential(nanode.BatchNorm(4), nn.Tanh(), nn.Conv2d(4, 4, 3, padding=1))
    field = nanode.TimeVarying(module, nanode.Trigonometric(order=2), start=nanode.Noisy(0.3))
    x = X.float().contiguous(memory_format=torch.channels_last)
    cotangent = torch.randn_like(x)
    found = []
    for compile in (False, True):
        block = nanode.ODEBlock(copy.deepcopy(field), 4, gradient=gradient, compile=compile)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = block(x)
        found.append([y, *torch.autograd.grad(y, list(block.parameters()), cotangent)])
    for plain, fast in zip(*found, strict=True):
        assert (plain - fast).norm() <= 2e-2 * plain.norm()  # bf16
    assert len(seen) >= 4
    for weights in seen:
        kernel = weights["2.weight"]
        assert kernel.dtype == torch.bfloat16
        assert kernel.is_contiguous(memory_format=torch.channels_last)
        assert weights["0.weight"].dtype == torch.float32  # norms keep theirs


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


class Skewed(nn.Module):
    """Reads the weight of a layer that it contains."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return x @ (self.layer.weight - self.layer.weight.mT)


def test_only_weights_that_one_layer_uses_once_are_cast():
    twice, tied = nn.Linear(4, 4), nn.Linear(4, 4)
    tied.weight = (shared := nn.Linear(4, 4)).weight
    normed = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))
    module = nn.Sequential(
        nn.Linear(4, 4),
        nn.Sequential(nn.Linear(4, 4)),
        Skewed(),
        twice,
        twice,
        shared,
        tied,
        normed,
    )
    field = nanode.TimeVarying(module, nanode.Trigonometric(order=1))
    x = (torch.randn(3, 4),)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert layout.preparation(field, x).names == {"0.weight", "1.0.weight"}
    assert layout.preparation(field, x) is layout.as_they_are


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
