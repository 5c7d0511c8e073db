import copy
import math

import pytest
import torch
from torch import nn

import nanode
from nanode.analysis import Equation, Steps, jacobian_spectrum, state_transition
from nanode.analysis.jacobian import evenly
from tests.analysis.systems import gaussian, largest, moving, network, sample


def expected(field, t, x, scale=1.0):
    """Singular values and logarithmic norm from the matrix by reverse mode."""
    j = scale * torch.autograd.functional.jacobian(lambda x: field(t, x), x)
    return torch.linalg.svdvals(j), float(torch.linalg.eigvalsh((j + j.T) / 2)[-1])


def test_exactly_at_every_step():
    field = network()
    block = nanode.ODEBlock(field, steps=4, scale=2.0, at=[0.0, 0.25, 0.5, 0.75, 1.0])
    states = block(sample(4))
    found = jacobian_spectrum(block, sample(4), of=Steps())
    assert found.times.tolist() == [0.0, 0.25, 0.5, 0.75]
    for k in range(4):
        values, norm = expected(field, k / 4, states[k].detach(), scale=2.0)
        assert largest(found.singular_values[k] - values) < 1e-12
        assert float(found.logarithmic_norm[k]) == pytest.approx(norm, abs=1e-12)


def test_skew_matrices_have_no_logarithmic_norm():
    block = nanode.ODEBlock(moving(5, nanode.Legendre(degree=2), skew=True), steps=3)
    found = jacobian_spectrum(block, sample(5), of=Steps())
    assert largest(found.logarithmic_norm) < 1e-14
    assert float(found.singular_values[:, 0].min()) > 0.1


def test_the_logarithmic_norm_bounds_the_transition():
    r"""‖Φ‖ ≤ exp ∫μ₂, by the trapezoidal rule on fine steps; nearly sharp for symmetric J."""
    block = nanode.ODEBlock(network(), steps=5)
    of = Equation(steps=50)
    found = jacobian_spectrum(block, sample(4), of=of)
    bound = math.exp(float(torch.trapezoid(found.logarithmic_norm, found.times)) + 0.02)
    norm = float(state_transition(block, sample(4), of=of).singular_values.values[-1, 0])
    assert norm <= bound
    assert norm > 1


def test_of_the_bucket_of_each_step():
    field = network(basis=nanode.Bucketed(2))
    block = nanode.ODEBlock(field, steps=2, at=[0.0, 0.5, 1.0])
    found = jacobian_spectrum(block, sample(4), of=Steps())
    values, _ = expected(field, 0.5, block(sample(4))[1].detach())
    assert largest(found.singular_values[1] - values) < 1e-12


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("count", [1, 3, 6])
def test_estimates_are_within_two_per_cent_of_exact_values(count, seed):
    """By the settings that a user gets, on the hardest case: 18 to 63 columns of 500."""
    block, x = gaussian(500, seed=seed), sample(500)
    exact = jacobian_spectrum(block, x, points=1, of=Steps())
    found = jacobian_spectrum(block, x, points=1, count=count, of=Steps())
    assert largest(found.singular_values / exact.singular_values[:, :count] - 1) < 0.02
    assert largest(found.logarithmic_norm / exact.logarithmic_norm - 1) < 0.02
    coarse = jacobian_spectrum(block, x, points=1, count=count, of=Steps(), depth=2)
    assert largest(coarse.singular_values / exact.singular_values[:, :count] - 1) > 0.02


@pytest.mark.parametrize("largest_one", [1.0, 0.1])
def test_a_logarithmic_norm_that_is_small_beside_the_spectrum(largest_one):
    """Where the depth that does for Gaussian matrices gave 0.86 for 1 and −0.04 for 0.1."""
    turn = torch.linalg.qr(sample(400, 400))[0]
    spectrum = torch.linspace(-100, largest_one, 400, dtype=torch.float64)
    matrix = turn @ (spectrum[:, None] * turn.T)
    block = nanode.ODEBlock(lambda t, x: x @ matrix.T, 1)
    found = jacobian_spectrum(block, sample(400), count=1, of=Steps())
    assert found.logarithmic_norm.tolist() == [pytest.approx(largest_one, rel=0.02)]


