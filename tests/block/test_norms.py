"""Norms inside a block's field."""

import copy
import warnings

import pytest
import torch
from torch import nn

import nanode
from tests.block.common import like, make
from tests.gradients.models import DOUBLE, distance, gradients, inputs


def normed(gradient, solver, steps=4, seed=0):
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(3, 6), nanode.BatchNorm(6), nn.Tanh(), nn.Linear(6, 3)).double()
    field = nanode.TimeVarying(net, nanode.Bucketed(2), start=nanode.Noisy(0.5))
    return nanode.ODEBlock(field, steps, solver, gradient)


def norm_of(block):
    return block.field.module[1]


NORMED = [
    (nanode.Backprop(), nanode.Coupled(nanode.Heun())),
    (nanode.Checkpointed(), nanode.Coupled(nanode.Heun())),
    (nanode.Checkpointed(segments=4, chunk=1), nanode.Coupled(nanode.Heun())),
    (nanode.Reversal(), nanode.Coupled(nanode.Heun())),
]


@pytest.mark.parametrize(("gradient", "solver"), NORMED, ids=repr)
class TestNorms:
    def test_statistics_are_updated_once_a_forward_pass(self, gradient, solver):
        block = normed(gradient, solver)
        x = torch.randn(32, 3, dtype=DOUBLE, requires_grad=True)
        activations = []
        handle = block.field.module[0].register_forward_hook(
            lambda module, given, out: activations.append(out.detach())
        )
        y = block(x)
        handle.remove()
        norm = norm_of(block)
        assert norm.running_mean.shape == (16, 6)  # 4 steps of 4 evaluations
        # One update each, from zeros and ones, with momentum 0.1.
        for k, h in enumerate(activations):
            assert (norm.running_mean[k] - 0.1 * h.mean(0)).abs().max() < 1e-14
            assert (norm.running_var[k] - 0.9 - 0.1 * h.var(0)).abs().max() < 1e-14
        before = norm.running_mean.clone(), norm.running_var.clone()
        y.sum().backward()
        assert torch.equal(norm.running_mean, before[0])
        assert torch.equal(norm.running_var, before[1])

    def test_statistics_and_gradients_are_backprops(self, gradient, solver):
        block, reference = normed(gradient, solver), normed(nanode.Backprop(), solver)
        for _ in range(3):
            x = torch.randn(32, 3, dtype=DOUBLE, requires_grad=True)
            _, expected = gradients(reference, x)
            _, got = gradients(block, x)
            # The bias before a norm has no effect: its gradient is rounding.
            for grads in (got, expected):
                del grads["field.trajectory.coefficients.0.bias"]
            assert distance(got, expected) < 1e-11  # norms amplify the rounding of reversal
        for name, buffer in block.named_buffers():
            assert torch.equal(buffer, dict(reference.named_buffers())[name])

    def test_eval_mode_uses_them(self, gradient, solver):
        block = normed(gradient, solver)
        x = torch.randn(256, 3, dtype=DOUBLE)
        with torch.no_grad():
            for _ in range(200):
                trained = block(x)
        block.eval()
        before = norm_of(block).running_mean.clone()
        few = x[:2].clone().requires_grad_()
        got = block(few)
        got.sum().backward()
        assert torch.equal(norm_of(block).running_mean, before)
        # 0.9^200 = 7e-10 of the start is left; variances differ by 256/255 in F.batch_norm.
        assert (got - trained[:2]).abs().max() < 1e-2
        # Row by row, which a norm of the batch's own statistics can't be.
        assert (block(few[:1]) - got[:1]).abs().max() < 1e-14
        # Each evaluation has its own.
        assert (before[0] - before[-1]).abs().max() > 1e-3

    def test_eval_gradients(self, gradient, solver):
        block, reference = normed(gradient, solver), normed(nanode.Backprop(), solver)
        x = torch.randn(8, 3, dtype=DOUBLE, requires_grad=True)
        for one in (block, reference):
            one(x)
            one.eval()
        _, expected = gradients(reference, x)
        _, got = gradients(block, x)
        assert distance(got, expected) < 1e-11

    def test_copies_and_state_dicts_carry_them(self, gradient, solver):
        block = normed(gradient, solver)
        block(torch.randn(8, 3, dtype=DOUBLE))
        other = normed(gradient, solver, seed=1)
        other.load_state_dict(block.state_dict())
        x = torch.randn(2, 3, dtype=DOUBLE)
        expected = block.eval()(x)
        assert torch.equal(other.eval()(x), expected)
        assert torch.equal(copy.deepcopy(block)(x), expected)


