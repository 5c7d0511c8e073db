"""Batch norm in a field: one set of statistics per evaluation.

Expected statistics are computed from the batches by their definition: momentum times the batch's
mean and unbiased variance, and the rest of what was there.
"""

import copy
import warnings
from fractions import Fraction
from functools import partial

import pytest
import torch
from torch import nn

import nanode
from nanode.fields import prepare_norms
from nanode.stages import Stage, Stages
from tests.fields.norm_samples import CLOSE, batch, evaluate, moments, prepared, times
from tests.trajectories.samples import step_stages, stirred


def normalised(x, mean, var, norm):
    view = (1, -1, *[1] * (x.ndim - 2))
    y = (x - mean.view(view)) / torch.sqrt(var.view(view) + norm.eps)
    return y * norm.weight.view(view) + norm.bias.view(view)


# ---- training


@pytest.mark.parametrize("shape", [(6, 2), (3, 2, 4), (3, 2, 4, 5), (2, 2, 3, 2, 2)], ids=str)
def test_training_normalises_by_the_batch(shape):
    field, norm, stages = prepared()
    stirred(field)
    x = batch(0, shape)
    mean, var = moments(x)
    expected = normalised(x, mean, var, norm)
    for stage in stages:
        torch.testing.assert_close(evaluate(field, stage, x), expected, **CLOSE)
    # A person's call and a repeated one have the same values.
    torch.testing.assert_close(field(0.3, x), expected, **CLOSE)
    torch.testing.assert_close(evaluate(field, stages.repeated[0], x), expected, **CLOSE)


@pytest.mark.parametrize("momentum", [0.1, 0.5])
def test_each_evaluation_keeps_its_own_statistics(momentum):
    field, norm, stages = prepared(momentum=momentum)
    assert torch.equal(norm.running_mean, torch.zeros(3, 2))
    assert torch.equal(norm.running_var, torch.ones(3, 2))
    means, variances = torch.zeros(3, 2), torch.ones(3, 2)
    for epoch in range(2):
        for k, stage in enumerate(stages):
            x = batch(10 * epoch + k)
            evaluate(field, stage, x)
            mean, var = moments(x)
            unbiased = var * len(x) / (len(x) - 1)
            means[k] = (1 - momentum) * means[k] + momentum * mean
            variances[k] = (1 - momentum) * variances[k] + momentum * unbiased
            torch.testing.assert_close(norm.running_mean, means, **CLOSE)
            torch.testing.assert_close(norm.running_var, variances, **CLOSE)


def test_statistics_can_be_reset():
    torch.manual_seed(0)
    block = nanode.ODEBlock(nanode.Autonomous(nn.Sequential(nanode.BatchNorm(3), nn.Tanh())), 2)
    norm = block.field.module[0]
    block(torch.randn(8, 3) + 1)
    assert (norm.running_mean != 0).all()
    norm.reset_running_stats()
    assert torch.equal(norm.running_mean, torch.zeros(2, 3))
    assert torch.equal(norm.running_var, torch.ones(2, 3))


def test_nothing_else_is_recorded():
    field, norm, stages = prepared()
    for k, stage in enumerate(stages):
        evaluate(field, stage, batch(k))
    mean, var = norm.running_mean.clone(), norm.running_var.clone()
    for k, stage in enumerate(stages.repeated):
        assert not stage.record
        evaluate(field, stage, batch(k + 50))  # the backward pass evaluates again
    field(0.5, batch(60))  # a person's call
    evaluate(field, Stage.alone(0.5), batch(61))
    field.eval()
    evaluate(field, stages[0], batch(62))
    assert torch.equal(norm.running_mean, mean)
    assert torch.equal(norm.running_var, var)


