import math

import pytest
import torch
from torch import nn

import nanode
from nanode.analysis import Equation, ImplicitMidpoint, Steps, state_transition, transition_values
from tests.analysis.systems import (
    gaussian,
    jacobian_in_x,
    largest,
    moving,
    network,
    sample,
    torch64,
)

ADAPTIVE = nanode.Adaptive("dopri8", rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize(
    "of", [Equation(), Equation(solver=ADAPTIVE), Equation(20, ImplicitMidpoint())]
)
def test_skew_weights_keep_it_orthogonal(of):
    field = moving(6, nanode.Trigonometric(order=2), skew=True)
    found = state_transition(nanode.ODEBlock(field, steps=5), sample(6), of=of)
    eye = torch.eye(6, **torch64)
    assert len(found.matrices) == 6
    # RK4 on 100 steps: h⁴ = 1e-8, times ‖A‖⁵/120 of its error constant.
    assert largest(found.matrices.mT @ found.matrices - eye) < 1e-8
    assert largest(found.singular_values.values - 1) < 1e-8
    # It moved all the same.
    assert largest(found.matrices[-1] - eye) > 0.3


def test_random_weights_do_not():
    field = moving(6, nanode.Trigonometric(order=2))
    found = state_transition(nanode.ODEBlock(field, steps=5), sample(6))
    assert float(found.singular_values.values[-1, 0]) > 1.5


def test_commuting_matrices_give_the_exponential_of_the_integral():
    """A(t) = B + 2t B²: all A(t) commute, and ∫A from τ to t is (t − τ)B + (t² − τ²)B²."""
    b = sample(4, 4) / 2

    def f(t, x):
        return x @ (b + 2 * t * b @ b).T

    block = nanode.ODEBlock(f, steps=4)
    of = Equation(solver=ADAPTIVE)
    found = state_transition(block, sample(4), tau=0.25, at=[0.5, 0.8, 1.0], of=of)
    for t, matrix in zip(found.times.tolist(), found.matrices, strict=True):
        integral = (t - 0.25) * b + (t**2 - 0.25**2) * b @ b
        assert largest(matrix - torch.linalg.matrix_exp(integral)) < 1e-9


def test_matrices_that_do_not_commute_do_not():
    """The same with A(t) = B + 2t C: the exponential of the integral is then wrong."""
    b, c = sample(4, 4) / 2, sample(4, 4, seed=3) / 2
    block = nanode.ODEBlock(lambda t, x: x @ (b + 2 * t * c).T, steps=4)
    found = state_transition(block, sample(4)).matrices[-1]
    assert largest(found - torch.linalg.matrix_exp(b + c)) > 0.01


@pytest.mark.parametrize(
    "solver",
    [nanode.Euler(), nanode.RK4(), nanode.Leapfrog(), nanode.ReversibleHeun(), nanode.Coupled()],
)
def test_of_the_steps_it_is_the_jacobian_of_the_block(solver):
    block = nanode.ODEBlock(network(), steps=6, solver=solver, scale=1.5)
    x = sample(1, 4)
    found = state_transition(block, x, of=Steps())
    assert largest(found.matrices[-1] - jacobian_in_x(block, x)) < 1e-13


@pytest.mark.parametrize("solver", [nanode.Euler(), nanode.Heun(), nanode.RK4()])
def test_a_runge_kutta_method_solves_the_equation_by_the_derivative_of_its_steps(solver):
    """Two ways to one thing: Φ' = JΦ written out and solved along with x, and steps differentiated.

    It is why ``Equation`` differentiates the steps of a fine solve.
    """
    field = network()

    def both(t, state):
        x, phi = state
        return field(t, x), torch.func.jacrev(lambda x: field(t, x))(x) @ phi

    start = (sample(4), torch.eye(4, **torch64))
    _, expected = nanode.odeint(both, start, steps=6, solver=solver)
    block = nanode.ODEBlock(field, steps=6, solver=solver)
    for of in (Steps(), Equation(steps=6, solver=solver)):
        assert largest(state_transition(block, sample(4), of=of).matrices[-1] - expected) < 1e-13


def test_steps_approach_the_equation_at_their_order():
    exact = state_transition(
        nanode.ODEBlock(network(), steps=4), sample(4), at=[1.0], of=Equation(solver=ADAPTIVE)
    ).matrices[-1]
    errors = []
    for count in (16, 32):
        block = nanode.ODEBlock(network(), steps=count, solver=nanode.Heun())
        found = state_transition(block, sample(4), of=Steps()).matrices[-1]
        errors.append(largest(found - exact))
    assert abs(math.log2(errors[0] / errors[1]) - 2) < 0.3


def test_transitions_follow_each_other():
    block = nanode.ODEBlock(network(), steps=4, solver=nanode.Heun())
    for of in (Steps(), Equation(steps=8)):
        whole = state_transition(block, sample(4), of=of)
        late = state_transition(block, sample(4), tau=0.5, of=of)
        assert late.times.tolist() == [0.5, 0.75, 1.0]
        early = whole.matrices[whole.times.tolist().index(0.5)]
        assert largest(late.matrices[-1] @ early - whole.matrices[-1]) < 1e-13


def test_from_inside_the_interval_it_starts_at_the_state_that_is_there():
    block, x = nanode.ODEBlock(network(), steps=4, scale=3.0), 2 * sample(4)
    by_steps, adaptively = (
        state_transition(block, x, tau=0.5, at=[1.0], of=of).matrices[-1]
        for of in (Equation(steps=50), Equation(solver=nanode.Adaptive("dopri8", rtol=1e-6)))
    )
    # RK4 at scale · step = 0.06, whose fourth power is 1e-5, over 120.
    assert largest(adaptively - by_steps) < 1e-6
    assert largest(adaptively - torch.eye(4)) > 0.1


def test_times_that_differ_by_rounding_are_one():
    """0.7 · 3/10 lies below the end of the third step, and is meant to be it."""
    block = nanode.ODEBlock(lambda t, x: -x, steps=10, interval=(0.0, 0.7))
    found = state_transition(block, sample(1), tau=0.7 * 3 / 10, of=Steps())
    assert 0.7 * 3 / 10 < 0.21
    assert found.times.tolist() == pytest.approx([0.07 * k for k in range(3, 11)])
    assert found.matrices.flatten().tolist() == pytest.approx([0.93**k for k in range(8)])

    third = state_transition(block, sample(1), at=[0.7 * 3 / 10]).matrices[1]
    assert third.item() == pytest.approx(math.exp(-0.21))


def test_a_short_interval_has_as_many_times_as_any():
    block = nanode.ODEBlock(lambda t, x: -x, steps=4, interval=(0.0, 1e-10))
    assert len(state_transition(block, sample(1)).times) == 5


def test_the_equation_is_solved_four_times_as_finely_as_the_block():
    block = nanode.ODEBlock(lambda t, x: -x, steps=40)
    assert Equation().plan(block).grid.steps == 160


def test_jumping_weights_backwards_in_time_and_augmented_states():
    field = network(basis=nanode.Bucketed(3))
    block = nanode.ODEBlock(field, steps=3, solver=nanode.RK4(), interval=(1.0, 0.0))
    x, fine = sample(4), Equation(steps=30)
    there = state_transition(block, x, at=[0.0], of=fine).matrices[-1]
    end = nanode.odeint(field, x, steps=30, solver=nanode.RK4(), interval=(1.0, 0.0))
    back = nanode.ODEBlock(field, steps=3, solver=nanode.RK4())
    again = state_transition(back, end, at=[1.0], of=fine).matrices[-1]
    # Each way is off by h⁴ = 1e-6 times an error constant of about 1/100.
    assert largest(again @ there - torch.eye(4)) < 1e-7
    wide = nanode.ODEBlock(network(6), steps=2, augment=2)
    assert state_transition(wide, sample(1, 4), of=Steps()).matrices.shape == (3, 6, 6)


def test_states_in_parts_and_conditioning():
    """dx/dt = c·v, dv/dt = −c·x: a turn by the angle c."""

    def f(t, state, c):
        return {"x": c * state["v"], "v": -c * state["x"]}

    state = {"x": sample(1), "v": sample(1, seed=2)}
    c = torch.tensor(0.7, **torch64)
    for of, tau in ((Equation(), 0.0), (Equation(solver=ADAPTIVE), 0.5)):
        block = nanode.ODEBlock(f, steps=2)
        found = state_transition(block, state, c, tau=tau, of=of).matrices[-1]
        cos, sin = math.cos(0.7 * (1 - tau)), math.sin(0.7 * (1 - tau))
        assert largest(found - torch.tensor([[cos, sin], [-sin, cos]], **torch64)) < 1e-9


@pytest.mark.parametrize("of", [Steps(), Equation(steps=2)])
@pytest.mark.parametrize("count", [1, 3, 6])
def test_estimates_are_within_two_per_cent_of_exact_values(of, count):
    """By the settings that a user gets, on the hardest case: 18 to 63 columns of 500."""
    block = gaussian(500)
    exact = state_transition(block, sample(500), at=[1.0], of=of).singular_values.values[-1]
    found = transition_values(block, sample(500), count=count, of=of).values[-1]
    relative = found / exact[:count] - 1
    assert largest(relative) < 0.02
    assert float(relative.max()) < 1e-12  # never too large
    coarse = transition_values(block, sample(500), count=count, of=of, depth=3).values[-1]
    assert largest(coarse / exact[:count] - 1) > 0.02  # it takes what it takes


def test_estimates_of_a_network():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(300, 300), nn.Tanh(), nn.Linear(300, 300)).double()
    field = nanode.TimeVarying(module, nanode.Legendre(degree=1), start=nanode.Noisy(1.0))
    block = nanode.ODEBlock(field, steps=5, scale=8.0)
    exact = state_transition(block, sample(300), at=[1.0], of=Steps()).singular_values.values[-1]
    found = transition_values(block, sample(300), of=Steps()).values[-1]
    assert float(exact[0] / exact[5]) > 1.2  # gaps, so that far less than 2 % is left
    assert largest(found / exact[:6] - 1) < 1e-4


