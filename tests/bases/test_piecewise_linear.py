import numpy as np
import pytest
import torch

from nanode.bases import BSpline, PiecewiseLinear
from tests.contracts.basis_contract import BasisContract, OneInterval, close


class TestPiecewiseLinear(BasisContract):
    orders = (0, 1)
    holds = True
    knots = 5

    def make(self, interval):
        return PiecewiseLinear(self.knots, interval=interval)

    def places(self, interval):
        return np.linspace(*interval, self.knots)

    def breaks(self, interval):
        return tuple(self.places(interval)[1:-1])

    def expected(self, basis, t, m):
        places = self.places(basis.interval)
        values = [np.interp(t, places, row) for row in np.eye(len(places))]
        if m == 0:
            return np.stack(values, axis=1)
        slopes = np.diff(np.eye(len(places)), axis=0) / np.diff(places)[:, None]
        return slopes[np.searchsorted(places, t) - 1] * (m == 1)


class TestTwoKnots(OneInterval, TestPiecewiseLinear):
    knots = 2


class TestUnevenKnots(TestPiecewiseLinear):
    test_refuses_other_intervals = None  # its knots can't be made for them

    def make(self, interval):
        return PiecewiseLinear(list(self.places(interval)), interval=interval)

    def places(self, interval):
        t0, t1 = interval
        inner = t0 + (t1 - t0) * np.array([0.1, 0.15, 0.6])
        return np.array([t0, *inner, t1])


def test_values_at_knots_are_the_identity():
    basis = PiecewiseLinear(11)
    t = torch.tensor([0.0, *basis.breakpoints, 1.0], dtype=torch.float64)
    for side in ("left", "right"):
        assert torch.equal(basis(t, side), torch.eye(11, dtype=torch.float64))


def test_the_side_picks_the_slope_at_a_knot():
    basis = PiecewiseLinear(3)
    t, one = torch.tensor(0.5), torch.tensor(1.0)
    for side, slope in {"left": [-2.0, 2.0, 0.0], "right": [0.0, -2.0, 2.0]}.items():
        _, got = torch.func.jvp(lambda t, side=side: basis(t, side), (t,), (one,))
        assert got.tolist() == slope


def test_second_differences_of_knot_values():
    basis = PiecewiseLinear(5, interval=(0.0, 2.0))
    second = np.array([[1, -2, 1, 0, 0], [0, 1, -2, 1, 0], [0, 0, 1, -2, 1]])
    close(basis.gram(2), second.T @ second * 0.5**-3, 1e-14)
    third = np.diff(second, axis=0)
    close(basis.gram(3), third.T @ third * 0.5**-5, 1e-14)


def test_second_differences_approach_the_integral():
    errors = []
    for knots in (101, 201):
        c = torch.linspace(0, 1, knots, dtype=torch.float64) ** 3
        errors.append(abs(float(c @ PiecewiseLinear(knots).gram(2) @ c) - 12))  # ∫ (6t)² dt
    assert errors[0] / errors[1] > 1.9  # two end pieces are left out: first order
    assert errors[1] < 0.2


def test_is_the_spline_of_degree_one():
    t = torch.linspace(-0.2, 1.2, 57)
    hats, splines = PiecewiseLinear(6), BSpline(6, degree=1)
    assert torch.equal(hats(t), splines(t))
    assert torch.equal(hats.gram(2), splines.gram(2))


@pytest.mark.parametrize("knots", [1, 0, -3, 2.0, True, None, "33"])
def test_refuses_other_counts(knots):
    with pytest.raises(ValueError, match="knots must be a whole number of at least 2"):
        PiecewiseLinear(knots)


@pytest.mark.parametrize(
    "knots",
    [
        [0.0],
        [],
        [0.0, 0.5],
        [0.5, 1.0],
        [0.0, 0.5, 0.5, 1.0],
        [0.0, float("nan"), 1.0],
        (1.0, 0.0),
    ],
)
def test_refuses_other_places(knots):
    with pytest.raises(ValueError, match=r"knots must rise strictly from 0.0 to 1.0.*interval="):
        PiecewiseLinear(knots)


@pytest.mark.parametrize("kind", [tuple, np.array, torch.tensor])
def test_knots_may_be_an_array_or_a_tensor(kind):
    places = (0.0, 0.25, 1.0)
    assert PiecewiseLinear(kind(places)).knots == places
    assert BSpline(kind(places)).knots == places


def test_refuses_places_that_are_no_numbers():
    with pytest.raises(ValueError, match="number of knots or their times"):
        PiecewiseLinear(torch.zeros(2, 2))
    with pytest.raises(ValueError, match="number of knots or their times"):
        PiecewiseLinear([0.0, "a", 1.0])
