"""The compiled path gives the plain one's results, up to rounding.

Compiling takes seconds, so few combinations are compiled here; a GPU runs them all
(``tests/test_gpu.py``).
"""

import copy
import pickle

import pytest
import torch
from torch import nn

import nanode
from nanode.gradients import compiled

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
