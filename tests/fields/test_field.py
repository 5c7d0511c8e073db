"""Fields whose weights do not move, and the table of weights of a solve."""

import copy

import pytest
import torch
from torch import nn

import nanode
from nanode.fields import Callback, Weights, as_field
from nanode.stages import Stage
from tests.fields.modules import MODULES, sample
from tests.trajectories.samples import step_stages


@pytest.mark.parametrize("kind", MODULES)
def test_autonomous_is_the_module(kind):
    module, x = sample(kind)
    alone = copy.deepcopy(module)
    field = nanode.Autonomous(module)
    assert torch.equal(field(0.2, x), alone(x))
    assert torch.equal(field(torch.tensor(0.9), x), alone(x))
    assert [name for name, _ in field.module.named_parameters()] == [
        name for name, _ in alone.named_parameters()
    ]


@pytest.mark.parametrize("kind", MODULES)
def test_autonomous_can_be_lent_other_weights(kind):
    module, x = sample(kind)
    other = copy.deepcopy(module)
    for p in other.parameters():
        p.data.mul_(1.5)
    field = nanode.Autonomous(module)
    own, before = dict(module.named_parameters()), module(x)
    weights = {name: p.detach().requires_grad_() for name, p in other.named_parameters()}
    got = field.evaluate(weights, Stage.alone(0.0), x)
    assert torch.equal(got, other(x))
    grads = torch.autograd.grad(got.abs().sum(), [*weights.values()])
    assert all(g.isfinite().all() for g in grads)
    assert all(p is own[name] for name, p in module.named_parameters())
    assert torch.equal(module(x), before)


def test_autonomous_weights_are_the_parameters():
    field = nanode.Autonomous(nn.Linear(2, 2))
    weights = field.weights(step_stages(3))
    assert weights.moving == {}
    assert weights.rows(2) == [weights.constant] * 2
    assert weights.at(2)["weight"] is field.module.weight
    assert field.weights_at(0.3)["bias"] is field.module.bias
    assert (field.interval, field.breakpoints, field.jumps) == (None, (), ())


def test_autonomous_needs_no_parameters():
    assert torch.equal(nanode.Autonomous(nn.Tanh())(0.1, torch.ones(2)), torch.ones(2).tanh())


@pytest.mark.parametrize("t", [float("nan"), float("inf")])
def test_refuses_a_time_that_is_no_number(t):
    for field in (nanode.Autonomous(nn.Linear(2, 2)), Callback(lambda t, x: t * x)):
        with pytest.raises(ValueError, match="t must be a finite number"):
            field(t, torch.ones(2))


def test_rows_are_views_whose_gradient_is_the_table():
    table = torch.randn(3, 2, 2, requires_grad=True)
    bias = torch.randn(2)
    weights = Weights({"weight": table}, {"bias": bias})
    rows = weights.rows(3)
    assert len(rows) == 3
    for k, row in enumerate(rows):
        assert torch.equal(row["weight"], table[k])
        assert torch.equal(weights.at(k)["weight"], table[k])
        assert row["weight"].data_ptr() == table[k].data_ptr()
        assert row["bias"] is bias
    sum((k + 1) * row["weight"].sum() for k, row in enumerate(rows)).backward()
    expected = torch.tensor([1.0, 2.0, 3.0]).view(3, 1, 1).expand(3, 2, 2)
    assert torch.equal(table.grad, expected)


# ---- callables


def test_a_function_becomes_a_field():
    field = as_field(lambda t, x, c: t * x + c)
    assert isinstance(field, Callback)
    assert torch.equal(field(0.5, torch.ones(2), torch.ones(2)), torch.full((2,), 1.5))
    assert list(field.parameters()) == []


def test_a_module_of_time_and_state_becomes_a_field():
    class Moving(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.tensor(3.0))

        def forward(self, t, x):
            return self.scale * t * x

    module = Moving()
    field = as_field(module)
    assert torch.equal(field(0.5, torch.ones(2)), torch.full((2,), 1.5))
    assert field.weights_at(0.0)["scale"] is module.scale
    lent = field.evaluate({"scale": torch.tensor(8.0)}, Stage.alone(0.5), torch.ones(2))
    assert torch.equal(lent, torch.full((2,), 4.0))


def test_a_field_stays_itself():
    field = nanode.Autonomous(nn.Linear(2, 2))
    assert as_field(field) is field


@pytest.mark.parametrize("thing", [3, None, "field"])
def test_refuses_what_can_not_be_called(thing):
    with pytest.raises(ValueError, match=rf"a Field or a callable.*got {type(thing).__name__}"):
        as_field(thing)


def test_refuses_a_module_without_a_place_for_t():
    with pytest.raises(ValueError, match=r"Sequential takes x alone; use nanode\.Autonomous"):
        nanode.ODEBlock(nn.Sequential(nn.Linear(2, 2)), 4)

    class WithConditioning(nn.Module):
        def forward(self, t, x, c):
            return t * x + c

    class Anything(nn.Module):
        def forward(self, *args):
            return args[1]

    for module in (WithConditioning(), Anything()):
        assert isinstance(as_field(module), Callback)


def test_a_callable_gets_time_as_a_tensor():
    """As torchdiffeq calls it: t without axes, in the state's dtype, also on a fixed grid."""
    seen = []

    def f(t, x):
        seen.append(t)
        return torch.sin(t) * x

    x = torch.ones(2, dtype=torch.float64)
    found = nanode.odeint(f, x, steps=200, solver=nanode.RK4())
    assert all(t.shape == () and t.dtype == torch.float64 for t in seen)
    # dx/dt = sin(t) x has x(1) = exp(1 − cos 1); RK4 with h = 1/200 is far below 1e-9.
    assert torch.allclose(found, torch.exp(1 - torch.cos(torch.ones_like(x))), atol=1e-9)


def test_the_time_beside_a_complex_state_is_real():
    seen = []
    f = as_field(lambda t, x: seen.append(t.dtype) or x)
    f(0.5, torch.ones(2, dtype=torch.complex64))
    assert seen == [torch.float32]