def test_one_evaluation_is_batch_norm():
    field, norm, stages = prepared(steps=1)
    reference = nn.BatchNorm1d(2)
    for seed in range(3):
        x = batch(seed)
        torch.testing.assert_close(evaluate(field, stages[0], x), reference(x), **CLOSE)
    torch.testing.assert_close(norm.running_mean[0], reference.running_mean, **CLOSE)
    torch.testing.assert_close(norm.running_var[0], reference.running_var, **CLOSE)
    field.eval()
    reference.eval()
    torch.testing.assert_close(evaluate(field, stages[0], x), reference(x), **CLOSE)


# ---- evaluation


def test_eval_uses_the_statistics_of_its_evaluation():
    field, norm, stages = prepared()
    stirred(field)
    norm.running_mean.copy_(torch.randn(3, 2))
    norm.running_var.copy_(torch.rand(3, 2) + 0.5)
    field.eval()
    x = batch(0)
    for k, stage in enumerate(stages):
        expected = normalised(x, norm.running_mean[k], norm.running_var[k], norm)
        torch.testing.assert_close(evaluate(field, stage, x), expected, **CLOSE)
        torch.testing.assert_close(evaluate(field, stages.repeated[k], x), expected, **CLOSE)


def test_eval_outside_a_solve_is_refused():
    field, _, _ = prepared()
    field.eval()
    for call in (lambda: field(0.5, batch(0)), lambda: field.module(batch(0))):
        with pytest.raises(ValueError, match=r"in eval mode.*nanode\.ODEBlock.*GroupNorm"):
            call()


def test_an_evaluation_without_room_is_refused():
    field, _, _ = prepared(steps=2)
    stage = Stage(2, 2, 0.9, Fraction(9, 10))
    with pytest.raises(ValueError, match=r"for 2 evaluations and was asked for number 2.*ODEBlock"):
        evaluate(field, stage, batch(0))


# ---- moving to another grid


def test_the_same_grid_changes_nothing():
    field, norm, stages = prepared()
    norm.running_mean.copy_(torch.randn(3, 2))
    before = norm.running_mean
    prepare_norms(field, times(stages))
    assert norm.running_mean is before


def test_another_grid_interpolates():
    _, norm, _ = prepared()
    norm.prepare([0.0, 0.5, 1.0])
    norm.running_mean.copy_(torch.tensor([[0.0, 1.0], [2.0, 3.0], [4.0, -1.0]]))
    norm.running_var.copy_(torch.tensor([[1.0, 1.0], [2.0, 2.0], [5.0, 4.0]]))
    norm.prepare([0.0, 0.25, 0.75, 1.0, 1.5])
    expected = torch.tensor([[0.0, 1.0], [1.0, 2.0], [3.0, 1.0], [4.0, -1.0], [4.0, -1.0]])
    torch.testing.assert_close(norm.running_mean, expected, **CLOSE)
    expected = torch.tensor([[1.0, 1.0], [1.5, 1.5], [3.5, 3.0], [5.0, 4.0], [5.0, 4.0]])
    torch.testing.assert_close(norm.running_var, expected, **CLOSE)


def test_a_grid_that_runs_backwards_interpolates():
    norm = nanode.BatchNorm(1)
    norm.prepare([1.0, 0.5, 0.0])
    norm.running_mean.copy_(torch.tensor([[4.0], [2.0], [1.0]]))
    norm.prepare([0.25, 0.75])
    torch.testing.assert_close(norm.running_mean, torch.tensor([[1.5], [3.0]]), **CLOSE)


def test_evaluations_at_one_time_are_averaged():
    norm = nanode.BatchNorm(1)
    norm.prepare([0.0, 0.5, 0.5, 1.0])  # as a second-order method on two steps
    norm.running_mean.copy_(torch.tensor([[0.0], [1.0], [3.0], [4.0]]))
    norm.prepare([0.5, 0.75])
    torch.testing.assert_close(norm.running_mean, torch.tensor([[2.0], [3.0]]), **CLOSE)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_another_grid_keeps_the_dtype(dtype):
    norm = nanode.BatchNorm(2).to(dtype)
    norm.prepare([0.0, 1.0])
    norm.prepare([0.0, 0.5, 1.0])
    assert norm.running_mean.dtype == norm.running_var.dtype == dtype
    assert norm.running_mean.shape == (3, 2)


