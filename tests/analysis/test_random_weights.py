import json
import math

import numpy as np
import pytest
import torch

import nanode
from nanode.analysis import chebyshev_figure, random_weights
from nanode.analysis.random_weights import lecun_normal
from nanode.experiments import EXPERIMENTS, Options
from tests.analysis.systems import largest


def test_coefficients_are_lecun_normal():
    alpha = lecun_normal((300, 5, 16, 16), seed=0)
    assert float(alpha.var()) == pytest.approx(1 / 16, rel=0.01)
    assert float(alpha.mean()) == pytest.approx(0, abs=1e-3)


def test_the_size_of_the_weights_follows_the_basis_and_their_condition_does_not():
    """The paper's claim fails: only size depends on t and on the basis."""
    chebyshev = random_weights(nanode.Chebyshev(degree=4), draws=100)
    monomial = random_weights(nanode.Monomial(degree=4), draws=100)
    # At t = 0 and 1 all five polynomials are ±1; the powers are (1, 0, 0, 0, 0) and all 1.
    assert [float(chebyshev.size[k]) for k in (0, -1)] == pytest.approx([math.sqrt(5)] * 2)
    assert [float(monomial.size[k]) for k in (0, -1)] == pytest.approx([1, math.sqrt(5)])
    assert monomial.swing == pytest.approx(math.sqrt(5))
    x = np.linspace(-1, 1, 101)
    sizes = np.linalg.norm(np.polynomial.chebyshev.chebvander(x, 4), axis=1)
    assert chebyshev.swing == pytest.approx(sizes.max() / sizes.min())
    # A Gaussian matrix of 16 by 16 has a condition number of about 50 at the median.
    gaussian = np.random.default_rng(0).normal(size=(4000, 16, 16))
    expected = np.median(np.linalg.cond(gaussian))
    for found in (chebyshev, monomial):
        relative = found.norm / found.size
        assert largest(relative / relative.mean() - 1) < 0.05
        # The median of 100 draws is uncertain by about a tenth.
        assert largest(found.condition / expected - 1) < 0.4
        assert abs(float(found.condition.mean()) / expected - 1) < 0.1
        assert found.worst > 10 * expected  # every draw comes near a singular matrix somewhere


def test_trigonometric_weights_have_one_size_at_all_times():
    for frequency in (1.0, 2 * math.pi):
        basis = nanode.Trigonometric(order=2, frequency=frequency)
        assert random_weights(basis, draws=2).swing == pytest.approx(1)


def test_the_figure_shows_four_polynomials_of_degree_four():
    found = chebyshev_figure(draws=2, points=21)
    assert found.weights.shape == (21, 4)
    x = np.linspace(-1, 1, 21)
    for weights, argument in ((found.weights, x), (found.unmapped, np.linspace(0, 1, 21))):
        z = np.polynomial.chebyshev.chebvander(argument, 4)
        _, residual, rank, _ = np.linalg.lstsq(z, weights.numpy(), rcond=None)
        assert rank == 5
        assert residual.max() < 1e-20
    assert torch.allclose(found.weights[-1], found.unmapped[-1])  # both have x = 1 there
    assert len(found.figure().axes) == 4
    last = {name: values[-1] for name, values in found.conditions.items()}
    assert found.functions[-1] == 21
    assert min(last, key=last.get) == "trigonometric, ω = 2π"
    assert max(last, key=last.get) == "trigonometric, ω = 1"


def test_the_experiment_writes_figure_numbers_and_page(tmp_path):
    experiment = EXPERIMENTS["figure-chebyshev"]
    assert experiment.plan(Options()) == []
    paths = experiment.report(tmp_path, tmp_path / "out", Options(budget="tiny"))
    assert [path.name for path in paths] == [f"figure-chebyshev.{x}" for x in ("png", "json", "md")]
    numbers = json.loads(paths[1].read_text(encoding="utf-8"))
    text = paths[2].read_text(encoding="utf-8")
    assert f"| Chebyshev | {numbers['by_basis']['Chebyshev']['swing']:.2f} |" in text
    assert "figure-chebyshev.png" in text
