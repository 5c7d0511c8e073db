"""What one training step of a video model costs in memory."""

import copy
from collections.abc import Callable
from dataclasses import asdict

import torch
from torch import Tensor, nn

from nanode.block import flows, uncompiled
from nanode.fields import TimeVarying
from nanode.gradients.randomness import undrawn
from nanode.training.costs import costs_of_step
from nanode.training.decay import stored_weights
from nanode.training.video.records import VideoCosts
from nanode.training.video.setup import VideoSetup


def measure_video_costs(setup: VideoSetup) -> VideoCosts:
    """Bytes of one training step on one batch, by a copy of the setup's model, not compiled."""
    frames = setup.batch(0)
    with undrawn([frames.device]):
        model = copy.deepcopy(setup.model).train()
        for part in model.modules():
            if isinstance(part, nn.LSTM):
                part.flatten_parameters()  # a copy's are scattered, which a GPU warns of

        def loss() -> Tensor:
            return setup.loss(model, frames)[0]

        with uncompiled(flows(model).values()):
            costs = costs_of_step(setup, model, loss, frames)
            peak = _peak_bytes(loss, frames.device) if frames.is_cuda else None
    return VideoCosts(**asdict(costs), kernel_bytes=kernel_bytes(model), peak_bytes=peak)


def kernel_bytes(model: nn.Module) -> int:
    """Bytes of all 3×3 kernels; of a moving one, those of all its coefficients.

    >>> from nanode.models.video import create
    >>> f"{kernel_bytes(create('svg', width=16)):.3e}"
    '4.600e+06'
    """
    found = []
    for part in model.modules():
        if isinstance(part, TimeVarying):
            stored = stored_weights(part.trajectory)
            found += [w for _, w, shape in stored if tuple(shape[2:]) == (3, 3)]
        elif isinstance(part, nn.Conv2d | nn.ConvTranspose2d) and part.kernel_size == (3, 3):
            # A moving kernel isn't in its layer.
            found += [p for name, p in part.named_parameters() if name == "weight"]
    return sum(w.nbytes for w in found)


def _peak_bytes(loss: Callable[[], Tensor], device: torch.device) -> int:
    """The peak of forward and backward pass above what was there before."""
    torch.cuda.synchronize(device)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    loss().backward()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before
