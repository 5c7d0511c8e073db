"""Blocks are looked at in eval mode, and stay as they are."""

import copy

import pytest
import torch
from torch import nn

import nanode
from nanode.analysis import (
    Equation,
    Steps,
    analyse,
    gradient_norms,
    growth_rates,
    jacobian_spectrum,
    sensitivity,
    sensitivity_values,
    state_transition,
    transition_values,
)
from nanode.analysis.linearised import marks
from tests.analysis.systems import jacobian_in_x, largest, sample


def trained(solver, steps=3):
    """A block with batch norm and dropout after a few batches, in training mode."""
    torch.manual_seed(0)
    module = nn.Sequential(
        nanode.BatchNorm(3), nn.Linear(3, 5), nn.Tanh(), nn.Dropout(0.5), nn.Linear(5, 3)
    ).double()
    field = nanode.TimeVarying(module, nanode.Legendre(degree=1), start=nanode.Noisy(0.5))
    block = nanode.ODEBlock(field, steps, solver)
    for n in range(4):
        block(3 * sample(16, 3, seed=n) + 1)
    assert block.training
    return block


@pytest.mark.parametrize(
    "look",
    [
        lambda block, x: state_transition(block, x, of=Steps()),
        lambda block, x: state_transition(block, x, of=Equation(steps=3)),
        lambda block, x: transition_values(block, x, count=2, of=Steps()),
        lambda block, x: sensitivity(block, x, of=Equation(steps=3)),
        lambda block, x: jacobian_spectrum(block, x, of=Steps()),
        lambda block, x: gradient_norms(block, x),
        lambda block, x: growth_rates(block, x, of=Steps()),
        lambda block, x: analyse(block, x),
    ],
)
def test_the_block_and_the_random_state_are_left_alone(look):
    block, x = trained(nanode.Heun()), sample(1, 3).requires_grad_()
    block.field.trajectory.coefficients.get_submodule("1").bias.grad = torch.ones(2, 5).double()
    before, modes = copy.deepcopy(block.state_dict()), [part.training for part in block.modules()]
    random, kinds = torch.get_rng_state(), [type(part) for part in block.modules()]
    look(block, x)
    assert [part.training for part in block.modules()] == modes
    assert [type(part) for part in block.modules()] == kinds
    assert all(torch.equal(before[name], value) for name, value in block.state_dict().items())
    assert torch.equal(random, torch.get_rng_state())
    assert x.grad is None
    assert all(p.requires_grad for p in block.parameters())
    assert sum(p.grad is not None for p in block.parameters()) == 1


def test_stored_statistics_are_used_so_samples_do_not_depend_on_each_other():
    block, x = trained(nanode.Euler()), sample(2, 3)
    both = state_transition(block, x, of=Steps()).matrices[-1]
    assert largest(both[:3, 3:]) == 0
    assert largest(both[:3, :3] - state_transition(block, x[:1], of=Steps()).matrices[-1]) < 1e-14
    assert largest(both - jacobian_in_x(copy.deepcopy(block).eval(), x)) < 1e-13
    # In training mode, with the batch's own statistics, they would.
    without_dropout = copy.deepcopy(block)
    next(p for p in without_dropout.modules() if isinstance(p, nn.Dropout)).eval()
    assert largest(jacobian_in_x(without_dropout, x)[:3, 3:]) > 1e-3


@pytest.mark.parametrize("solver", [nanode.Euler(), nanode.Heun(), nanode.Leapfrog()])
def test_statistics_between_evaluations_are_interpolated_as_the_norm_does(solver):
    """On a finer grid, where function transforms can't go through the norm's own interpolation."""
    block, x = trained(solver), sample(1, 3)
    found = state_transition(block, x, of=Equation(steps=12)).matrices[-1]
    fine = nanode.ODEBlock(copy.deepcopy(block).eval().field, 12, nanode.RK4()).eval()
    assert largest(found - jacobian_in_x(fine, x)) < 1e-13


def test_recurrent_and_attentive_fields():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True).double()
    block = nanode.ODEBlock(nanode.TimeVarying(layer, nanode.Constant()), steps=2)
    x = sample(1, 2, 4)
    found = state_transition(block, x, of=Steps()).matrices[-1]
    assert largest(found - jacobian_in_x(copy.deepcopy(block).eval(), x)) < 1e-12
    assert gradient_norms(block, x).growth > 0


def test_single_precision_and_random_fields():
    block = nanode.ODEBlock(nanode.TimeVarying(nn.Linear(3, 3), nanode.Legendre(degree=1)), 4)
    x = torch.randn(3)
    found = state_transition(block, x)
    assert found.matrices.dtype == torch.float32
    exact = state_transition(copy.deepcopy(block).double(), x.double())
    assert largest(found.matrices - exact.matrices) < 1e-5
    noisy = nanode.ODEBlock(lambda t, x: x * torch.rand(3), 2)
    with pytest.raises(RuntimeError, match="random"):
        state_transition(noisy, x, of=Steps())


@pytest.mark.parametrize(
    ("name", "value"),
    [("scale", 3.0), ("solver", nanode.RK4()), ("steps", 9), ("interval", (0.0, 0.5))],
)
def test_settings_that_were_changed_count(name, value):
    """As they do in the block's next call."""
    block = trained(nanode.Euler()).eval()
    setattr(block, name, value)
    x = sample(1, 3)
    found = state_transition(block, x, of=Steps())
    assert found.times[-1] == block.interval[1]
    assert largest(found.matrices[-1] - jacobian_in_x(block, x)) < 1e-10


def test_plans_follow_settings_that_were_changed():
    block = nanode.ODEBlock(lambda t, x: -x, 2)
    block.steps = 4
    assert marks(block) == (0.0, 0.25, 0.5, 0.75, 1.0)
    block.steps = 5
    assert Steps().plan(block).grid.steps == 5


def test_the_state_is_augmented_along_the_axis_of_the_block():
    block = nanode.ODEBlock(lambda t, x: -x, 2, augment=1, augment_axis=0)
    found = nanode.analysis.state_transition(block, torch.ones(2, 3), of=nanode.analysis.Steps())
    assert found.matrices.shape == (3, 9, 9)


def test_inference_mode_is_refused():
    """Nothing would be differentiated, and zeros would come back."""
    block, x = trained(nanode.Euler()), sample(1, 3)
    for look in (sensitivity, gradient_norms, jacobian_spectrum, analyse):
        with torch.inference_mode(), pytest.raises(ValueError, match=r"use torch\.no_grad"):
            look(block, x)


def test_half_precision_is_refused():
    block = nanode.ODEBlock(lambda t, x: -x, 2)
    with pytest.raises(ValueError, match=r"single or double precision, got torch.bfloat16"):
        state_transition(block, torch.ones(2, dtype=torch.bfloat16))


@pytest.mark.parametrize("look", [state_transition, transition_values, sensitivity_values])
def test_what_is_no_block(look):
    with pytest.raises(ValueError, match="expected an ODEBlock, got Linear"):
        look(nn.Linear(2, 2), torch.ones(2))
