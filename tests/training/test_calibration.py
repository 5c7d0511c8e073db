"""Norm statistics found anew are plain means of the batches' own."""

import pytest
import torch
from torch import nn

import nanode
from nanode.training.calibration import calibrate, kept_statistics


def batches(n=5):
    generator = torch.Generator().manual_seed(0)
    return [2 + 3 * torch.randn(16, 4, generator=generator) for _ in range(n)]


# Statistics pass through a float32 buffer, scaled by the momentum.
CLOSE = {"rtol": 1e-5, "atol": 1e-5}


@pytest.mark.parametrize("momentum", [0.1, 0.5, None])
def test_means_over_batches(momentum):
    model = nn.BatchNorm1d(4, momentum=momentum).eval()
    model(batches()[0])
    calibrate(model, model, batches())
    mean = torch.stack([x.mean(0) for x in batches()]).mean(0)
    var = torch.stack([x.var(0) for x in batches()]).mean(0)
    torch.testing.assert_close(model.running_mean, mean, **CLOSE)
    torch.testing.assert_close(model.running_var, var, **CLOSE)
    assert model.momentum == momentum
    assert not model.training


def test_every_evaluation_of_a_flow():
    module = nn.Sequential(nanode.BatchNorm(4), nn.Linear(4, 4))
    field = nanode.TimeVarying(module, nanode.Legendre(degree=2))
    block = nanode.ODEBlock(field, steps=4)
    shown = nanode.ODEBlock(field, steps=4, at=[0.0, 0.25, 0.5, 0.75, 1.0])
    with torch.no_grad():
        # The first norm sees the state at the start of each step.
        seen = torch.stack([shown(x)[:4].mean(1) for x in batches()])
    calibrate(block, block, batches())
    torch.testing.assert_close(module[0].running_mean, seen.mean(0), **CLOSE)


def test_random_layers_are_off():
    model = nn.Sequential(nn.Dropout(0.9), nn.BatchNorm1d(4)).train()
    calibrate(model, model, batches())
    mean = torch.stack([x.mean(0) for x in batches()]).mean(0)
    torch.testing.assert_close(model[1].running_mean, mean, **CLOSE)
    assert model.training
    assert model[0].training


def test_nothing_to_do():
    def unread():
        raise AssertionError("no norm, no batch")
        yield

    calibrate(nn.Linear(4, 4), nn.Linear(4, 4), unread())


def test_refuses_what_it_can_not_do():
    model = nn.BatchNorm1d(4)
    with pytest.raises(ValueError, match="at least one batch"):
        calibrate(model, model, [])
    model = nn.BatchNorm1d(4, momentum=0.0)
    with pytest.raises(ValueError, match="momentum 0"):
        calibrate(model, model, batches())


def test_modes_are_left_as_they_were():
    """A norm that is frozen in eval mode among others that train, say."""
    model = nn.Sequential(nn.BatchNorm1d(4).eval(), nn.Linear(4, 4), nn.BatchNorm1d(4))
    calibrate(model, model, batches())
    assert [part.training for part in model] == [False, True, True]


@pytest.mark.parametrize("fails", [True, False], ids=["broken", "empty"])
def test_after_an_error_nothing_has_changed(fails):
    model = nn.Sequential(nn.BatchNorm1d(4), nn.Dropout(0.5))
    model(torch.randn(8, 4))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    before.pop("0.num_batches_tracked")

    def broken(images):
        model(images)
        raise RuntimeError("mine")

    with pytest.raises((RuntimeError, ValueError), match=r"mine|at least one batch"):
        calibrate(model, broken, batches() if fails else [])
    after = model.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())
    assert all(part.training for part in model)


def test_a_basis_keeps_one_table_however_often_statistics_are_put_back():
    field = nanode.TimeVarying(nn.Linear(4, 4), nanode.RandomFourier(3))
    block = nanode.ODEBlock(field, 2)
    kept = len(block.plan().stages.memo)
    for _ in range(3):
        with kept_statistics(block), torch.no_grad():
            block(torch.randn(2, 4))
    assert len(block.plan().stages.memo) <= kept + 1  # that a solve was made


@pytest.mark.parametrize("momentum", [0.1, 0.7, None])
def test_a_norm_that_is_called_several_times(momentum):
    """As of a model that takes the frames of a clip one by one."""
    norm = nn.BatchNorm1d(4, momentum=momentum)

    def frames(images):
        for part in images.split(4):
            norm(part)

    calibrate(norm, frames, batches(40))
    everything = torch.cat(batches(40))
    assert (norm.running_mean - everything.mean(0)).abs().max() < 0.4
    assert (norm.running_var / everything.var(0) - 1).abs().max() < 0.2


