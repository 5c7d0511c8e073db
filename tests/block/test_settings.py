"""What a block can be told."""

import copy
import warnings

import numpy as np
import pytest
import torch
from torch import nn

import nanode
from nanode.block import uncompiled
from tests.block.common import EXACT, ROUNDING, like, make
from tests.gradients.models import DOUBLE, Net, inputs, moving


def test_regrid():
    block = make(solver=nanode.RK4())
    x = inputs()[0]
    coarse = block(x)
    block.regrid(8)
    fine = block(x)
    assert block.steps == 8
    assert block.nfe.forward == 32
    assert torch.equal(fine, make(solver=nanode.RK4(), steps=8)(x))
    # Order 4: halving the step leaves a sixteenth.
    block.regrid(16)
    ratio = (coarse - fine).norm() / (fine - block(x)).norm()
    assert 10 < ratio < 24
    with pytest.raises(ValueError, match="steps must be a whole number of at least 1"):
        block.regrid(0)
    assert block.steps == 16


@pytest.mark.parametrize(("gradient", "solver"), EXACT, ids=repr)
def test_wanted_times(gradient, solver):
    block = make(gradient, solver, at=[0.0, 0.5, 1.0])
    x = inputs()[0]
    states = block(x)
    assert torch.equal(states[0], x)
    assert torch.equal(states[2], make(gradient, solver)(x))
    if isinstance(solver, nanode.Euler):
        half = nanode.ODEBlock(block.field, 2, solver, interval=(0.0, 0.5))
        assert (states[1] - half(x)).abs().max() < 1e-15


def test_without_steps_there_is_one_between_each_two_wanted_times():
    times = [0.0, 0.3, 0.5, 1.0]
    block = nanode.ODEBlock(moving(nanode.Legendre(2)), at=times)
    x = inputs()[0]
    assert torch.equal(block(x), nanode.odeint(block.field, x, at=times))
    assert block.nfe.forward == 3


def test_times_and_solver_may_change_where_no_steps_were_given():
    block = nanode.ODEBlock(moving(nanode.Legendre(2)), at=[0.0, 0.5, 1.0])
    x = inputs()[0]
    block.at = (0.0, 0.25, 1.0)
    assert torch.equal(block(x), nanode.odeint(block.field, x, at=[0.0, 0.25, 1.0]))
    block.solver = nanode.Adaptive()
    block.regrid(None)
    block.scale = 0.5
    assert block(x).shape == (3, *x.shape)


@pytest.mark.parametrize("at", [[0.5, 1.0], torch.tensor([0.0, 0.5]), (0.75, 0.25)], ids=str)
def test_times_set_later_are_taken_as_at_first(at):
    field, x = moving(nanode.Legendre(2)), inputs()[0]
    fresh = nanode.ODEBlock(field, nanode.Aligned(8), at=at)
    block = nanode.ODEBlock(field, nanode.Aligned(8), at=[0.0, 1.0])
    block.at = at
    assert block.interval == fresh.interval
    assert torch.equal(block(x), fresh(x))
    with pytest.raises(ValueError, match="says where the solve ends and not where it starts"):
        block.at = [0.5]
    # Where an interval was asked for, it stays.
    block = nanode.ODEBlock(field, nanode.Aligned(8), at=[0.5, 1.0], interval=(0.0, 1.0))
    block.at = [0.75]
    expected = nanode.odeint(field, x, steps=nanode.Aligned(8), interval=(0.0, 1.0), at=[0.75])
    assert torch.equal(block(x), expected)
    block = nanode.ODEBlock(field, nanode.Aligned(8), at=[0.0, 1.0])
    block.interval = (0.0, 0.5)
    block.at = [0.25]
    assert block.interval == (0.0, 0.5)


@pytest.mark.parametrize("put", ["setattr", "add_module", "register_module", "_modules"])
def test_another_field_is_noticed(put):
    block, other = make(), moving(nanode.Legendre(2), net=Net())
    x = inputs()[0]
    block(x)
    if put == "setattr":
        block.field = other
    elif put == "_modules":
        block._modules["field"] = other
    else:
        getattr(block, put)("field", other)
    assert torch.equal(block(x), nanode.ODEBlock(other, 4)(x))


def test_setting_what_is_set_plans_nothing_anew():
    """A captured solve belongs to its plan."""
    block = make()
    plan = block.plan()
    block.scale, block.solver, block.interval = block.scale, block.solver, (0.0, 1.0)
    assert block.plan() is plan
    block.scale = 2.0
    assert block.plan() is not plan


def test_a_block_made_in_inference_mode():
    x = torch.randn(2, 3)
    with torch.inference_mode():
        module = nn.Linear(3, 3)
        block = nanode.ODEBlock(nanode.TimeVarying(module, nanode.RandomFourier(3)), 4)
        assert block(x).shape == x.shape


def test_augment():
    net = Net(size=5)
    for axis, shape, padded in [(1, (2, 3), (2, 5)), (-1, (2, 4, 3), (2, 4, 5))]:
        block = make(net=copy.deepcopy(net), augment=2, augment_axis=axis)
        x = torch.randn(shape, dtype=DOUBLE, requires_grad=True)
        y = block(x)
        assert y.shape == padded
        full = torch.cat([x, torch.zeros(*shape[:-1], 2, dtype=DOUBLE)], dim=-1)
        assert torch.equal(y, like(block, nanode.Backprop())(full))
        y.sum().backward()
        assert x.grad.shape == shape
    rows = nanode.ODEBlock(lambda t, x: x, 1, augment=2, augment_axis=-2)
    assert rows(torch.ones(2, 3)).shape == (4, 3)
    images = nanode.ODEBlock(nanode.Autonomous(nn.Conv2d(5, 5, 1)), 2, augment=2)
    assert images(torch.randn(1, 3, 4, 4)).shape == (1, 5, 4, 4)


