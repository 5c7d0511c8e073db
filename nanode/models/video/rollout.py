"""Generation: what the model makes of the first frames of a clip.

While frames are given, latents come from the posterior and the true frame is fed; afterwards they
come from the prior, and each frame is made from the one made before it.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from nanode.models.video.recurrent import State
from nanode.models.video.svg import SVG


@torch.no_grad()
def roll_out(
    model: SVG, frames: Tensor, n_past: int, length: int, noise: Tensor, guided: bool = False
) -> Tensor:
    """Clips (N, S, length, C, H, W) that go on from the first ``n_past`` of ``frames``.

    ``noise`` (N, S, length - 1, z) decides the latents of each of S samples; zeros take the means.
    With ``guided``, latents come from the posterior throughout, so ``frames`` (N, T, C, H, W) must
    be there to the end. The given frames are part of the result, unchanged.

    The model is used in the mode that it is in: ``model.eval()`` first for stored statistics.
    """
    known = length if guided else n_past
    model.check(frames, n_past, least=known)
    if length <= n_past:
        raise ValueError(f"length must be above n_past = {n_past}, got {length}")
    clips, samples = len(frames), noise.shape[1]
    if noise.shape != (clips, samples, length - 1, model.latents):
        raise ValueError(
            f"noise must be (clips, samples, length - 1, z) = ({clips}, …, {length - 1}, "
            f"{model.latents}), got {tuple(noise.shape)}"
        )
    eps = noise.flatten(0, 1)
    place, z = _opened(model, frames[:, :known], n_past, samples, eps)
    made: list[Tensor] = []
    for i in range(n_past, length):
        if made:
            place.take(model, made[-1], refresh=model.source(i, n_past) == i - 1)
        prior, place.prior = model.prior(place.features, place.prior)
        latent = z[:, i - 1 : i] if guided else prior.at(eps[:, i - 1 : i])
        together = torch.cat([place.features, latent], dim=2)
        predicted, place.predictor = model.predictor(together, place.predictor)
        made.append(model.decoder(predicted[:, 0], place.skips))
    given = _rows(frames[:, :n_past], samples)
    result = torch.cat([given, torch.stack(made, dim=1).to(given.dtype)], dim=1)
    return result.view(clips, samples, *result.shape[1:])


@dataclass
class _Place:
    """Where a rollout is; every clip has a row for each of its samples."""

    #: Of the newest frame, (rows, 1, g).
    features: Tensor
    #: That the next frame will be decoded with.
    skips: list[Tensor]
    #: States after all frames but the newest.
    prior: State
    predictor: State

    def take(self, model: SVG, frame: Tensor, refresh: bool) -> None:
        """Go on to a new frame (rows, C, H, W), with its skips if they are to be refreshed."""
        features, skips = model.encoder(model.laid_out(frame))
        self.features = features.to(self.features.dtype)[:, None]
        if refresh:
            self.skips = skips


def _opened(
    model: SVG, truth: Tensor, n_past: int, samples: int, eps: Tensor
) -> tuple[_Place, Tensor]:
    """The place at the last given frame, and the latents of all true frames after the first."""
    clips, known = truth.shape[:2]
    features, skips = model.encoded(truth)
    h = features.view(known, clips, -1).transpose(0, 1)
    z = eps[:, :0]
    if known > 1:
        posterior, _ = model.posterior(h[:, 1:])
        z = posterior.repeated(samples).at(eps[:, : known - 1])
    h, past = _rows(h, samples), n_past - 1
    start = model.source(n_past, n_past)
    place = _Place(
        features=h[:, past : past + 1],
        skips=[_rows(skip.split(clips)[start], samples) for skip in skips],
        prior=None,
        predictor=None,
    )
    if past:
        _, place.prior = model.prior(h[:, :past])
        _, place.predictor = model.predictor(torch.cat([h[:, :past], z[:, :past]], dim=2))
    return place, z


def _rows(x: Tensor, samples: int) -> Tensor:
    """Each clip's part as often as it has samples."""
    return x.repeat_interleave(samples, dim=0)