def test_group_and_layer_norms_work_as_they_are():
    net = nn.Sequential(nn.Linear(3, 4), nn.GroupNorm(2, 4), nn.LayerNorm(4), nn.Linear(4, 3))
    block = make(nanode.Reversal(), nanode.Leapfrog(), net=net)
    x = inputs()[0]
    _, expected = gradients(like(block, nanode.Backprop()), x)
    _, got = gradients(block, x)
    assert distance(got, expected) < 1e-11  # norms amplify the rounding of reversal


def test_plain_batch_norm_in_a_callable_module_is_refused():
    class Timed(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(3)

        def forward(self, t, x):
            return self.norm(x)

    with pytest.raises(ValueError, match="norm is a BatchNorm1d"):
        nanode.ODEBlock(Timed(), 4)


def test_regrid_interpolates_statistics():
    block = normed(nanode.Backprop(), nanode.Euler(), steps=4)
    norm = norm_of(block)
    with torch.no_grad():  # a line in t
        norm.running_mean.copy_(torch.arange(4.0)[:, None] / 4)
    block.regrid(8)
    assert norm.running_mean.shape == (8, 6)
    # Beyond the last evaluation, at 3/4, the last value holds.
    expected = (torch.arange(8.0) / 8).clamp(max=0.75).double()
    assert (norm.running_mean - expected[:, None]).abs().max() < 1e-15
    block(torch.randn(4, 3, dtype=DOUBLE))


def test_another_grid_on_the_same_field_leaves_statistics_in_order():
    block = normed(nanode.Backprop(), nanode.Euler(), steps=4)
    x = torch.randn(32, 3, dtype=DOUBLE)
    with torch.no_grad():
        for _ in range(20):
            block(x)
    expected = block.eval()(x)
    nanode.odeint(block.field, x, steps=20)
    # Every fifth time of the finer grid is one of the block's, so nothing is lost.
    assert (block(x) - expected).abs().max() < 1e-14


def test_two_blocks_on_one_field_are_warned_of():
    """Each pass would interpolate the other's statistics to its own grid and back."""
    module = nn.Sequential(nanode.BatchNorm(3), nn.Linear(3, 3))
    field = nanode.TimeVarying(module, nanode.Legendre(degree=1))
    one, other = nanode.ODEBlock(field, 8), nanode.ODEBlock(field, 2)
    x = torch.randn(4, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        one(x)
        one(x)
        one.eval()(x)
        for _ in range(2):
            other.eval()(x)  # interpolates, and leaves the statistics alone
        one.regrid(4)
        one.train()(x)
        # Times in single precision are the same times.
        nanode.odeint(field, x, at=torch.linspace(0, 1, 5))
        one(x)
    for block in (other, one):
        with pytest.warns(UserWarning, match=r"another grid.*a field of its own"):
            block.train()(x)


def test_statistics_in_a_state_dict_know_their_times():
    """Two steps of RK4 and eight of Euler evaluate as often, at other times."""
    trained = normed(nanode.Backprop(), nanode.RK4(), steps=2)
    x = torch.randn(32, 3, dtype=DOUBLE)
    for _ in range(10):
        trained(x)
    trained.eval()
    expected = nanode.ODEBlock(copy.deepcopy(trained.field), 8, nanode.Euler())(x)
    other = normed(nanode.Backprop(), nanode.Euler(), steps=8)
    other.load_state_dict(trained.state_dict())
    assert torch.equal(other.eval()(x), expected)
    # Without times they are taken for those of the grid at hand.
    old = {k: v for k, v in trained.state_dict().items() if "extra" not in k}
    other = normed(nanode.Backprop(), nanode.Euler(), steps=8)
    other.load_state_dict(old)
    assert not torch.allclose(other.eval()(x), expected)