def test_refuses_augment():
    with pytest.raises(ValueError, match="augment must be a whole number of at least 0, got -1"):
        make(augment=-1)
    with pytest.raises(ValueError, match="augment= needs a tensor as state, got tuple"):
        make(augment=1)((torch.ones(1), torch.ones(1)))
    with pytest.raises(ValueError, match=r"augment_axis=2 is no axis of a state of shape \(4, 3\)"):
        make(augment=1, augment_axis=2)(torch.ones(4, 3))


def test_scale():
    block = make(scale=0.5)
    half = make(scale=1.0)
    half.field.module.register_forward_hook(lambda module, given, out: 0.5 * out)
    x = inputs()[0]
    assert (block(x) - half(x)).abs().max() < 1e-15


@pytest.mark.parametrize(("gradient", "solver"), EXACT, ids=repr)
def test_conditioning(gradient, solver):
    class Conditioned(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 3)

        def forward(self, x, shift, mode, mask):
            assert mode == "tanh"
            return torch.tanh(self.linear(x) + shift) * mask

    block = make(gradient, solver, net=Conditioned())
    x, shift = (torch.randn(2, 3, dtype=DOUBLE, requires_grad=True) for _ in range(2))
    mask = torch.tensor([1, 0, 1])  # an integer tensor has no gradient
    y = block(x, shift, "tanh", mask)
    assert torch.equal(y[:, 1], x[:, 1])
    found = torch.autograd.grad(y.sum(), [x, shift])
    reference = like(block, nanode.Backprop())(x, shift, "tanh", mask)
    expected = torch.autograd.grad(reference.sum(), [x, shift])
    for ours, theirs in zip(found, expected, strict=True):
        assert (ours - theirs).abs().max() < ROUNDING


def test_repr_shows_the_solve():
    text = repr(make(nanode.Checkpointed(segments=2), nanode.RK4(), scale=4.0))
    for part in ("steps=4", "RK4()", "segments=2", "scale=4.0", "interval=(0.0, 1.0)"):
        assert part in text


def test_check_finite():
    field = nanode.Autonomous(nn.Linear(1, 1, bias=False))
    with torch.no_grad():
        field.module.weight.fill_(1e30)
    block = nanode.ODEBlock(field, 4, check_finite=True)
    with pytest.raises(ValueError, match=r"not finite after step 1 of 4, from t = 0\.25 to"):
        block(torch.full((1, 1), 1.0))


def test_a_block_without_weights():
    block = nanode.ODEBlock(lambda t, x: -x, 4, gradient=nanode.Checkpointed())
    x = torch.ones(2, requires_grad=True)
    block(x).sum().backward()
    assert torch.allclose(x.grad, torch.full((2,), 0.75**4))


def test_the_callers_warnings():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        nanode.ODEBlock(moving(nanode.Bucketed(3)), 4, nanode.Heun())
    assert len(caught) == 1


CHANGED = {
    "scale": 3.0,
    "steps": 9,
    "solver": nanode.RK4(),
    "gradient": nanode.Checkpointed(),
    "interval": (0.0, 0.5),
    "check_finite": True,
}


@pytest.mark.parametrize("name", CHANGED)
def test_a_setting_changed_later_counts(name):
    field = nanode.TimeVarying(nn.Linear(3, 3).double(), nanode.Legendre(2), start=nanode.Noisy(1))
    x = torch.randn(4, 3, dtype=torch.float64)
    block = nanode.ODEBlock(field, 4)
    block(x)
    plan = block._plan
    block(x)
    assert block._plan is plan
    setattr(block, name, CHANGED[name])
    anew = block.plan()
    expected = nanode.ODEBlock(field, **{"steps": 4, name: CHANGED[name]})
    assert torch.equal(block(x), expected(x))
    assert block._plan is anew is not plan
    assert (block._plan.check_finite, block.nfe) == (expected.check_finite, expected.nfe)
    copied = copy.deepcopy(block)
    plan = copied._plan
    assert torch.equal(copied(x), expected(x))
    assert copied._plan is plan


def test_an_interval_may_be_set_to_an_array():
    block = nanode.ODEBlock(lambda t, x: torch.ones_like(x), 4)
    block.interval = np.array([0.0, 0.5])
    assert block(torch.zeros(1)) == 0.5


def test_blocks_are_compiled_again_after_an_error():
    block = nanode.ODEBlock(nanode.Autonomous(nn.Linear(2, 2)), 2, compile=True)
    gradient = block.gradient
    with pytest.raises(KeyError), uncompiled([block]):
        raise KeyError
    assert block.gradient is gradient


@pytest.mark.parametrize("solver", [nanode.Euler(), nanode.Adaptive()], ids=repr)
def test_an_interval_or_field_set_later_is_checked_as_at_first(solver):
    steps = 4 if isinstance(solver, nanode.Euler) else None

    def field(interval=(0.0, 1.0)):
        return nanode.TimeVarying(nn.Linear(3, 3), nanode.Chebyshev(2, interval=interval))

    block = nanode.ODEBlock(field(), steps, solver)
    block.interval = (0.0, 2.0)
    with pytest.raises(ValueError, match=r"runs from 0\.0 to 2\.0, outside the interval"):
        block(torch.ones(1, 3))
    block.interval = (0.0, 0.5)
    block(torch.ones(1, 3))
    block.field = field((2.0, 3.0))
    with pytest.raises(ValueError, match=r"outside the interval \(2\.0, 3\.0\)"):
        block(torch.ones(1, 3))