def test_estimates_from_inside_the_interval_and_of_steppers_with_memory():
    block = nanode.ODEBlock(network(), steps=4, solver=nanode.Heun())
    for of in (Steps(), Equation(steps=8)):
        exact = state_transition(block, sample(4), tau=0.5, of=of).singular_values.values[-2:]
        found = transition_values(block, sample(4), count=4, tau=0.5, at=[0.75, 1.0], of=of)
        assert largest(found.values - exact) < 1e-12
    leapfrog = nanode.ODEBlock(network(), steps=4, solver=nanode.Leapfrog())
    found = transition_values(leapfrog, sample(4), count=4, of=Steps()).values[-1]
    assert largest(found - torch.linalg.svdvals(jacobian_in_x(leapfrog, sample(4)))) < 1e-12


def test_what_it_cannot_do_is_refused():
    block = nanode.ODEBlock(network(), steps=4, solver=nanode.Leapfrog())
    with pytest.raises(ValueError, match=r"Leapfrog\(\) carries more than x.*Equation"):
        state_transition(block, sample(4), tau=0.5, of=Steps())
    with pytest.raises(ValueError, match=r"not at the end of a step \(nearest: 0.25\)"):
        state_transition(block, sample(4), at=[0.3], of=Steps())
    with pytest.raises(ValueError, match=r"follow tau .*, got tau=0\.5, at=\[0\.25\]$"):
        state_transition(block, sample(4), tau=0.5, at=[0.25])
    with pytest.raises(ValueError, match="inside"):
        state_transition(block, sample(4), at=[2.0])
    with pytest.raises(ValueError, match=r"inside \(0\.0, 1\.0\), got tau=2\.0$"):
        state_transition(block, sample(4), tau=2.0)
    adaptive = nanode.ODEBlock(network(), solver=nanode.Adaptive())
    with pytest.raises(ValueError, match=r"adaptive.*of=Equation"):
        state_transition(adaptive, sample(4), of=Steps())
    with pytest.raises(ValueError, match="step by step"):
        transition_values(block, sample(4), of=Equation(solver=nanode.Adaptive()))
    with pytest.raises(ValueError, match=r"got an empty one, of shape \[\(0, 4\)\]; .*x\[:1\]"):
        state_transition(block, torch.ones(0, 4))
    with pytest.raises(ValueError, match="real states"):
        state_transition(nanode.ODEBlock(lambda t, x: x, 2), torch.ones(2, dtype=torch.complex64))
    blowing_up = nanode.ODEBlock(lambda t, x: 1e200 * x**3, 4)
    with pytest.raises(ValueError, match=r"not finite after t = 0\.5"):
        state_transition(blowing_up, torch.full((1,), 1e30, **torch64), of=Steps())


