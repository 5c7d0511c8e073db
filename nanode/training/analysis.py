"""The analysis of a trained run, from its folder."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nanode.analysis.page import Analysis
from nanode.analysis.survey import Effort, analyse
from nanode.training.evaluation import evaluation_batches
from nanode.training.run import load_model
from nanode.training.setup import load_data, make_fabric
from nanode.training.video import is_video_run, load_video_model
from nanode.training.video.loss import loss_terms
from nanode.training.video.setup import load_clips
from nanode.values import checked_count


def analyse_run(
    run_folder: str | Path,
    out: str | Path | None = None,
    *,
    samples: int = 2,
    device: str | None = None,
    data_root: str | None = None,
    effort: Effort | None = None,
) -> Analysis:
    """Analyse every flow of a finished run, with its final weights.

    The samples are the first images that the run held out, or training images where it held out
    none; of a video run the first frames of training clips. The gradient followed back in time is
    that of the cross-entropy, or of the evidence lower bound. ``device`` and ``data_root`` are by
    default the run's. The page and its numbers go into ``out``, by default the folder ``analysis``
    of the run.
    """
    folder = Path(run_folder)
    samples = checked_count("samples", samples, least=1)
    target = folder / "analysis" if out is None else Path(out)
    look = _video if is_video_run(folder) else _images
    model, x, loss, rows = look(folder, samples, device, data_root)
    return analyse(model, x, target, loss=loss, rows=rows, effort=effort)


#: A model, samples for it, the loss of its output for one of them, and the rows to look at.
Look = tuple[nn.Module, Tensor, Callable[[Any, int], Tensor], int | None]


def _images(folder: Path, samples: int, device: str | None, data_root: str | None) -> Look:
    model, config = load_model(folder)
    config = config.placed(device, data_root)
    place = make_fabric(config).device
    data = load_data(config)
    images = data.train if data.validation is None else data.validation
    few = images.take(torch.arange(min(samples, len(images)))).to(place)
    x, labels = evaluation_batches(replace(config, batch_size=len(few)), few).batch(0, 0)

    def loss(logits: Any, n: int) -> Tensor:
        return F.cross_entropy(logits, labels[n : n + 1])

    return model.to(place), x, loss, None


def _video(folder: Path, samples: int, device: str | None, data_root: str | None) -> Look:
    model, config = load_video_model(folder)
    config = config.placed(device, data_root)
    place = make_fabric(config).device
    clips = load_clips(config, place).train
    frames = clips.frames(torch.arange(min(samples, len(clips))), config.length)

    def loss(prediction: Any, n: int) -> Tensor:
        error, divergence = loss_terms(prediction, frames[n : n + 1])
        return error + config.beta * divergence

    return _OfClips(model.to(place), config.n_past), frames, loss, 1


class _OfClips(nn.Module):
    """A video model as a module of clips alone, with the posterior's means for latents."""

    def __init__(self, model: Any, n_past: int) -> None:
        super().__init__()
        self.model, self.n_past = model, n_past

    def forward(self, frames: Tensor) -> Any:
        noise = frames.new_zeros(len(frames), frames.shape[1] - 1, self.model.latents)
        return self.model(frames, self.n_past, noise)
