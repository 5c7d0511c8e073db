"""The recurrent parts: posterior, prior and predictor, over small vectors.

In training all their inputs are known beforehand, so each is one call over the whole sequence; in
generation the state is handed from step to step. Autocast is off in them: they cost little, and the
divergence adds up small differences.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from nanode.trajectories.trajectory import full_precision

#: Hidden and cell state of an LSTM; None stands for zeros.
State = tuple[Tensor, Tensor] | None


@dataclass(frozen=True)
class Latent:
    r"""Diagonal normal distributions, by mean and log-variance; shapes ``(..., z)``."""

    mean: Tensor
    log_variance: Tensor

    def at(self, noise: Tensor) -> Tensor:
        r"""The value for standard normal noise, :math:`\mu + e^{\frac12 \log\sigma^2} \epsilon`."""
        return self.mean + torch.exp(0.5 * self.log_variance) * noise

    def repeated(self, times: int) -> "Latent":
        """Each distribution along the first axis, so many times in a row."""
        return Latent(
            self.mean.repeat_interleave(times, dim=0),
            self.log_variance.repeat_interleave(times, dim=0),
        )


class Recurrent(nn.Module):
    """A linear layer and an LSTM, (N, T, inputs) to (N, T, hidden)."""

    def __init__(self, inputs: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.embed = nn.Linear(inputs, hidden)
        self.lstm = nn.LSTM(hidden, hidden, layers, batch_first=True)

    def forward(self, x: Tensor, state: State = None) -> tuple[Tensor, State]:
        """Outputs and the state after the last of them."""
        outputs, after = self.lstm(self.embed(x), state)
        return outputs, after


class Gaussian(nn.Module):
    """A recurrent network that ends in a normal distribution."""

    def __init__(self, inputs: int, latents: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.recurrent = Recurrent(inputs, hidden, layers)
        self.mean = nn.Linear(hidden, latents)
        self.log_variance = nn.Linear(hidden, latents)

    def forward(self, x: Tensor, state: State = None) -> tuple[Latent, State]:
        """The distribution at each time, and the state after the last."""
        with full_precision(x):
            y, after = self.recurrent(x, state)
            return Latent(self.mean(y), self.log_variance(y)), after


class Predictor(nn.Module):
    """A recurrent network that ends in the features of a frame."""

    def __init__(self, inputs: int, outputs: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.recurrent = Recurrent(inputs, hidden, layers)
        self.out = nn.Linear(hidden, outputs)

    def forward(self, x: Tensor, state: State = None) -> tuple[Tensor, State]:
        """Features in (-1, 1) at each time, and the state after the last."""
        with full_precision(x):
            y, after = self.recurrent(x, state)
            return torch.tanh(self.out(y)), after