def test_statistics_that_do_not_fit_leave_the_times_alone():
    (_, norm, stages), (_, other, _) = prepared(3), prepared(2)
    with pytest.raises(RuntimeError, match="size mismatch"):
        norm.load_state_dict(other.state_dict())
    assert norm.times == tuple(times(stages))


def test_statistics_travel_with_the_state():
    field, norm, stages = prepared()
    evaluate(field, stages[1], batch(0))
    other, fresh, _ = prepared()
    other.load_state_dict(field.state_dict())
    assert torch.equal(fresh.running_mean, norm.running_mean)
    assert list(field.state_dict()) == [
        "module.weight",
        "module.bias",
        "module.running_mean",
        "module.running_var",
        "module._extra_state",
    ]
    copied = copy.deepcopy(field)
    evaluate(copied, stages[1], batch(5))
    assert torch.equal(fresh.running_mean, norm.running_mean)
    assert not torch.equal(copied.module.running_mean, norm.running_mean)


# ---- inside fields


def test_in_a_time_varying_field():
    module = nn.Sequential(nanode.BatchNorm(2), nn.Linear(2, 2))
    field = stirred(nanode.TimeVarying(module, nanode.Legendre(2)))
    stages = step_stages(2)
    prepare_norms(field, times(stages))
    x = batch(0)
    weights = field.weights(stages)
    mean, var = moments(x)
    for k, stage in enumerate(stages):
        w = weights.at(k)
        y = (x - mean) / torch.sqrt(var + 1e-5) * w["0.weight"] + w["0.bias"]
        expected = y @ w["1.weight"].T + w["1.bias"]
        torch.testing.assert_close(field.evaluate(w, stage, x), expected, **CLOSE)
    torch.testing.assert_close(module[0].running_mean, 0.1 * mean.expand(2, 2), **CLOSE)
    assert module[0].stage is None  # between evaluations


def test_without_affine_weights():
    norm = nanode.BatchNorm(2, affine=False)
    assert list(norm.parameters()) == []
    module = nn.Sequential(norm, nn.Linear(2, 2))
    field = nanode.TimeVarying(module, nanode.Legendre(2))
    assert field(0.3, batch(0)).shape == (6, 2)


def test_untied_draws_of_a_norm_are_ones_and_zeros():
    module = nn.Sequential(nanode.BatchNorm(2), nn.Linear(2, 2))
    field = nanode.TimeVarying(module, nanode.Bucketed(3), start="untied")
    alpha = dict(field.trajectory.coefficients)
    assert torch.equal(alpha["0.weight"], torch.ones(3, 2))
    assert torch.equal(alpha["0.bias"], torch.zeros(3, 2))


def test_gradients():
    field, norm, stages = prepared()
    stirred(field)
    x = batch(0).requires_grad_()
    weight, bias = (p.detach().requires_grad_() for p in norm.parameters())

    def f(x, weight, bias):
        # Repeated, since finite differences must not update statistics.
        stage = stages.repeated[1]
        return field.evaluate({"weight": weight, "bias": bias}, stage, x)

    torch.autograd.gradcheck(f, (x, weight, bias))
    field.eval()
    torch.autograd.gradcheck(f, (x, weight, bias))


def test_prints_its_evaluations():
    _, norm, _ = prepared()
    assert repr(norm) == "BatchNorm(2, evaluations=3)"


def test_an_empty_solve():
    norm = nanode.BatchNorm(2)
    norm.prepare(times(Stages(())))
    assert norm.running_mean.shape == (0, 2)