def test_a_block_that_is_called_several_times():
    field = nanode.Autonomous(nn.Sequential(nanode.BatchNorm(4), nn.Tanh()))
    block = nanode.ODEBlock(field, 1)
    calibrate(block, lambda images: [block(part) for part in images.split(4)], batches(40))
    mean = torch.cat(batches(40)).mean(0)
    assert (block.field.module[0].running_mean - mean).abs().max() < 0.4


def test_a_norm_that_is_never_called_keeps_its_statistics():
    ours = nanode.BatchNorm(4)
    ours.prepare((0.0,))
    for other in (nn.BatchNorm1d(4), ours):
        model = nn.ModuleList([nn.BatchNorm1d(4), other])
        other.running_mean.fill_(7)
        calibrate(model, model[0], batches())
        assert torch.equal(other.running_mean.flatten(), torch.full((4,), 7.0))
        assert torch.equal(other.running_var.flatten(), torch.ones(4))


def test_on_another_grid_in_eval_mode():
    """Norms in eval mode keep the statistics of the grid that they were trained on."""
    blocks = []
    for eval_first in (True, False):
        torch.manual_seed(0)
        network = nn.Sequential(nanode.BatchNorm(4), nn.Linear(4, 4))
        block = nanode.ODEBlock(nanode.TimeVarying(network, nanode.Legendre(1)), 4)
        block(batches()[0])
        if eval_first:
            block.eval()
        block.regrid(8)
        calibrate(block, block, batches())
        blocks.append(block)
    norms = [block.field.module[0] for block in blocks]
    assert norms[0].running_mean.shape == (8, 4)
    assert torch.equal(norms[0].running_mean, norms[1].running_mean)
    assert torch.equal(norms[0].running_var, norms[1].running_var)


def test_kept_statistics_survive_another_grid():
    field = nanode.Autonomous(nn.Sequential(nanode.BatchNorm(4), nn.Tanh()))
    block = nanode.ODEBlock(field, 4)
    block(batches()[0])
    before = block.field.module[0].running_mean.clone()
    with kept_statistics(block):
        block.regrid(8)
        block(batches()[1])
    assert torch.equal(block.field.module[0].running_mean, before)
    assert len(block.field.module[0].times) == 4


class WithoutBlock(nn.Module):
    """A field that is solved by a function: its norm is called at every evaluation."""

    def __init__(self):
        super().__init__()
        self.field = nanode.Autonomous(nn.Sequential(nanode.BatchNorm(4), nn.Tanh()))

    def forward(self, x):
        return nanode.odeint(self.field, x, steps=3)


def test_a_field_that_is_solved_without_a_block():
    model, block = WithoutBlock(), nanode.ODEBlock(WithoutBlock().field, 3)
    model(batches()[0])
    for found in (model, block):
        calibrate(found, found, batches())
    ours, expected = model.field.module[0], block.field.module[0]
    torch.testing.assert_close(ours.running_mean, expected.running_mean, **CLOSE)
    torch.testing.assert_close(ours.running_var, expected.running_var, **CLOSE)


def test_code_that_calls_no_hooks_is_calibrated_too():
    """As compiled code doesn't."""
    found = []
    for hooked in (True, False):
        torch.manual_seed(0)
        network = nn.Sequential(nanode.BatchNorm(4), nn.ReLU(), nn.Linear(4, 4))
        block = nanode.ODEBlock(nanode.Autonomous(network), 2)
        calibrate(block, block if hooked else block.forward, batches())
        found.append([network[0].running_mean, network[0].running_var])
    for ours, expected in zip(*found, strict=True):
        assert expected.std() > 0
        torch.testing.assert_close(ours, expected, **CLOSE)


def test_compiled_code_is_calibrated_too():
    torch._dynamo.reset()
    found = []
    for compiled in (True, False):
        torch.manual_seed(0)
        network = nn.Sequential(nanode.BatchNorm(4), nn.Linear(4, 4))
        block = nanode.ODEBlock(nanode.TimeVarying(network, nanode.Legendre(1)), 3)
        model = nn.Sequential(nn.BatchNorm1d(4), block)
        forward = torch.compile(model, backend="eager") if compiled else model
        if compiled:
            forward(batches()[0])  # traced before there are any hooks
        calibrate(model, forward, batches())
        found.append([model[0].running_var, network[0].running_mean, network[0].running_var])
    for ours, expected in zip(*found, strict=True):
        torch.testing.assert_close(ours, expected, **CLOSE)
