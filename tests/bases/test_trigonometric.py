import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nanode.bases import Trigonometric
from tests.contracts.basis_contract import BasisContract, OneInterval, close


def waves(t, order, frequency, m):
    """Columns 1, cosines, sines, m times differentiated by turning a quarter each time."""
    n = frequency * np.arange(1, order + 1)
    cosine = [np.cos, lambda x: -np.sin(x), lambda x: -np.cos(x), np.sin][m % 4]
    sine = [np.sin, np.cos, lambda x: -np.sin(x), lambda x: -np.cos(x)][m % 4]
    one = np.full((len(t), 1), float(m == 0))
    phase = t[:, None] * n
    return np.concatenate([one, n**m * cosine(phase), n**m * sine(phase)], axis=1)


class TestTrigonometric(BasisContract):
    order, frequency = 4, 1.0

    def make(self, interval):
        return Trigonometric(self.order, frequency=self.frequency, interval=interval)

    def expected(self, basis, t, m):
        return waves(t, self.order, self.frequency, m)


class TestPeriodic(OneInterval, TestTrigonometric):
    order, frequency = 5, 2 * math.pi


class TestIntegerFrequency(OneInterval, TestTrigonometric):
    order, frequency = 1, 3


def test_the_default_is_the_paper_s():
    basis = Trigonometric(10)
    assert (basis.size, basis.frequency, basis.interval) == (21, 1.0, (0.0, 1.0))


def test_at_the_base_frequency_of_the_interval_the_functions_are_orthogonal():
    basis = Trigonometric(6, frequency=2 * math.pi / 5, interval=(-2.0, 3.0))
    close(basis.gram(), 5 * np.diag([1.0] + 12 * [0.5]), 1e-14)
    n = 2 * math.pi / 5 * np.array([0, *range(1, 7), *range(1, 7)])
    close(basis.gram(2), 2.5 * np.diag(n**4), 1e-13)


@settings(max_examples=25, deadline=None)
@given(
    order=st.integers(1, 12),
    frequency=st.floats(0.01, 10),
    start=st.floats(-3, 3),
    length=st.floats(0.1, 4),
    m=st.integers(0, 3),
)
def test_any_gram(order, frequency, start, length, m):
    basis = Trigonometric(order, frequency, interval=(start, start + length))
    # 10 · 12 radians a unit over 4 units: at most 80 turns for a product, 200 pieces of 8 nodes.
    x, w = np.polynomial.legendre.leggauss(8)
    half = basis.length / 400
    t = (start + half * (2 * np.arange(200)[:, None] + 1 + x)).ravel()
    z = waves(t, order, frequency, m)
    close(basis.gram(m), z.T @ (half * np.tile(w, 200)[:, None] * z), 1e-10)


@pytest.mark.parametrize("order", [0, -1, 2.0, True, None])
def test_refuses_other_orders(order):
    with pytest.raises(
        ValueError, match=r"order must be a whole number of at least 1.*Constant\(\)"
    ):
        Trigonometric(order)


@pytest.mark.parametrize("frequency", [0, -1.0, float("nan"), float("inf"), "1", None, True])
def test_refuses_other_frequencies(frequency):
    with pytest.raises(ValueError, match="frequency must be a finite number above 0"):
        Trigonometric(2, frequency=frequency)


def test_repr_shows_what_the_size_does_not():
    assert "order=3, frequency=2.0" in repr(Trigonometric(3, frequency=2))


def test_float32_times_far_out_keep_their_precision():
    t = torch.tensor(0.7, dtype=torch.float32)
    exact = waves(np.array([float(t)]), 30, 1.0, 0)[0]
    # nt up to 21 is rounded to 2e-6 / 2 in float32 before the cosine.
    assert np.abs(Trigonometric(30)(t).numpy() - exact).max() < 4e-6