def test_another_grid_in_eval_mode_interpolates_and_leaves_the_statistics_alone():
    torch.manual_seed(0)
    module = nn.Sequential(nanode.BatchNorm(3), nn.Linear(3, 3)).double()
    block = nanode.ODEBlock(nanode.TimeVarying(module, nanode.Legendre(degree=1)), 8)
    x = torch.randn(32, 3, dtype=torch.float64)
    for _ in range(5):
        block(x)
    block.eval()
    before = {name: buffer.clone() for name, buffer in block.named_buffers()}
    expected = block(x)
    coarse = nanode.odeint(block.field, x, steps=2)
    assert all(torch.equal(before[name], buffer) for name, buffer in block.named_buffers())
    assert torch.equal(block(x), expected)
    # Two steps at t = 0 and 1/2, which are evaluations 0 and 4 of the eight.
    state = x
    for i in (0, 4):
        mean, var = (
            before["field.module.0.running_mean"][i],
            before["field.module.0.running_var"][i],
        )
        w = block.field.trajectory(i / 8)
        h = (state - mean) * torch.rsqrt(var + 1e-5) * w["0.weight"] + w["0.bias"]
        state = state + (h @ w["1.weight"].T + w["1.bias"]) / 2
    assert torch.allclose(coarse, state, atol=1e-13)


def test_a_flow_with_batch_norm_inside_a_field_is_refused():
    inner = nanode.ODEBlock(nanode.Autonomous(nn.Sequential(nanode.BatchNorm(3))), 2)
    with pytest.raises(ValueError, match="field inside a field"):
        nanode.Autonomous(nn.Sequential(nn.Linear(3, 3), inner))


def test_a_module_gives_its_weights_to_one_field_only():
    shared = nn.Linear(3, 3)
    nanode.TimeVarying(shared, nanode.Constant())
    with pytest.raises(ValueError, match="another field already"):
        nanode.Autonomous(nn.Sequential(shared, nn.Tanh()))


