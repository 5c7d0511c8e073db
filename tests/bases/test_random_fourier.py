import math

import numpy as np
import pytest
import torch
from torch import nn

from nanode.bases import RandomFourier
from nanode.bases.waves import cosine_integral, wave_gram
from tests.contracts.basis_contract import BasisContract, close, uniform_stages


class TestRandomFourier(BasisContract):
    def make(self, interval):
        return RandomFourier(6, seed=3, interval=interval)

    def expected(self, basis, t, m):
        zeta, eta = basis.frequencies.numpy(), basis.phases.numpy()
        one = np.full((len(t), 1), float(m == 0))
        turned = np.cos(t[:, None] * zeta + eta + m * np.pi / 2)
        return np.concatenate([one, zeta**m * turned], axis=1)


def test_the_seed_decides():
    first, again, other = RandomFourier(5, seed=1), RandomFourier(5, seed=1), RandomFourier(5)
    assert torch.equal(first.frequencies, again.frequencies)
    assert torch.equal(first.phases, again.phases)
    assert not torch.equal(first.frequencies, other.frequencies)


def test_distribution():
    basis = RandomFourier(20_000, seed=0, scale=3.0)
    zeta, eta = basis.frequencies / 3, basis.phases
    # Standard errors at n = 20,000: mean 0.007, variance 0.01, uniform mean 0.013; bounds at 4.
    assert abs(zeta.mean()) < 0.03
    assert abs(zeta.var() - 1) < 0.04
    assert abs((zeta**4).mean() - 3) < 0.3
    assert eta.min() >= 0
    assert eta.max() < 2 * math.pi
    assert abs(eta.mean() - math.pi) < 0.06


def test_the_default_scale_turns_once_over_the_interval():
    assert RandomFourier(2, interval=(-2.0, 3.0)).scale == pytest.approx(2 * math.pi / 5)


@pytest.mark.parametrize("cast", ["half", "float", "double", "bfloat16"])
def test_casts_leave_the_buffers_in_double(cast):
    basis = RandomFourier(4)
    before = {name: buffer.clone() for name, buffer in basis.state_dict().items()}
    model = nn.Sequential(nn.Linear(2, 2), basis)
    getattr(model, cast)()
    assert {b.dtype for b in basis.buffers()} == {torch.float64}
    assert all(torch.equal(before[name], b) for name, b in basis.state_dict().items())
    assert model.to("cpu", torch.float16)[1] is basis
    assert basis.phases.dtype == torch.float64


def test_state_is_saved_and_wins_over_the_seed():
    basis, other = RandomFourier(4, seed=1), RandomFourier(4, seed=2)
    assert set(basis.state_dict()) == {"frequencies", "phases"}
    other.load_state_dict(basis.state_dict())
    other.half()
    assert torch.equal(other(torch.tensor(0.3)), basis(torch.tensor(0.3)))


def test_moves_reach_the_buffers_and_meta_is_drawn_again():
    basis = RandomFourier(4, seed=5)
    expected = basis.state_dict()
    basis.to("meta")
    assert basis.frequencies.is_meta
    assert basis.phases.dtype == torch.float64
    basis.half().to_empty(device="cpu")
    assert all(torch.equal(expected[name], b) for name, b in basis.state_dict().items())


def test_emptying_keeps_what_is_not_learned():
    basis = RandomFourier(4, seed=5)
    expected = basis.on(uniform_stages((0.0, 1.0), 3))
    assert torch.equal(basis.to_empty(device="cpu").on(uniform_stages((0.0, 1.0), 3)), expected)


def test_a_model_made_on_meta_has_its_features():
    with torch.device("meta"):
        basis = RandomFourier(4, seed=5)
    basis.to_empty(device="cpu")
    assert torch.equal(basis.frequencies, RandomFourier(4, seed=5).frequencies)


@pytest.mark.gpu
def test_cuda_keeps_double():
    basis = RandomFourier(4).cuda().half()
    assert basis.frequencies.is_cuda
    assert basis.frequencies.dtype == torch.float64
    assert basis.gram().device.type == "cpu"
    assert basis(torch.tensor(0.5)).device.type == "cpu"


def test_gram_is_stable_where_frequencies_nearly_agree():
    # ∫ cos(at) over [0, 1] is 1 − a²/6 + O(a⁴), where sin(a)/a by difference of sines at an offset
    # would lose as many digits as a has zeros.
    for a in (0.0, 1e-300, 1e-12, 1e-6):
        got = cosine_integral(torch.tensor(a).double(), torch.zeros(()).double(), (0.0, 1.0))
        assert abs(float(got) - (1 - a * a / 6)) < 1e-15
    zeta = torch.tensor([2.0, 2.0 + 1e-9, 2.0], dtype=torch.float64)
    eta = torch.tensor([0.3, 0.3, 0.3], dtype=torch.float64)
    gram = wave_gram(zeta, eta, (-1.0, 2.0), 1)
    # 4 ∫ sin²(2t + 0.3) over [−1, 2]; a shift of 1e-9 in ζ moves it by some 1e-8.
    expected = 4 * (1.5 - (math.sin(8.6) - math.sin(-3.4)) / 8)
    assert torch.allclose(gram, torch.full((3, 3), expected, dtype=torch.float64), atol=1e-7)
    assert abs(float(gram[0, 2]) - expected) < 1e-14


@pytest.mark.parametrize("features", [0, -1, 1.5, True])
def test_refuses_other_counts(features):
    with pytest.raises(ValueError, match="features must be a whole number of at least 1"):
        RandomFourier(features)


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), "1"])
def test_refuses_other_scales(scale):
    with pytest.raises(ValueError, match="scale must be a finite number above 0"):
        RandomFourier(2, scale=scale)


@pytest.mark.parametrize("seed", [-1, 0.5, None])
def test_refuses_other_seeds(seed):
    with pytest.raises(ValueError, match="seed must be a whole number of at least 0"):
        RandomFourier(2, seed=seed)


def test_repr_shows_seed_and_scale():
    assert "seed=7, scale=2" in repr(RandomFourier(2, seed=7, scale=2.0))


def test_gram_of_large_phases():
    basis = RandomFourier(3, seed=9, scale=40.0, interval=(-2.0, 3.0))
    x, w = np.polynomial.legendre.leggauss(10)
    half = 5 / 800
    t = (-2 + half * (2 * np.arange(400)[:, None] + 1 + x)).ravel()
    z = TestRandomFourier().expected(basis, t, 2)
    close(basis.gram(2), z.T @ (half * np.tile(w, 400)[:, None] * z), 1e-10)
