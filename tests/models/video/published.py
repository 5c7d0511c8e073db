"""SVG-LP one frame after the other with LSTM cells, as it was published: what the model is held to.

Uses the model's encoder and decoder, and cells that share the weights of its LSTMs.
"""

import torch
from torch import nn


class Cells:
    """A linear layer and LSTM cells, with their states."""

    def __init__(self, recurrent):
        self.embed, lstm = recurrent.embed, recurrent.lstm
        self.cells, self.states = [], [None] * lstm.num_layers
        for n in range(lstm.num_layers):
            cell = nn.LSTMCell(lstm.hidden_size, lstm.hidden_size, dtype=lstm.weight_ih_l0.dtype)
            for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
                setattr(cell, name, getattr(lstm, f"{name}_l{n}"))
            self.cells.append(cell)

    def __call__(self, x):
        x = self.embed(x)
        for n, cell in enumerate(self.cells):
            self.states[n] = cell(x, self.states[n])
            x = self.states[n][0]
        return x


class Published:
    def __init__(self, model, skip, n_past):
        self.model, self.skip, self.n_past = model, skip, n_past
        self.parts = {
            name: Cells(getattr(model, name).recurrent)
            for name in ("posterior", "prior", "predictor")
        }

    def refreshes(self, i):
        # The first frame always sets them: with one conditioning frame nothing else would.
        before = {"original": self.n_past, "last": self.n_past + 1, "every": 10**9}[self.skip]
        return i == 1 or i < before

    def latent(self, name, h):
        y, part = self.parts[name](h), getattr(self.model, name)
        return part.mean(y), part.log_variance(y)

    def predict(self, h, z):
        return torch.tanh(self.model.predictor.out(self.parts["predictor"](torch.cat([h, z], 1))))

    def train(self, frames, noise):
        """Predictions, posterior and prior moments of frames 1 to T - 1."""
        made, moments = [], []
        for i in range(1, frames.shape[1]):
            h, fresh = self.model.encoder(frames[:, i - 1])
            target, _ = self.model.encoder(frames[:, i])
            if self.refreshes(i):
                skips = fresh
            mu, logvar = self.latent("posterior", target)
            z = mu + torch.exp(0.5 * logvar) * noise[:, i - 1]
            moments.append((mu, logvar, *self.latent("prior", h)))
            made.append(self.model.decoder(self.predict(h, z), skips))
        return torch.stack(made, 1), [torch.stack(m, 1) for m in zip(*moments, strict=True)]

    def generate(self, frames, length, noise, guided=False):
        x, clip = frames[:, 0], [frames[:, 0]]
        for i in range(1, length):
            h, fresh = self.model.encoder(x)
            if self.refreshes(i):
                skips = fresh
            mu, logvar = self.latent("prior", h)
            if i < self.n_past or guided:
                mu, logvar = self.latent("posterior", self.model.encoder(frames[:, i])[0])
            z = mu + torch.exp(0.5 * logvar) * noise[:, i - 1]
            predicted = self.predict(h, z)
            x = frames[:, i] if i < self.n_past else self.model.decoder(predicted, skips)
            clip.append(x)
        return torch.stack(clip, 1)
