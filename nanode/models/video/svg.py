r"""SVG-LP: stochastic video generation with a learned prior (Denton and Fergus, 2018).

.. math::

    h_i = E(x_i), \quad z_i \sim q(\cdot \mid h_{1..i}), \quad
    \hat x_i = D(g(h_{i-1}, z_i), \text{skips}), \quad p_i = p(\cdot \mid h_{0..i-1})

Note *one batch of frames*: in training the encoder sees true frames only, so nothing in it waits
for anything, and the decoder waits for the recurrent parts alone. With ``encode="batch"`` all
frames of all clips go through each as one batch, and batch norm's statistics are over all of them.
The original takes one time after the other (``"frame"``), with statistics for each time.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from nanode.doubles import widened
from nanode.models.video.recurrent import Gaussian, Latent, Predictor
from nanode.models.video.vgg import Decoder, Encoder
from nanode.values import checked_count

#: Whose skips a predicted frame is decoded with: ``original`` never refreshes them with the last
#: conditioning frame, ``last`` does, ``every`` takes those of the frame before (``last_frame_skip``
#: of the original).
SKIPS = ("original", "last", "every")
ENCODES = ("batch", "frame")


@dataclass(frozen=True)
class Prediction:
    """What the model makes of T true frames: everything about frames 1 to T - 1."""

    #: (N, T - 1, C, H, W), in (0, 1).
    frames: Tensor
    #: (N, T - 1, z) each.
    posterior: Latent
    prior: Latent


class SVG(nn.Module):
    """Predicts each frame of a clip from those before it; see ``nanode.models.video.create``."""

    def __init__(
        self,
        encoder: Encoder,
        decoder: Decoder,
        posterior: Gaussian,
        prior: Gaussian,
        predictor: Predictor,
        *,
        channels: int,
        size: int,
        skip: str = "original",
        encode: str = "batch",
        channels_last: bool = False,
    ) -> None:
        super().__init__()
        self.encoder, self.decoder = encoder, decoder
        self.posterior, self.prior, self.predictor = posterior, prior, predictor
        self.channels, self.size = channels, size
        self.skip, self.encode, self.channels_last = skip, encode, channels_last
        if channels_last:
            self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    @property
    def latents(self) -> int:
        """How many numbers z has."""
        return self.prior.mean.out_features

    def forward(self, frames: Tensor, n_past: int, noise: Tensor | None = None) -> Prediction:
        """Predict frames 1 to T - 1 of (N, T, C, H, W), each from the true frames before it.

        ``noise`` (N, T - 1, z) decides the latents; by default it is drawn.
        """
        self.check(frames, n_past, least=2)
        clips, times = frames.shape[:2]
        if noise is not None and noise.shape != (clips, times - 1, self.latents):
            raise ValueError(
                f"noise must be (clips, times - 1, z) = ({clips}, {times - 1}, {self.latents}), "
                f"got {tuple(noise.shape)}"
            )
        features, skips = self.encoded(frames)
        h = features.unflatten(0, (times, clips)).transpose(0, 1)
        posterior, _ = self.posterior(h[:, 1:])
        prior, _ = self.prior(h[:, :-1])
        z = posterior.at(torch.randn_like(posterior.mean) if noise is None else noise)
        predicted, _ = self.predictor(torch.cat([h[:, :-1], z], dim=2))
        sources = [self.source(i, n_past) for i in range(1, times)]
        chosen = [_chosen(skip, clips, sources) for skip in skips]
        made = self.decoded(predicted.transpose(0, 1).flatten(0, 1), chosen, clips)
        return Prediction(made.unflatten(0, (times - 1, clips)).transpose(0, 1), posterior, prior)

    def source(self, i: int, n_past: int) -> int:
        """The frame whose skips frame i is decoded with."""
        last = {"original": max(n_past - 2, 0), "last": n_past - 1, "every": i - 1}[self.skip]
        return min(i - 1, last)

    def encoded(self, frames: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Features (T·N, g) and skips (T·N, …) of frames (N, T, C, H, W), all of time 0 first."""
        ordered = frames.transpose(0, 1)
        if self.encode == "batch":
            features, skips = self.encoder(self.laid_out(ordered.flatten(0, 1)))
            return widened(features), skips
        found = [self.encoder(self.laid_out(frame)) for frame in ordered]
        features = torch.cat([widened(features) for features, _ in found])
        return features, [torch.cat(parts) for parts in zip(*(s for _, s in found), strict=True)]

    def decoded(self, features: Tensor, skips: Sequence[Tensor], clips: int) -> Tensor:
        """Frames (T·N, C, H, W) from features and skips, all of time 0 first."""
        if self.encode == "batch":
            made: Tensor = self.decoder(features, skips)
            return made
        parts = zip(features.split(clips), *(skip.split(clips) for skip in skips), strict=True)
        return torch.cat([self.decoder(h, own) for h, *own in parts])

    def laid_out(self, frames: Tensor) -> Tensor:
        """Frames (N, C, H, W) in the memory layout that the model computes in."""
        if not self.channels_last:
            return frames
        if self.channels == 1:
            # Both layouts are the same bytes, and torch takes the strides for the ordinary one:
            # flows at full resolution, whose weights come from tables, would then compute in it.
            frames = frames.contiguous()
            height, width = frames.shape[2:]
            return frames.as_strided(frames.shape, (height * width, 1, width, 1))
        return frames.contiguous(memory_format=torch.channels_last)

    def check(self, frames: Tensor, n_past: int, least: int) -> None:
        """Refuse frames that the model can't take, or too few of them."""
        expected = (self.channels, self.size, self.size)
        if frames.ndim != 5 or tuple(frames.shape[2:]) != expected:
            raise ValueError(
                "frames must be (clips, times, channels, height, width) with the last three "
                f"{expected}, got {tuple(frames.shape)}; make the model with the channels= and "
                "size= of the data"
            )
        checked_count("n_past", n_past)
        if frames.shape[1] < least:
            raise ValueError(f"expected at least {least} frames a clip, got {frames.shape[1]}")


def _chosen(skip: Tensor, clips: int, sources: Sequence[int]) -> Tensor:
    """The skips of the frames in ``sources``, in that order."""
    # Slices, never an index: its gradient would be a scatter.
    parts = skip.split(clips)
    return torch.cat([parts[source] for source in sources])
