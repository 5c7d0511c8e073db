import math

import numpy as np
import pytest
import torch
from torch import nn

import nanode
from nanode.analysis import trajectory_spectrum
from tests.analysis.systems import network, torch64


def scalar(basis, coefficients):
    """One weight with given coefficients."""
    field = nanode.TimeVarying(nn.Linear(1, 1, bias=False).double(), basis)
    with torch.no_grad():
        field.trajectory.coefficients.weight.copy_(torch.tensor(coefficients, **torch64)[:, None])
    return field


def test_legendre_weights_show_their_own_coefficients():
    """∫ P_n² = length/(2n + 1)."""
    field = scalar(nanode.Legendre(degree=3, interval=(1.0, 3.0)), [1.0, -2.0, 0.0, 3.0])
    found = trajectory_spectrum(field, orders=5)
    expected = [2 * 1, 2 * 4 / 3, 0, 2 * 9 / 7, 0, 0]
    assert found.orders["weight"].tolist() == pytest.approx(expected, abs=1e-12)
    assert found.coefficients["weight"].tolist() == pytest.approx(expected[:4])
    assert found.total["weight"] == pytest.approx(sum(expected))
    assert found.moving["weight"] == pytest.approx(1 - expected[0] / sum(expected))


def test_complex_weights_show_both_parts():
    field = nanode.TimeVarying(
        nn.Linear(1, 1, bias=False, dtype=torch.complex128), nanode.Legendre(degree=1)
    )
    with torch.no_grad():
        field.trajectory.coefficients.weight.copy_(torch.tensor([[1 + 2j], [3j]]))
    found = trajectory_spectrum(field, orders=1)
    assert found.coefficients["weight"].tolist() == pytest.approx([1 + 4, 9 / 3])
    assert found.orders["weight"].tolist() == pytest.approx([1 + 4, 9 / 3])
    assert found.total["weight"] == pytest.approx(1 + 4 + 9 / 3)


def test_waves_show_the_legendre_coefficients_of_waves():
    """cos 2πt has spherical Bessel functions as coefficients; by numpy's quadrature here."""
    field = scalar(nanode.Trigonometric(1, frequency=2 * math.pi), [0.0, 1.0, 0.0])
    found = trajectory_spectrum(field, orders=20)
    x, w = np.polynomial.legendre.leggauss(60)
    t, w = (x + 1) / 2, w / 2
    values = np.polynomial.legendre.legvander(x, 20) * np.sqrt(2 * np.arange(21) + 1)
    expected = ((w * np.cos(2 * np.pi * t)) @ values) ** 2
    assert found.orders["weight"].tolist() == pytest.approx(expected.tolist(), abs=1e-14)
    assert found.total["weight"] == pytest.approx(0.5)
    assert sum(found.orders["weight"].tolist()) == pytest.approx(0.5)  # Parseval
    assert found.moving["weight"] == pytest.approx(1)


def test_jumps_are_integrated_piece_by_piece():
    field = scalar(nanode.Bucketed(3), [1.0, 4.0, -2.0])
    found = trajectory_spectrum(field, orders=200)
    assert found.total["weight"] == pytest.approx((1 + 16 + 4) / 3)
    assert float(found.orders["weight"][0]) == pytest.approx(1.0)  # the mean is 1
    # A jump's energies fall off as 1/n²: what 200 orders leave out is about 1/200 of it.
    assert 0.9 < float(found.orders["weight"].sum()) / found.total["weight"] < 1


def test_any_trajectory_has_orders_and_only_expansions_coefficients():
    hyper = nanode.TimeVarying(nn.Linear(2, 2), weights=nanode.Hypernetwork)
    found = trajectory_spectrum(nanode.ODEBlock(hyper, steps=2))
    assert found.coefficients == {}
    assert found.moving["weight"] == pytest.approx(0, abs=1e-6)  # held at the start
    mixed = trajectory_spectrum(network(overrides={"2": nanode.Bucketed(2), "0.bias": None}))
    assert set(mixed.orders) == set(mixed.coefficients) == {"0.weight", "2.weight", "2.bias"}
    gated = trajectory_spectrum(nanode.Gated([nn.Linear(2, 2), network(size=2)]))
    assert set(gated.orders) == set(gated.coefficients)
    assert {"logits", "1.2.bias"} <= set(gated.orders)
    # Of an orthogonal weight the coefficients are those of something else.
    kept = {"0.weight": nanode.Householder()}
    bound = trajectory_spectrum(network(orthogonal=kept))
    assert set(bound.orders) - set(bound.coefficients) == {"0.weight"}
    with pytest.raises(ValueError, match="no weight of this field moves"):
        trajectory_spectrum(nanode.Autonomous(nn.Linear(2, 2)))


def test_numbers_and_figure():
    found = trajectory_spectrum(network(), orders=4)
    assert found.numbers()["moving"] == found.moving
    (line, *others) = found.plot().get_lines()
    assert len(others) == 3
    share = found.orders["0.weight"] / found.total["0.weight"]
    assert line.get_ydata().tolist() == pytest.approx(share.tolist())


@pytest.mark.parametrize(
    ("basis", "place", "energy", "first"),
    [
        # 18 nodes are the zeros of this polynomial.
        (nanode.Legendre(degree=18), 18, 1 / 37, 0),
        # The last sine; ∫ sin(2πnt) √3 (2t - 1) dt = -√3 / πn.
        (nanode.Trigonometric(60, frequency=2 * math.pi), 120, 0.5, 3 / (60 * math.pi) ** 2),
    ],
)
def test_motion_faster_than_the_orders_counts_in_the_total(basis, place, energy, first):
    field = scalar(basis, [float(n == place) for n in range(basis.size)])
    found = trajectory_spectrum(field, orders=2)
    assert found.total["weight"] == pytest.approx(energy, rel=1e-10)
    assert found.orders["weight"].tolist() == pytest.approx([0, first, 0], abs=1e-12)
