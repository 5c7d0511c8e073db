"""How good a model is: loss and accuracy in eval mode, with stored norm statistics."""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nanode.data import Batches


@dataclass(frozen=True)
class Score:
    """What a model does on some images."""

    #: The mean cross-entropy, without label smoothing.
    loss: float
    #: The share of images whose largest logit is at their label.
    accuracy: float


@torch.no_grad()
def score(model: nn.Module, batches: Batches, autocast: AbstractContextManager[object]) -> Score:
    """Loss and accuracy over all batches."""
    was_training = model.training
    model.eval()
    device = batches.data.device
    loss = torch.zeros((), dtype=torch.float64, device=device)
    right = torch.zeros((), dtype=torch.int64, device=device)
    with autocast:
        for images, labels in _padded(batches):
            logits = model(images)[: len(labels)].float()
            loss += F.cross_entropy(logits, labels, reduction="sum").double()
            right += (logits.argmax(1) == labels).sum()
    model.train(was_training)
    return Score(float(loss) / len(batches.data), int(right) / len(batches.data))


def _padded(batches: Batches) -> Iterator[tuple[Tensor, Tensor]]:
    """Every batch at full size, so that compiled code meets one shape; labels aren't padded."""
    for step in range(len(batches)):
        images, labels = batches.batch(0, step)
        if len(images) < batches.batch_size:
            again = torch.arange(batches.batch_size, device=images.device) % len(images)
            images = images[again]
        yield images, labels