def test_times_that_differ_by_rounding_have_the_same_statistics():
    """Heun evaluates twice at a time, each with statistics of its own: nothing is averaged."""
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(4, 16), nanode.BatchNorm(16), nn.Tanh(), nn.Linear(16, 4))
    field = nanode.TimeVarying(layers, nanode.Chebyshev(2), start=nanode.Noisy(0.5))
    block = nanode.ODEBlock(field, 3, nanode.Heun(), scale=3.0)
    x = torch.randn(64, 4)
    for _ in range(20):
        block(x)
    before = block.eval()(x)
    block.regrid(nanode.Given([0.0, 0.33333334, 0.6666667, 1.0]))
    assert layers[1].fits(block.plan().times)
    assert layers[1].times != block.plan().times
    torch.testing.assert_close(block(x), before, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("start", [0.0, 20_000.0, 1.7e9])
def test_near_times_are_told_apart_however_far_from_zero(start):
    """Eight steps where statistics are of four: every second evaluation lies between two."""
    length = 0.1 if start < 1e6 else 100.0
    norm = nanode.BatchNorm(1)
    field = nanode.TimeVarying(
        nn.Sequential(norm, nn.Linear(1, 1)),
        nanode.Legendre(2, interval=(start, start + length)),
    )
    nanode.ODEBlock(field, 4)
    norm.running_mean.copy_(torch.arange(4.0)[:, None])
    norm.eval()
    found = [float(norm.statistics(s)[0]) for s in nanode.ODEBlock(field, 8).plan().stages]
    assert found == pytest.approx([0, 0.5, 1, 1.5, 2, 2.5, 3, 3], abs=1e-3)


@pytest.mark.parametrize("start", [1e-3, 2020.0])
def test_single_precision_times_are_those_that_they_are_rounded_from(start):
    norm = nanode.BatchNorm(1)
    times = [start * (1 + k / 2000) for k in range(3)]
    norm.prepare(times)
    assert norm.fits(torch.tensor(times).tolist())
    assert not norm.fits([times[0], times[1] + start * 1e-5, times[2]])


def test_an_ensemble_by_vmap_keeps_statistics_as_its_models_do_alone():
    def model():
        net = nn.Sequential(nn.Linear(2, 2), nanode.BatchNorm(2))
        return nanode.ODEBlock(nanode.Autonomous(net), steps=3)

    torch.manual_seed(0)
    models = [model() for _ in range(2)]
    parameters, statistics = torch.func.stack_module_state([copy.deepcopy(m) for m in models])
    x = 3 + batch(1, (8, 2))

    def loss(parameters, statistics):
        return torch.func.functional_call(models[0], (parameters, statistics), (x,)).square().sum()

    torch.func.vmap(loss)(parameters, statistics)
    torch.func.vmap(torch.func.grad(loss))(parameters, statistics)
    for number, alone in enumerate(models):
        for _ in range(2):
            alone(x)
        for name, expected in alone.named_buffers():
            torch.testing.assert_close(statistics[name][number], expected, **CLOSE)


@pytest.mark.parametrize("grid", ["first", "another"])
def test_room_made_under_inference_mode_can_be_trained_in(grid):
    norm = nanode.BatchNorm(2)
    field = nanode.TimeVarying(nn.Sequential(nn.Linear(2, 2), norm), nanode.Legendre(degree=1))
    x = torch.randn(5, 2)
    if grid == "another":
        nanode.odeint(field, x, steps=2)
    with torch.inference_mode():
        nanode.odeint(field, x, steps=4)
    nanode.odeint(field, x, steps=4).sum().backward()
    field.eval()
    nanode.odeint(field, x, steps=4).sum().backward()
    assert len(norm.times) == 4


def test_statistics_are_interpolated_between_times_that_no_rounding_joins():
    norm = nanode.BatchNorm(1)
    norm.prepare([0.0, 0.25, 0.5, 0.75])
    norm.running_mean.copy_(torch.tensor([[0.0], [1.0], [5.0], [7.0]]))
    shifted = [0.0, 0.2501, 0.5, 0.75]
    assert norm.fits([0.0, 0.25, 0.5 + 6e-8, 0.75])
    assert not norm.fits(shifted)
    norm.prepare(shifted)
    expected = torch.tensor([0.0, 1 + 4 * 0.0001 / 0.25, 5.0, 7.0])
    torch.testing.assert_close(norm.running_mean[:, 0], expected)


@pytest.mark.parametrize("solver", [nanode.Euler(), nanode.RK4(), nanode.Leapfrog()], ids=repr)
@pytest.mark.parametrize("second", [(0.5, 1.0), (1.0, 0.5), (-0.5, 0.0)])
def test_training_over_one_interval_and_then_another_warns(solver, second):
    field = nanode.TimeVarying(
        nn.Sequential(nanode.BatchNorm(1), nn.Linear(1, 1)),
        nanode.Legendre(2, interval=(-1.0, 1.0)),
    )
    solve = partial(nanode.odeint, field, torch.randn(8, 1), solver=solver)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for steps, interval in ((3, (0, 0.5)), (6, (0, 0.5)), (4, (0.5, 0)), (4, (0.2, 1))):
            solve(steps=steps, interval=interval)
        solve(steps=3, interval=(0, 0.5))
        field.eval()
        solve(steps=3, interval=second)
        field.train()
        field.module[0].reset_running_stats()
        solve(steps=3, interval=(-1, -0.5))  # begun anew
        field.module[0].reset_running_stats()
    solve(steps=3, interval=(0, 0.5))
    with pytest.warns(UserWarning, match="trained over one interval is now trained over another"):
        solve(steps=3, interval=second)


def test_statistics_that_do_not_move_belong_to_no_interval():
    field = nanode.Autonomous(nanode.BatchNorm(1, momentum=0.0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for interval in ((0, 1), (1, 2)):
            nanode.odeint(field, torch.randn(8, 1), steps=2, interval=interval)


def test_a_single_step_forth_and_back_is_one_interval():
    field = nanode.TimeVarying(nanode.BatchNorm(1), nanode.Legendre(2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for interval in ((0, 1), (1, 0)):
            nanode.odeint(field, torch.randn(8, 1), steps=1, interval=interval)
