"""The continuous adjoint: the gradient of the continuous problem, at the order of the stepper."""

import warnings

import pytest
import torch
import torchdiffeq
from torch import nn

import nanode
from tests.gradients.models import (
    BASES,
    DOUBLE,
    RUNGE_KUTTA,
    gradients,
    inputs,
    moving,
    total_distance,
)
from tests.solvers.problems import fitted_order


def quiet(*args, **settings):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return nanode.ODEBlock(*args, **settings)


def apart(field, solver, steps, **settings):
    """The relative distance of Backsolve from Backprop, and both sets of gradients."""
    values = inputs()
    y, exact = gradients(quiet(field, steps, solver, nanode.Backprop(), **settings), *values)
    z, got = gradients(quiet(field, steps, solver, nanode.Backsolve(), **settings), *values)
    assert torch.equal(y, z)
    return total_distance(got, exact), got, exact


@pytest.mark.parametrize("method", RUNGE_KUTTA)
@pytest.mark.parametrize("interval", [(0.0, 1.0), (1.0, 0.0)], ids=["forward", "backward"])
@pytest.mark.parametrize("basis", ["trigonometric", "aligned buckets"])
def test_distance_from_backprop_shrinks_at_the_order(method, interval, basis):
    # Both are approximations of the same gradient, each off by h^order. Every step stays inside
    # one bucket in both directions, so that jumps on the grid don't spoil it. Heun's are off by the
    # same leading term, the trapezoidal rule's, which is the same from either end.
    field, solver = moving(BASES[basis]()), method()
    sizes = [8, 16, 32]
    errors = [apart(field, solver, steps, interval=interval)[0] for steps in sizes]
    order = solver.order + (method is nanode.Heun)
    assert abs(fitted_order(sizes, errors) - order) < 0.3, errors


def test_steps_of_several_widths():
    times = [(k / 20) ** 2 for k in range(21)]
    field = moving(nanode.Trigonometric(1))
    error, _, _ = apart(field, nanode.RK4(), nanode.Given(times), interval=(0.0, 1.0))
    assert error < 1e-4  # h⁴ = 9e-5 at the widest


def test_several_times_and_conditioning():
    field, solver = moving(nanode.Trigonometric(1)), nanode.RK4()
    error, got, exact = apart(field, solver, 20, at=(0.0, 0.4, 1.0))
    # h⁴ = 6e-6 times constants of size one.
    assert error < 1e-5
    for name in ("x", "conditioning 0"):
        assert (got[name] - exact[name]).norm() < 1e-5 * exact[name].norm()


@pytest.mark.parametrize("chunk", [1, 3])
def test_chunks_change_nothing(chunk):
    field = moving(nanode.Bucketed(4))
    values = inputs()
    _, whole = gradients(quiet(field, 8, nanode.Heun(), nanode.Backsolve()), *values)
    _, parts = gradients(quiet(field, 8, nanode.Heun(), nanode.Backsolve(chunk=chunk)), *values)
    assert total_distance(parts, whole) < 1e-14


def test_ten_euler_steps_are_off_by_per_cents():
    """The lower bound that the warning is about: the paper's recipe, without rounding error."""
    field = moving(nanode.Bucketed(10), seed=3)
    assert apart(field, nanode.Euler(), 10, scale=2.0)[0] > 0.02
    assert apart(field, nanode.Euler(), 10, scale=2.0)[0] < 0.5
    exact = nanode.Checkpointed()
    values = inputs()
    _, expected = gradients(quiet(field, 10, gradient=nanode.Backprop(), scale=2.0), *values)
    _, got = gradients(quiet(field, 10, gradient=exact, scale=2.0), *values)
    assert total_distance(got, expected) < 1e-12