@pytest.mark.parametrize("count", [None, 1])
def test_the_logarithmic_norm_follows_the_direction_of_the_solve(count):
    """x' = (x, −3x) from 1 to 0: the second part grows by e³, and ‖Φ‖ ≤ exp ∫ μ₂ says so."""
    rates = torch.tensor([1.0, -3.0], dtype=torch.float64)
    block = nanode.ODEBlock(lambda t, x: rates * x, 4, interval=(1, 0))
    found = jacobian_spectrum(block, sample(2), count=count, of=Steps())
    assert found.logarithmic_norm.tolist() == pytest.approx([3.0] * 4)


@pytest.mark.parametrize(
    "solver", [nanode.Leapfrog(), nanode.ReversibleHeun(), nanode.Midpoint()], ids=repr
)
def test_it_is_at_the_start_of_a_step_wherever_that_is_evaluated(solver):
    """x' = (½ + t) x."""
    block = nanode.ODEBlock(lambda t, x: (0.5 + t) * x, 4, solver)
    found = jacobian_spectrum(block, sample(1), of=Steps())
    assert found.singular_values.flatten().tolist() == pytest.approx([0.5, 0.75, 1.0, 1.25])


@pytest.mark.parametrize("count", [None, 1])
def test_a_field_that_does_not_look_at_x_has_none(count):
    class Drift(nn.Module):
        def __init__(self):
            super().__init__()
            self.speed = nn.Parameter(torch.ones(3))

        def forward(self, x):
            return self.speed.expand_as(x)

    block = nanode.ODEBlock(nanode.TimeVarying(Drift(), nanode.Legendre(degree=1)), 3)
    found = jacobian_spectrum(block, torch.ones(2, 3), count=count)
    assert largest(found.singular_values) == 0
    assert largest(found.logarithmic_norm) == 0


@pytest.mark.parametrize("solver", [nanode.RK4(), nanode.Heun(), nanode.Midpoint()], ids=repr)
def test_norms_use_the_statistics_of_the_steps_own_evaluations(solver):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(2, 2, 1), nanode.BatchNorm(2), nn.Tanh())
    field = nanode.TimeVarying(module, nanode.Legendre(degree=1)).double()
    block = nanode.ODEBlock(field, 3, solver)
    for _ in range(5):
        block(3 * sample(8, 2, 2, 2))  # statistics of their own in every evaluation
    block.eval()
    x = sample(1, 2, 2, 2)
    found = jacobian_spectrum(block, x, of=Steps())
    # Two steps on by the same field, and one evaluation of the third.
    plan, at = block._plan, x
    for k in range(3):
        i = k * len(solver.fractions)
        row = field.weights(plan.stages).at(i)
        matrix = torch.autograd.functional.jacobian(
            lambda x, i=i, row=row: field.evaluate(row, plan.stages[i], x), at
        ).reshape(8, 8)
        assert largest(found.singular_values[k] - torch.linalg.svdvals(matrix)) < 1e-10
        if k < 2:
            short = copy.deepcopy(block)
            short.at = (float(plan.grid.points[k + 1]),)
            at = short(x)[0].detach()


def test_a_state_too_large_is_refused_with_the_estimate_to_use():
    block = nanode.ODEBlock(lambda t, x: -x, 2)
    with pytest.raises(ValueError, match=r"1,000.*limit=512.*jacobian_spectrum\(count=…\)"):
        jacobian_spectrum(block, torch.ones(1000))
    found = jacobian_spectrum(block, torch.ones(1000), count=1, of=Steps())
    assert found.singular_values.tolist() == [[pytest.approx(1)]] * 2
    assert found.logarithmic_norm.tolist() == [pytest.approx(-1)] * 2


def test_points_are_chosen_evenly():
    assert evenly(5, None) == [0, 1, 2, 3, 4]
    assert evenly(101, 5) == [0, 25, 50, 75, 100]
    assert evenly(3, 7) == [0, 1, 2]
    assert evenly(7, 1) == [0]
    found = jacobian_spectrum(nanode.ODEBlock(network(), 9), sample(4), points=3, of=Steps())
    assert found.times.tolist() == pytest.approx([0, 4 / 9, 8 / 9])


def test_numbers_and_figure():
    found = jacobian_spectrum(nanode.ODEBlock(network(), 3), sample(4), of=Steps())
    assert found.numbers()["logarithmic_norm"] == found.logarithmic_norm.tolist()
    lines = found.plot().get_lines()
    assert [line.get_label() for line in lines] == ["‖J(t)‖₂", "μ₂(J(t))"]
    assert lines[1].get_ydata().tolist() == found.logarithmic_norm.tolist()
