r"""The training loss, a negative evidence lower bound, and its normalisations.

.. math:: \mathcal L = \sum_{i=1}^{T-1} \frac{1}{N C H W} \lVert \hat x_i - x_i \rVert^2
          + \beta \frac1N \mathrm{KL}(q_i \,\Vert\, p_i)

over N clips; conditioning frames are included.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from nanode.models.video import Latent, Prediction


def divergence(q: Latent, p: Latent) -> Tensor:
    r"""KL(q‖p) of each component.

    .. math:: \tfrac12 \Bigl(\log\sigma_p^2 - \log\sigma_q^2
              + \frac{\sigma_q^2 + (\mu_q - \mu_p)^2}{\sigma_p^2} - 1\Bigr)

    >>> one = Latent(torch.tensor([1.0]), torch.tensor([0.0]))
    >>> divergence(one, Latent(torch.tensor([0.0]), torch.tensor([0.0])))
    tensor([0.5000])
    """
    ratio = q.log_variance - p.log_variance
    # The quotient before its square, which would leave float32's range long before.
    distance = (q.mean - p.mean) * torch.exp(-0.5 * p.log_variance)
    return 0.5 * (torch.exp(ratio) + distance.square() - 1 - ratio)


def loss_terms(prediction: Prediction, frames: Tensor) -> tuple[Tensor, Tensor]:
    """Squared error and divergence, each summed over time; ``frames`` are all T true ones."""
    difference = prediction.frames - frames[:, 1:].to(prediction.frames.dtype)
    error = difference.square().mean(dim=(0, 2, 3, 4)).sum()
    return error, divergence(prediction.posterior, prediction.prior).sum() / len(frames)


@dataclass(frozen=True, kw_only=True)
class Elbo:
    """The negative evidence lower bound in every normalisation in use."""

    #: Mean squared errors, and divergences, summed over the predicted frames.
    mse: float
    kld: float
    #: mse + beta · kld: what is minimised.
    loss_sum: float
    #: Over the T - 1 predicted frames. (The public SVG prints sums over T.)
    loss_per_frame: float
    #: Over the H · W pixels of a frame.
    loss_per_pixel: float
    #: Over beta.
    loss_over_beta: float

    @classmethod
    def of(cls, mse: float, kld: float, beta: float, frames: int, pixels: int) -> "Elbo":
        """From its two terms.

        >>> Elbo.of(mse=2.0, kld=10.0, beta=0.1, frames=4, pixels=100).loss_per_frame
        0.75
        """
        total = mse + beta * kld
        return cls(
            mse=mse,
            kld=kld,
            loss_sum=total,
            loss_per_frame=total / frames,
            loss_per_pixel=total / pixels,
            loss_over_beta=total / beta,
        )
