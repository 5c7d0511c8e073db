import math

import pytest
import torch

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
    assert largest(coarse.logarithmic_norm / exact.logarithmic_norm - 1) > 0.02


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
