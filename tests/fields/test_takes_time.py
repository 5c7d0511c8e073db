"""Modules that are called with the time, and fields inside functions of the user's own."""

import functools
import math
import warnings

import pytest
import torch
from torch import nn

import nanode

DOUBLE = torch.float64
JUMPS = nanode.Bucketed(4)


class Driven(nn.Module):
    """A layer, and a force that is a function of time."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2).double()

    def forward(self, t, x, force=1.0):
        return self.layer(x).tanh() + force * torch.cos(2 * t)


class Nested(nn.Module):
    """The same with a field inside."""

    def __init__(self, basis):
        super().__init__()
        self.inner = nanode.TimeVarying(nn.Linear(2, 2).double(), basis, start=nanode.Noisy(0.5))

    def forward(self, t, x):
        return self.inner(t, x).tanh()


def driven(basis=JUMPS):
    return nanode.TimeVarying(Driven(), basis, start=nanode.Noisy(0.5), takes_time=True)


def test_the_time_reaches_the_module_beside_moving_weights():
    field, x, t = driven(nanode.Legendre(2)), torch.randn(3, 2, dtype=DOUBLE), 0.3
    weights = field.weights_at(t)
    by_hand = torch.tanh(x @ weights["layer.weight"].T + weights["layer.bias"])
    assert torch.allclose(field(t, x, 2.0), by_hand + 2 * math.cos(2 * t))


@pytest.mark.parametrize("gradient", [nanode.Checkpointed(), nanode.Backsolve()], ids=repr)
def test_gradients(gradient):
    found = []
    for method in (gradient, nanode.Backprop()):
        torch.manual_seed(0)
        field, x = driven(), torch.ones(1, 2, dtype=DOUBLE)
        end = nanode.odeint(field, x, steps=400, solver=nanode.RK4(), gradient=method)
        found.append(torch.autograd.grad(end.sum(), list(field.parameters())))
    for got, expected in zip(*found, strict=True):
        assert torch.allclose(got, expected, rtol=1e-6, atol=1e-9)


@torch.no_grad()
def test_the_order_survives_jumps():
    torch.manual_seed(0)
    field, x = driven(), torch.ones(1, 2, dtype=DOUBLE)
    fine = nanode.odeint(field, x, steps=1024, solver=nanode.RK4())
    coarse, half = (nanode.odeint(field, x, steps=k, solver=nanode.RK4()) for k in (8, 16))
    assert 3.5 < math.log2(float((coarse - fine).norm() / (half - fine).norm())) < 4.5


def test_written_out():
    block = nanode.ODEBlock(driven(), steps=4, solver=nanode.Heun())
    x = torch.randn(3, 2, dtype=DOUBLE)
    assert torch.equal(nanode.materialise(block)(x), block(x))


def test_a_module_of_x_alone_is_refused():
    with pytest.raises(ValueError, match=r"called as m\(t, x\), and Linear takes x alone"):
        nanode.TimeVarying(nn.Linear(2, 2), JUMPS, takes_time=True)


@pytest.mark.parametrize("kind", ["module", "function", "method", "partial", "other function"])
def test_jumps_inside_a_function_of_ones_own_warn(kind):
    nested, x = Nested(JUMPS), torch.ones(1, 2, dtype=DOUBLE)

    def inner(t, x):
        return nested.inner(t, x).tanh()

    f = {
        "module": nested,
        "function": inner,
        "method": nested.forward,
        "partial": functools.partial(inner),
        "other function": lambda t, x: inner(t, x),
    }[kind]
    with pytest.warns(UserWarning, match=r"jump at t = 0\.25.*takes_time=True"):
        nanode.odeint(f, x, steps=4, solver=nanode.Heun())


def test_no_warning_where_there_are_no_jumps_or_a_block_knows_them():
    class Around(nn.Module):
        def __init__(self, field):
            super().__init__()
            self.block = nanode.ODEBlock(field, 4)

        def forward(self, t, x):
            return self.block(x)

        def still(self, t, x):
            return -x

    x = torch.ones(1, 2, dtype=DOUBLE)
    moving = nanode.TimeVarying(nn.Linear(2, 2).double(), JUMPS)
    heun = {"steps": 2, "solver": nanode.Heun()}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        nanode.odeint(Nested(nanode.Legendre(2)), x, **heun)
        for field in (moving, nanode.Gated([moving, nn.Linear(2, 2).double()])):
            around = Around(field)
            nanode.odeint(around, x, **heun)
            nanode.odeint(lambda t, x, around=around: around.block(x), x, **heun)
            nanode.odeint(around.still, x, **heun)
        # Nothing is lost by Euler's method, nor where no jump lies between the ends.
        nanode.odeint(Nested(JUMPS), x, steps=4)
        nanode.odeint(Nested(JUMPS), x, interval=(0.0, 0.2), **heun)


def state_first(x, t):
    return -x * t


class StateFirst(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, z, time):
        return -z * self.weight * time


@pytest.mark.parametrize(
    "make",
    [
        lambda: nanode.odeint(state_first, torch.ones(2), steps=2),
        lambda: nanode.ODEBlock(StateFirst(), 2),
        lambda: nanode.TimeVarying(StateFirst(), nanode.Legendre(2), takes_time=True),
    ],
)
def test_parameters_named_in_the_other_order(make):
    with pytest.warns(UserWarning, match=r"is called as f\(t, x\): the time comes first") as found:
        make()
    assert found[0].filename == __file__


def test_what_a_function_wraps_may_have_another_order():
    @functools.wraps(state_first)
    def ours(t, x):
        return state_first(x, t)

    class Odd:
        @property
        def __signature__(self):
            raise RuntimeError("none")

        def __call__(self, t, x):
            return -x

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for field in (ours, Odd()):
            nanode.odeint(field, torch.ones(2), steps=2)


@pytest.mark.parametrize(
    "names", ["t, x", "s, t", "tau, time", "time, t", "x, y", "a, *rest", "*all"]
)
def test_other_names_say_nothing(names):
    field = eval(f"lambda {names}: torch.zeros(2)")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        nanode.odeint(field, torch.ones(2), steps=2)