def test_a_state_too_large_is_refused_with_the_estimate_to_use():
    block = nanode.ODEBlock(lambda t, x: -x, 2)
    with pytest.raises(ValueError, match=r"600.*limit=512.*transition_values.*raise limit="):
        state_transition(block, torch.ones(600))
    assert state_transition(block, torch.ones(20), limit=20, of=Steps()).matrices.shape[-1] == 20
    with pytest.raises(ValueError, match="limit=19"):
        state_transition(block, torch.ones(20), limit=19)
    with pytest.raises(ValueError, match="count=3 is more than the 2"):
        transition_values(block, torch.ones(2), count=3)


def test_numbers_and_figure():
    found = state_transition(nanode.ODEBlock(network(), steps=3), sample(4), of=Steps())
    numbers = found.numbers()
    assert numbers["tau"] == 0
    assert numbers["times"] == pytest.approx([0, 1 / 3, 2 / 3, 1])
    assert numbers["singular_values"][0] == pytest.approx([1, 1, 1, 1])
    lines = found.plot().get_lines()
    assert len(lines) == 4
    assert lines[0].get_ydata()[-1] == pytest.approx(numbers["singular_values"][-1][0])


def test_a_small_state_has_as_many_values_as_numbers():
    layer = nn.Linear(2, 2).double()
    block = nanode.ODEBlock(nanode.TimeVarying(layer, nanode.Chebyshev(2)), 4)
    x = torch.ones(2, dtype=torch.float64)
    found = transition_values(block, x, of=Steps()).values
    exact = torch.linalg.svdvals(state_transition(block, x, of=Steps()).matrices[-1])
    assert found.shape == (1, 2)
    torch.testing.assert_close(found[0], exact)
