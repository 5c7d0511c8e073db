"""Every stepper converges at the order that it declares."""

import pytest

import nanode
from tests.solvers.problems import BUCKETS, START, Decay, Growth, fitted_order, flowed, jumping

RUNGE_KUTTA = [nanode.Euler, nanode.Midpoint, nanode.Heun, nanode.RK4, nanode.ThreeEighths]
COUPLED = [nanode.Coupled(method()) for method in RUNGE_KUTTA]
STEPPERS = [
    *(method() for method in RUNGE_KUTTA),
    nanode.Leapfrog(),
    nanode.ReversibleHeun(),
    *COUPLED,
]
# Leapfrog's velocity is off by the jump after it, but with a sign that alternates.
KEEP_ORDER = [*(method() for method in RUNGE_KUTTA), nanode.Leapfrog(), *COUPLED]


def grid_sizes(order):
    # Fine enough for the leading term, coarse enough to stay far above rounding.
    return [32, 64, 128, 256] if order < 4 else [16, 32, 64]


@pytest.mark.parametrize("interval", [(0.2, 1.7), (1.7, 0.2)], ids=["forward", "backward"])
@pytest.mark.parametrize("problem", [Growth(), Decay()], ids=["linear", "nonlinear"])
@pytest.mark.parametrize("stepper", STEPPERS, ids=repr)
def test_fitted_order(stepper, problem, interval):
    sizes = grid_sizes(stepper.order)
    exact = problem.exact(*interval)
    errors = []
    for steps in sizes:
        x = nanode.odeint(problem, problem.start, steps=steps, interval=interval, solver=stepper)
        errors.append(float((x - exact).norm()))
    assert abs(fitted_order(sizes, errors) - stepper.order) < 0.2, errors


def jump_errors(stepper, sizes, interval):
    field, errors = jumping(), []
    exact = flowed(START, (interval[1] - interval[0]) * sum(BUCKETS) / 4)
    for steps in sizes:
        got = nanode.odeint(field, START, steps=steps, interval=interval, solver=stepper)
        errors.append(float((got - exact).detach().norm()))
    return errors


@pytest.mark.parametrize("interval", [(0.0, 1.0), (1.0, 0.0)], ids=["forward", "backward"])
@pytest.mark.parametrize("stepper", KEEP_ORDER, ids=repr)
def test_order_survives_jumps_on_the_grid(stepper, interval):
    # One stage on the wrong side of one of the three jumps would leave an error of order h.
    sizes = [4 * (n + 1) for n in (8, 16, 32, 64)] if stepper.order < 4 else [16, 32, 64]
    errors = jump_errors(stepper, sizes, interval)
    assert abs(fitted_order(sizes, errors) - stepper.order) < 0.2, errors


def test_reversible_heuns_slope_is_one_jump_late():
    # A step starts with the slope that the last one ended with, on the other side: order 1.
    sizes = [32, 64, 128, 256]
    errors = jump_errors(nanode.ReversibleHeun(), sizes, (0.0, 1.0))
    assert abs(fitted_order(sizes, errors) - 1) < 0.2, errors
