"""All that takes part in a video run, made from its configuration: nothing is written here."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from nanode.block import flows, uncompiled
from nanode.data.source import show_progress
from nanode.data.video import VideoData, load
from nanode.data.video.clips import Clips
from nanode.models.video import SVG, create
from nanode.training.calibration import calibrate
from nanode.training.journal import check_tensorboard
from nanode.training.optimizers import make_optimizer, take_step
from nanode.training.setup import built, make_fabric, warm
from nanode.training.video.config import VideoConfig
from nanode.training.video.loss import Elbo, loss_terms
from nanode.training.video.order import Order, latent_noise

if TYPE_CHECKING:
    from lightning_fabric import Fabric


@dataclass
class VideoSetup:
    """A configuration come to life."""

    config: VideoConfig
    fabric: "Fabric"
    data: VideoData
    model: SVG
    optimizer: torch.optim.Optimizer
    order: Order

    def batch(self, step: int) -> Tensor:
        """The frames that a step trains on, (N, T, C, H, W)."""
        return self.data.train.frames(self.order.indices(step), self.config.length)

    def calibrate(self) -> None:
        """Find the norms' statistics anew over the first training batches of the run."""
        batches = (self.batch(step) for step in range(self.config.calibration))
        with self.fabric.autocast(), _eager(self.model):
            calibrate(self.model, lambda frames: self.model(frames, self.config.n_past), batches)

    def loss(
        self, model: SVG, frames: Tensor, noise: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The loss of a batch and its two terms."""
        with self.fabric.autocast():
            prediction = model(frames, self.config.n_past, noise)
        error, divergence = loss_terms(prediction, frames)
        return error + self.config.beta * divergence, error, divergence

    def step(self, frames: Tensor) -> Tensor:
        """One step of the optimizer; returns the loss and its two terms, still on the device."""
        terms = self.loss(self.model, frames)
        take_step(self.fabric, self.model, self.optimizer, terms[0], self.config.clip)
        return torch.stack(terms).detach()

    @torch.no_grad()
    def score(self) -> Elbo:
        """The loss on test clips, with stored norm statistics and always the same latents."""
        config, model = self.config, self.model
        was_training = model.training
        model.eval()
        count = min(config.test_clips, len(self.data.test))
        total = torch.zeros(2, dtype=torch.float64, device=self.fabric.device)
        with _eager(model):
            for indices in torch.arange(count).split(config.batch_size):
                frames = self.data.test.frames(indices, config.length)
                noise = latent_noise(0, indices, 1, config.length - 1, model.latents)[:, 0]
                _, error, divergence = self.loss(model, frames, noise.to(frames.device))
                total += len(indices) * torch.stack([error, divergence]).double()
        model.train(was_training)
        mse, kld = (total / count).tolist()
        return self.elbo(mse, kld)

    def elbo(self, mse: float, kld: float) -> Elbo:
        """The loss of the two terms in all its normalisations."""
        frames, pixels = self.config.length - 1, self.model.size**2
        return Elbo.of(mse, kld, self.config.beta, frames, pixels)


def prepare(config: VideoConfig) -> VideoSetup:
    """Make everything, so that what is wrong shows before any training; seeds the random state."""
    fabric = make_fabric(config)
    if config.tensorboard:
        check_tensorboard()
    data = load_clips(config, fabric.device)
    for clips in (data.train, data.test):
        check_length(clips, config.length, f"n_past + n_future = {config.length}")
    check_length(data.test, config.n_eval, f"n_eval = {config.n_eval}")
    endless = data.train.length is None
    order = Order(len(data.train), config.batch_size, config.seed, endless)
    torch.manual_seed(config.seed)
    model = make_model(config, data.train.channels, data.train.size).to(fabric.device)
    # Last: now BAIR is copied, the few clips to test on before the many.
    data.test.frames(torch.arange(1), config.length)
    frames = data.train.frames(order.indices(0), config.length)
    model.check(frames, config.n_past, least=config.length)
    if config.compile:
        warm(model, fabric, frames, config.n_past)
        for part in (model.encoder, model.decoder):  # the LSTMs have kernels of their own
            part.compile(dynamic=False)
    optimizer: Any = fabric.setup_optimizers(make_optimizer(model, config.optimizer.as_optimizer()))
    return VideoSetup(config, fabric, data, model, optimizer, order)


def load_clips(config: VideoConfig, device: torch.device, name: str | None = None) -> VideoData:
    """The clips of a configuration, or others by name."""
    options = config.data_options if name in (None, config.data) else {}
    progress = show_progress if config.progress else None
    place = config.data_root
    return load(name or config.data, root=place, device=device, progress=progress, **options)


def check_length(clips: Clips, needed: int, what: str) -> None:
    """Refuse clips with too few frames."""
    if clips.length is not None and clips.length < needed:
        raise ValueError(
            f"{clips.name} has {clips.length} frames a clip, too few for {what}; take fewer frames"
        )


def make_model(config: VideoConfig, channels: int, size: int) -> SVG:
    """The model of a configuration, as it starts."""
    shape = {"channels": channels, "size": size, "channels_last": config.channels_last}
    return built(create, config.model, shape, config.options)


@contextmanager
def _eager(model: SVG) -> Iterator[None]:
    """The model and its flows without compiled code, which would be compiled again for this."""
    parts: tuple[nn.Module, ...] = (model.encoder, model.decoder)
    kept = [part._compiled_call_impl for part in parts]
    for part in parts:
        part._compiled_call_impl = None
    try:
        with uncompiled(flows(model).values()):
            yield
    finally:
        for part, code in zip(parts, kept, strict=True):
            part._compiled_call_impl = code
