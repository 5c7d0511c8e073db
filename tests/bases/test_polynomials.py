import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.polynomial import Polynomial, chebyshev, legendre, polynomial

from nanode.bases import Chebyshev, Legendre, Monomial
from tests.contracts.basis_contract import BasisContract, OneInterval, close

ends = st.floats(-5, 5, width=32)
intervals = st.tuples(ends, st.floats(0.125, 4, width=32)).map(lambda p: (p[0], p[0] + p[1]))


def mapped(t, interval):
    return Polynomial.identity()(2 * (t - interval[0]) / (interval[1] - interval[0]) - 1)


class PolynomialContract(BasisContract):
    degree = 6

    def make(self, interval):
        return self.family(self.degree, interval=interval)

    def expected(self, basis, t, m):
        x, slope = self.argument(t, basis.interval)
        coefficients = np.eye(basis.size)
        if m:
            coefficients = self.der(coefficients, m, scl=slope)
        return self.val(x, coefficients).T

    def argument(self, t, interval):
        return mapped(t, interval), 2 / (interval[1] - interval[0])


class TestMonomial(PolynomialContract):
    family, der, val = Monomial, staticmethod(polynomial.polyder), staticmethod(polynomial.polyval)

    def argument(self, t, interval):
        return t, 1.0


class TestChebyshev(PolynomialContract):
    family, der, val = Chebyshev, staticmethod(chebyshev.chebder), staticmethod(chebyshev.chebval)


class TestLegendre(PolynomialContract):
    family, der, val = Legendre, staticmethod(legendre.legder), staticmethod(legendre.legval)


class TestHighChebyshev(OneInterval, TestChebyshev):
    degree = 30


class TestHighLegendre(OneInterval, TestLegendre):
    degree = 30


class TestLinear(OneInterval, TestLegendre):
    degree = 1


CASES = [(Monomial, TestMonomial), (Chebyshev, TestChebyshev), (Legendre, TestLegendre)]


@pytest.mark.parametrize(("family", "contract"), CASES)
@settings(max_examples=25, deadline=None)
@given(degree=st.integers(1, 12), interval=intervals, place=st.floats(0, 1))
def test_any_degree_and_interval(family, contract, degree, interval, place):
    basis = family(degree, interval=interval)
    t = np.array([interval[0] + place * (interval[1] - interval[0])])
    close(basis(torch.from_numpy(t)), contract().expected(basis, t, 0), 1e-12)


@pytest.mark.parametrize(("family", "contract"), CASES)
@settings(max_examples=15, deadline=None)
@given(degree=st.integers(1, 10), interval=intervals, m=st.integers(0, 3))
def test_any_gram(family, contract, degree, interval, m):
    basis = family(degree, interval=interval)
    x, w = legendre.leggauss(24)
    half = basis.length / 2
    z = contract().expected(basis, interval[0] + half * (x + 1), m)
    close(basis.gram(m), z.T @ (half * w[:, None] * z), 1e-10)


def test_legendre_gram_is_the_textbook_diagonal():
    expected = np.diag([3.0 / (2 * n + 1) for n in range(6)])
    close(Legendre(5, interval=(1.0, 4.0)).gram(), expected, 1e-14)


def test_monomial_gram_on_the_unit_interval_is_the_hilbert_matrix():
    n = np.arange(8)
    close(Monomial(7).gram(), 1 / (n[:, None] + n + 1), 1e-15)


def test_chebyshev_is_the_cosine_of_a_multiple_angle():
    angle = np.linspace(0, np.pi, 50)
    z = Chebyshev(9, interval=(-1.0, 1.0))(torch.from_numpy(np.cos(angle)))
    close(z, np.cos(angle[:, None] * np.arange(10)), 1e-13)


@pytest.mark.parametrize("family", [Monomial, Chebyshev, Legendre])
def test_derivatives_beyond_the_degree_vanish(family):
    assert torch.equal(family(3).gram(4), torch.zeros(4, 4, dtype=torch.float64))
    assert torch.equal(family(3).gram(9), torch.zeros(4, 4, dtype=torch.float64))


@pytest.mark.parametrize("family", [Monomial, Chebyshev, Legendre])
@pytest.mark.parametrize("degree", [0, -1, 1.0, True, "3", None])
def test_refuses_other_degrees(family, degree):
    with pytest.raises(
        ValueError, match=r"degree must be a whole number of at least 1.*Constant\(\)"
    ):
        family(degree)


@pytest.mark.parametrize("interval", [(0.1, 0.7), (-0.3, 0.1), (0.7, 0.9)], ids=str)
def test_both_ends_are_mapped_exactly(interval):
    z = Chebyshev(3, interval=interval)(torch.tensor(interval, dtype=torch.float64))
    assert z.tolist() == [[1, -1, 1, -1], [1, 1, 1, 1]]


def test_a_numpy_integer_is_an_integer():
    assert Monomial(np.int64(3)).size == 4
