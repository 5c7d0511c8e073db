"""Ordinary batch norms made into norms with statistics for each evaluation."""

import copy

import pytest
import torch
from torch import nn

import nanode
from nanode.fields import prepare_norms
from tests.fields.norm_samples import CLOSE, batch, evaluate, times
from tests.trajectories.samples import step_stages, stirred


def test_conversion_keeps_all_settings():
    module = nn.ModuleDict(
        {
            "a": nn.Sequential(nn.BatchNorm2d(2, eps=1e-3, momentum=0.3), nn.ReLU()),
            "b": nn.BatchNorm1d(3, affine=False),
            "c": nn.BatchNorm3d(2).eval(),
            "d": nn.GroupNorm(1, 2),
        }
    )
    stirred(module)
    weight = module["a"][0].weight
    converted = nanode.convert_norms(module)
    assert converted is module
    a, b, c = module["a"][0], module["b"], module["c"]
    assert all(isinstance(norm, nanode.BatchNorm) for norm in (a, b, c))
    assert isinstance(module["d"], nn.GroupNorm)
    assert (a.features, a.eps, a.momentum, a.affine) == (2, 1e-3, 0.3, True)
    assert a.weight is weight
    assert b.weight is None
    assert a.training
    assert not c.training


def test_conversion_of_a_norm_alone():
    assert isinstance(nanode.convert_norms(nn.BatchNorm2d(2)), nanode.BatchNorm)


def test_a_norm_without_statistics_stays_as_it_is():
    norm = nn.BatchNorm1d(2, track_running_stats=False)
    assert nanode.convert_norms(norm) is norm


def test_a_norm_used_twice_stays_one_norm():
    norm = nn.BatchNorm1d(2)
    module = nanode.convert_norms(nn.Sequential(norm, nn.Sequential(norm), nn.ReLU(), norm))
    assert isinstance(module[0], nanode.BatchNorm)
    assert module[0] is module[3]
    assert module[0] is module[1][0]
    nanode.Autonomous(module)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_conversion_keeps_the_dtype(dtype):
    norm = nanode.convert_norms(nn.BatchNorm1d(2).to(dtype))
    assert norm.running_mean.dtype == norm.running_var.dtype == dtype
    field = nanode.Autonomous(norm)
    stages = step_stages(1)
    prepare_norms(field, times(stages))
    assert evaluate(field, stages[0], batch(0).to(dtype)).dtype == dtype


def test_conversion_makes_a_module_fit_for_a_field():
    module = nn.Sequential(nn.Conv2d(2, 2, 1), nn.BatchNorm2d(2))
    reference = copy.deepcopy(module)
    field = nanode.TimeVarying(nanode.convert_norms(module), nanode.Legendre(2))
    x = batch(0, (2, 2, 3, 3))
    torch.testing.assert_close(field(0.2, x), reference(x), **CLOSE)


def trained(**options):
    """A module with a norm that has seen some batches, in eval mode."""
    module = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2, **options), nn.Tanh())
    stirred(module)
    for seed in range(3):
        module(batch(seed))
    return module.eval()


@pytest.mark.parametrize("options", [{}, {"affine": False}], ids=str)
@pytest.mark.parametrize("solver", [nanode.Euler(), nanode.RK4()], ids=repr)
def test_a_trained_module_is_in_eval_mode_what_it_was(options, solver):
    module = trained(**options)
    reference = copy.deepcopy(module)
    field = nanode.TimeVarying(nanode.convert_norms(module), nanode.Legendre(2))
    block = nanode.ODEBlock(field, 3, solver)
    assert field.module[1].running_mean.shape == (3 * len(solver.fractions), 2)
    x = batch(9)
    expected = nanode.odeint(lambda t, x: reference(x), x, steps=3, solver=solver)
    torch.testing.assert_close(block(x), expected, **CLOSE)
    block.regrid(7)  # and on any other grid
    expected = nanode.odeint(lambda t, x: reference(x), x, steps=7, solver=solver)
    torch.testing.assert_close(block(x), expected, **CLOSE)


def test_converted_statistics_are_the_norms_own():
    norm = trained()[1]
    kept = norm.running_mean.clone()
    own = nanode.convert_norms(norm)
    own.train().prepare([0.0, 0.5])
    field = nanode.Autonomous(own)
    evaluate(field, step_stages(2)[0], batch(7))
    assert torch.equal(norm.running_mean, kept)  # ours are copies
    assert torch.equal(own.running_mean[1], kept)  # rows are apart
    assert not torch.equal(own.running_mean[0], kept)


def test_converted_statistics_follow_the_module():
    norm = nanode.convert_norms(trained()[1])
    twin = nanode.convert_norms(nn.BatchNorm1d(2))
    twin.load_state_dict(norm.state_dict())
    twin.float().prepare([0.0, 0.5, 1.0])
    assert torch.equal(twin.running_var, norm.running_var.float().expand(3, 2))


def test_an_untrained_conversion_starts_from_zeros_and_ones():
    norm = nanode.convert_norms(nn.BatchNorm1d(2))
    assert repr(norm) == "BatchNorm(2, evaluations=0)"
    with pytest.raises(ValueError, match="for 0 evaluations and was asked for number 0"):
        evaluate(nanode.Autonomous(norm), step_stages(1)[0], batch(0))
    norm.prepare([0.0, 0.5])
    fresh = nanode.BatchNorm(2)
    fresh.prepare([0.0, 0.5])
    found, expected = norm.state_dict(), fresh.state_dict()
    assert list(found) == list(expected)
    assert all(torch.equal(found[name], value) for name, value in expected.items())


def test_refuses_a_momentum_that_is_no_number():
    with pytest.raises(ValueError, match="needs a number as momentum, got None"):
        nanode.convert_norms(nn.Sequential(nn.BatchNorm1d(2, momentum=None)))


def test_a_module_whose_conversion_is_refused_stays_as_it_was():
    module = nn.Sequential(nn.BatchNorm1d(2), nn.Sequential(nn.BatchNorm1d(2, momentum=None)))
    before = list(module.modules())
    with pytest.raises(ValueError, match="momentum"):
        nanode.convert_norms(module)
    assert list(module.modules()) == before


def test_a_norm_that_does_more_is_refused():
    """As some libraries have them, with an activation inside."""

    class NormAndActivation(nn.BatchNorm2d):
        def forward(self, input):
            return super().forward(input).relu()

    class Unchecked(nn.BatchNorm2d):
        def _check_input_dim(self, input):
            pass

    with pytest.raises(ValueError, match="NormAndActivation does more than batch norm"):
        nanode.convert_norms(nn.Sequential(NormAndActivation(3)))
    (norm,) = nanode.convert_norms(nn.Sequential(Unchecked(3)))
    assert isinstance(norm, nanode.BatchNorm)