def test_an_adjoint_that_looks_buckets_up_by_time_loses_the_first():
    """What torchdiffeq's adjoint gives for ten aligned buckets, and why grids make stages here.

    Going back, Euler evaluates a step at its upper end, whose bucket is the next one: every bucket
    gets the gradient of the step before it, the first nothing, the last one twice.
    """
    field = moving(nanode.Bucketed(10), net=nn.Linear(3, 3), seed=3)
    x = inputs()[0]
    t = torch.linspace(0, 1, 11, dtype=DOUBLE)
    parameters = list(field.parameters())
    end = torchdiffeq.odeint_adjoint(
        lambda t, x: field(t, x), x, t, method="euler", adjoint_params=parameters
    )[-1]
    weight = torch.linspace(-1, 1, end.numel(), dtype=DOUBLE).view_as(end)
    theirs = torch.autograd.grad((end * weight).sum(), parameters)
    _, exact = gradients(quiet(field, 10, gradient=nanode.Backprop()), x)
    _, ours = gradients(quiet(field, 10, gradient=nanode.Backsolve()), x)

    reference = {n: g for n, g in exact.items() if n != "x"}
    by_time = dict(zip(reference, theirs, strict=True))
    assert total_distance(by_time, reference) > 0.4
    for name, grad in by_time.items():
        assert grad[0].abs().max() == 0
        assert 1.5 < grad[-1].norm() / reference[name][-1].norm() < 2.5
        assert 0.5 < ours[name][0].norm() / reference[name][0].norm() < 2
    assert total_distance({n: ours[n] for n in reference}, reference) < 0.2


# ---- warnings and refusals


def test_warns_where_weights_jump():
    with pytest.warns(UserWarning, match="Backsolve with weights that jump"):
        nanode.ODEBlock(moving(nanode.Bucketed(2)), 100, nanode.RK4(), nanode.Backsolve())


def test_warns_of_coarse_euler():
    with pytest.warns(UserWarning, match="Backsolve with 10 Euler steps"):
        nanode.ODEBlock(moving(nanode.Constant()), 10, nanode.Euler(), nanode.Backsolve())


@pytest.mark.parametrize(("solver", "steps"), [(nanode.Euler(), 100), (nanode.Midpoint(), 4)])
def test_no_warning_where_none_is_due(solver, steps):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        nanode.ODEBlock(moving(nanode.Trigonometric(2)), steps, solver, nanode.Backsolve())


@pytest.mark.parametrize(
    "solver", [nanode.Leapfrog(), nanode.ReversibleHeun(), nanode.Coupled(nanode.Euler())], ids=repr
)
def test_refuses_invertible_steppers(solver):
    with pytest.raises(ValueError, match=r"explicit Runge–Kutta method.*nanode\.Reversal\(\)"):
        nanode.ODEBlock(moving(nanode.Constant()), 4, solver, nanode.Backsolve())


def test_refuses_statistics_per_evaluation():
    field = nanode.Autonomous(nn.Sequential(nanode.BatchNorm(3), nn.Linear(3, 3)))
    with pytest.raises(ValueError, match="statistics per evaluation have no meaning there"):
        nanode.ODEBlock(field, 4, nanode.RK4(), nanode.Backsolve())


def test_refuses_random_fields():
    field = nanode.Autonomous(nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5)))
    block = nanode.ODEBlock(field, 4, nanode.RK4(), nanode.Backsolve())
    with pytest.raises(ValueError, match="can't repeat the random numbers"):
        block(torch.randn(2, 3))
    block.eval()(torch.randn(2, 3))


def test_a_second_pass_evaluates_no_basis(monkeypatch):
    """Values on the reversed grid are kept too: a GPU would have to wait for them."""
    made, on = [], nanode.Trigonometric.on

    def counted(self, stages):
        made.append(len(stages))
        return on(self, stages)

    monkeypatch.setattr(nanode.Trigonometric, "on", counted)
    block = quiet(moving(nanode.Trigonometric(1)), 4, nanode.RK4(), nanode.Backsolve())
    gradients(block, *inputs())
    first = list(made)
    gradients(block, *inputs())
    assert first
    assert made == first
