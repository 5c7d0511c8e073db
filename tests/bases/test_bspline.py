import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nanode.bases import BSpline
from tests.contracts.basis_contract import BasisContract, OneInterval, close

interpolate = pytest.importorskip("scipy.interpolate")


def reference(t, places, degree, m):
    knots = np.concatenate([[places[0]] * degree, places, [places[-1]] * degree])
    spline = interpolate.BSpline(knots, np.eye(len(places) - 1 + degree), degree)
    return spline.derivative(m)(t) if m else spline(t)


class TestBSpline(BasisContract):
    orders = (0, 1, 2, 3)
    holds = True
    knots, degree = 5, 3

    def make(self, interval):
        return BSpline(self.knots, degree=self.degree, interval=interval)

    def places(self, interval):
        return np.linspace(*interval, self.knots)

    def breaks(self, interval):
        return tuple(self.places(interval)[1:-1])

    def expected(self, basis, t, m):
        if m > self.degree:
            return np.zeros((len(t), basis.size))
        return reference(t, self.places(basis.interval), self.degree, m)


class TestLinearSpline(OneInterval, TestBSpline):
    orders = (0, 1)
    knots, degree = 4, 1


class TestOnePiece(OneInterval, TestBSpline):
    knots, degree = 2, 3


class TestQuintic(OneInterval, TestBSpline):
    orders = (0, 1, 2, 3, 4, 5)
    knots, degree = 7, 5


class TestUnevenSpline(TestBSpline):
    test_refuses_other_intervals = None  # its knots can't be made for them
    degree = 2
    orders = (0, 1, 2)

    def make(self, interval):
        return BSpline(tuple(self.places(interval)), degree=2, interval=interval)

    def places(self, interval):
        t0, t1 = interval
        return np.array([t0, t0 + 0.2 * (t1 - t0), t0 + 0.3 * (t1 - t0), t1])


@settings(max_examples=30, deadline=None)
@given(
    knots=st.integers(2, 9),
    degree=st.integers(1, 5),
    start=st.floats(-3, 3),
    length=st.floats(0.1, 4),
    place=st.floats(-0.5, 1.5),
)
def test_any_size_and_interval(knots, degree, start, length, place):
    interval = (start, start + length)
    basis = BSpline(knots, degree, interval=interval)
    assert basis.size == knots - 1 + degree
    t = start + place * length
    z = basis(torch.tensor(t, dtype=torch.float64))
    expected = reference(np.clip(t, *interval), np.linspace(*interval, knots), degree, 0)
    # Within rounding of a knot the two may take neighbouring pieces, which agree there: splines of
    # slope at most degree · pieces / length.
    close(z, expected, 1e-12)
    assert z.min() >= 0
    assert abs(float(z.sum()) - 1) < 1e-14


def test_ends_are_interpolated_from_both_sides():
    basis = BSpline(6)
    for side in ("left", "right"):
        z = basis(torch.tensor([0.0, 1.0], dtype=torch.float64), side)
        assert torch.equal(z, torch.eye(8, dtype=torch.float64)[[0, 7]])


def test_values_at_knots_are_one_from_both_sides():
    basis = BSpline(6, degree=2)
    t = torch.tensor(basis.breakpoints, dtype=torch.float64)
    close(basis(t, "left"), basis(t, "right"), 1e-15)


def test_beyond_the_degree_the_last_derivative_is_differenced():
    basis = BSpline(5, degree=2, interval=(0.0, 2.0))
    # The second derivative is constant on the four pieces of width ½.
    second = reference(np.array([0.25, 0.75, 1.25, 1.75]), np.linspace(0, 2, 5), 2, 2)
    third = np.diff(second, axis=0)
    close(basis.gram(3), third.T @ third / 0.5, 1e-13)
    fourth = np.diff(third, axis=0)
    close(basis.gram(4), fourth.T @ fourth * 0.5**-3, 1e-13)
    assert basis.gram(6).abs().max() == 0  # four pieces have no fourth difference


@pytest.mark.parametrize("degree", [0, -1, 2.0, True])
def test_refuses_other_degrees(degree):
    with pytest.raises(ValueError, match=r"degree must be a whole number of at least 1.*Bucketed"):
        BSpline(4, degree=degree)


@pytest.mark.parametrize("knots", [1, 0, None, 3.5])
def test_refuses_other_knots(knots):
    with pytest.raises(ValueError, match="knots must be a whole number of at least 2"):
        BSpline(knots)


def test_repr_shows_the_degree():
    assert "degree=2, size=4" in repr(BSpline(3, degree=2))
