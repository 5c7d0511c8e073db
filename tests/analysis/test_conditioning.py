import math

import numpy as np
import pytest

import nanode
from nanode.analysis import basis_condition


@pytest.mark.parametrize("degree", [2, 5, 9])
def test_monomials_have_the_condition_of_a_vandermonde_matrix(degree):
    times = np.arange(50) / 50
    expected = np.linalg.cond(np.vander(times, degree + 1))
    found = basis_condition(nanode.Monomial(degree), points=50)
    assert found.condition == pytest.approx(expected, rel=1e-3)


def test_orthogonal_functions_have_the_condition_of_their_lengths():
    """Legendre polynomials have energies 1/(2n + 1), waves at 2π 1 and ½: roots of their ratios."""
    assert basis_condition(nanode.Legendre(4)).condition == pytest.approx(3, rel=1e-3)
    waves = nanode.Trigonometric(3, frequency=2 * math.pi)
    assert basis_condition(waves).condition == pytest.approx(math.sqrt(2))
    assert basis_condition(nanode.Bucketed(5), points=10).condition == pytest.approx(1)


def test_the_papers_trigonometric_basis_is_worse_than_monomials():
    """At base frequency 1 on [0, 1], where the waves hardly bend."""
    for functions in (5, 9):
        trigonometric = basis_condition(nanode.Trigonometric(functions // 2)).condition
        monomial = basis_condition(nanode.Monomial(functions - 1)).condition
        chebyshev = basis_condition(nanode.Chebyshev(functions - 1)).condition
        assert trigonometric > 2 * monomial > 100 * chebyshev
    ten = basis_condition(nanode.Trigonometric(10))
    assert ten.condition > 1e15
    assert ten.rank < 21
    # Of the Gram matrix, whose condition number is the square, thirteen eigenvalues are left.
    gram = np.linalg.eigvalsh(nanode.Trigonometric(10).gram(0).numpy())
    assert (gram > 21 * np.finfo(float).eps * gram[-1]).sum() == 13


def test_too_few_points_are_refused():
    with pytest.raises(ValueError, match="at least 4, got 3, the number of functions"):
        basis_condition(nanode.Legendre(3), points=3)


def test_numbers_and_figures():
    found = basis_condition(nanode.Legendre(3))
    assert found.numbers()["condition"] == found.condition
    assert found.plot().get_lines()[0].get_ydata()[0] == 1


@pytest.mark.parametrize("given", ["chebyshev", nanode.Chebyshev])
def test_what_is_no_basis_is_refused(given):
    with pytest.raises(ValueError, match=r"such as nanode.Chebyshev\(degree=4\), got .*hebyshev"):
        basis_condition(given)
