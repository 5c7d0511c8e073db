"""Coefficients pruned by torch, whose masks are applied by a hook before a module is called."""

import warnings

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

import nanode

METHODS = [
    (nanode.Backprop(), nanode.Euler()),
    (nanode.Checkpointed(), nanode.Euler()),
    (nanode.Reversal(), nanode.Leapfrog()),
]


def pruned(seed=0):
    torch.manual_seed(seed)
    layer = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))
    field = nanode.TimeVarying(layer, nanode.Legendre(2), start=nanode.Independent())
    first = field.trajectory.coefficients.get_submodule("0")
    prune.l1_unstructured(first, "weight", 0.4)
    return field, first


@pytest.mark.parametrize(("gradient", "solver"), METHODS, ids=repr)
def test_training_goes_on_with_the_mask(gradient, solver):
    field, first = pruned()
    block = nanode.ODEBlock(field, 4, solver, gradient)
    optimizer = torch.optim.SGD(block.parameters(), 0.1)
    for _ in range(3):
        before = first.weight_orig.detach().clone()
        optimizer.zero_grad()
        block(torch.randn(5, 3)).square().mean().backward()
        optimizer.step()
        moved = first.weight_orig != before
        assert torch.equal(moved, first.weight_mask.bool())
    now = (first.weight_orig * first.weight_mask).detach()
    z = field.trajectory.basis(torch.tensor(0.3))
    expected = (z @ now).view(3, 3)
    torch.testing.assert_close(field.weights_at(0.3)["0.weight"].detach(), expected)


def test_a_checkpoint_of_pruned_coefficients():
    (field, first), (other, _) = pruned(0), pruned(1)
    other.load_state_dict(field.state_dict())
    x = torch.randn(2, 3)
    assert torch.equal(other(0.3, x), field(0.3, x))
    prune.remove(first, "weight")
    assert torch.equal(other(0.3, x), field(0.3, x))


def test_hooks_that_make_no_weight_wait_for_a_call():
    """As those that a profiler hangs on every module, which would find no input."""
    field, first = pruned()
    calls = []
    for module in field.modules():
        module.register_forward_pre_hook(lambda module, given: calls.append(given[0].shape))
    nanode.odeint(field, torch.randn(2, 3), steps=2)
    assert first not in calls


def test_a_norm_of_coefficients_is_taken_anew():
    field = nanode.TimeVarying(nn.Linear(3, 3), nanode.Legendre(2), start=nanode.Independent())
    coefficients = field.trajectory.coefficients
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch has a newer one
        nn.utils.weight_norm(coefficients, "weight")
    before = field.weights_at(0.3)["weight"].clone()
    with torch.no_grad():
        coefficients.weight_g.mul_(2.0)
    torch.testing.assert_close(field.weights_at(0.3)["weight"], 2 * before)
