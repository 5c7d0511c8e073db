"""Divergence and loss against torch.distributions and sums written out."""

import numpy as np
import pytest
import torch
from torch.distributions import Normal, kl_divergence

from nanode.models.video import Latent, Prediction
from nanode.training.video import Elbo
from nanode.training.video.loss import divergence, loss_terms


def latent(*shape):
    return Latent(*(torch.randn(*shape, dtype=torch.float64) for _ in range(2)))


def normal(distribution):
    return Normal(distribution.mean, torch.exp(0.5 * distribution.log_variance))


def test_divergence_is_that_of_normal_distributions():
    q, p = latent(4, 5, 3), latent(4, 5, 3)
    assert torch.allclose(divergence(q, p), kl_divergence(normal(q), normal(p)), atol=1e-12)
    assert torch.equal(divergence(q, q), torch.zeros(4, 5, 3, dtype=torch.float64))


def test_divergence_of_narrow_distributions_stays_finite():
    q, p = (
        Latent(torch.zeros(1), torch.full((1,), log_variance)) for log_variance in (-80.0, -90.0)
    )
    # ½ (e¹⁰ - 1 - 10); squares of the deviations themselves are below what float32 can hold.
    assert divergence(q, p).item() == pytest.approx(0.5 * (np.exp(10) - 11), rel=1e-4)


def test_latents_have_their_moments():
    torch.manual_seed(0)
    q = Latent(torch.tensor([2.0, -1.0]), torch.tensor([0.0, 2.0]))
    drawn = q.at(torch.randn(200_000, 2))
    # Standard errors are below 0.007.
    assert torch.allclose(drawn.mean(0), q.mean, atol=0.03)
    assert torch.allclose(drawn.var(0).log(), q.log_variance, atol=0.03)


def test_the_loss_written_out():
    frames = torch.rand(4, 6, 1, 8, 8, dtype=torch.float64)
    made = torch.rand(4, 5, 1, 8, 8, dtype=torch.float64)
    q, p = latent(4, 5, 3), latent(4, 5, 3)
    error, diverged = loss_terms(Prediction(made, q, p), frames)
    mse = kld = 0.0
    for i in range(1, 6):
        mse += torch.nn.functional.mse_loss(made[:, i - 1], frames[:, i])
        at = [Latent(part.mean[:, i - 1], part.log_variance[:, i - 1]) for part in (q, p)]
        kld += kl_divergence(*map(normal, at)).sum() / 4
    assert torch.allclose(error, mse, atol=1e-12)
    assert torch.allclose(diverged, kld, atol=1e-10)


def test_normalisations():
    found = Elbo.of(mse=0.28, kld=30.0, beta=1e-3, frames=14, pixels=64 * 64)
    assert found.loss_sum == pytest.approx(0.31)
    assert found.loss_per_frame == pytest.approx(0.31 / 14)
    assert found.loss_per_pixel == pytest.approx(0.31 / 4096)
    assert found.loss_over_beta == pytest.approx(310)
