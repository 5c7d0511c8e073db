"""How good a model is: loss and accuracy in eval mode, with stored norm statistics."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nanode.data import Batches, Images
from nanode.training.config import TrainConfig

if TYPE_CHECKING:
    from lightning_fabric import Fabric


@dataclass(frozen=True)
class Score:
    """What a model does on some images."""

    #: The mean cross-entropy, without label smoothing.
    loss: float
    #: The share of images whose largest logit is at their label.
    accuracy: float


@torch.no_grad()
def score(model: nn.Module, images: Images, config: TrainConfig, fabric: "Fabric") -> Score:
    """Loss and accuracy over all images, in a run's batches and precision."""
    batches = evaluation_batches(config, images)
    was_training = model.training
    model.eval()
    device = images.device
    loss = torch.zeros((), dtype=torch.float64, device=device)
    right = torch.zeros((), dtype=torch.int64, device=device)
    with fabric.autocast():
        for some, labels in _padded(batches):
            logits = model(some)[: len(labels)].float()
            loss += F.cross_entropy(logits, labels, reduction="sum").double()
            right += (logits.argmax(1) == labels).sum()
    model.train(was_training)
    return Score(float(loss) / len(images), int(right) / len(images))


def evaluation_batches(config: TrainConfig, images: Images) -> Batches:
    """Images in order, none left out."""
    return Batches(images, config.batch_size, shuffle=False, channels_last=config.channels_last)


def _padded(batches: Batches) -> Iterator[tuple[Tensor, Tensor]]:
    """Every batch at full size, so that compiled code meets one shape; labels aren't padded."""
    for step in range(len(batches)):
        images, labels = batches.batch(0, step)
        if len(images) < batches.batch_size:
            again = torch.arange(batches.batch_size, device=images.device) % len(images)
            images = images[again]
        yield images, labels
