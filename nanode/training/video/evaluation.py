"""How well a trained model goes on with clips that it is given the first frames of."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from nanode.data.video.clips import Clips
from nanode.models.video import SVG, roll_out
from nanode.training.calibration import kept_statistics
from nanode.training.setup import make_fabric
from nanode.training.video.config import VideoConfig, check_beyond
from nanode.training.video.metrics import by_time, openstl_mse, openstl_ssim, psnr, ssim
from nanode.training.video.order import latent_noise
from nanode.training.video.run import load_video_model
from nanode.training.video.setup import check_length, load_clips
from nanode.values import check_choice, checked_count

#: ``stored`` statistics, or the ``batch``'s own, as the original generates.
NORMS = ("stored", "batch")
#: Given as one number each.
OPENSTL = {"openstl_mse": openstl_mse, "openstl_ssim": openstl_ssim}
#: Compares predicted frames: truth and a sample, (N, T, C, H, W) each on the CPU, to a number.
Network = Callable[[Tensor, Tensor], float]


@dataclass(frozen=True, kw_only=True)
class VideoScore:
    """What a model does on some clips; metrics are of predicted frames only."""

    data: str
    split: str
    sequences: int
    samples: int
    n_past: int
    #: Frames of a clip, the given ones counted in.
    length: int
    norms: str
    seed: int
    #: Of each predicted frame, means over sequences, for the sample with the best mean SSIM.
    psnr: tuple[float, ...]
    ssim: tuple[float, ...]
    #: The same over all samples.
    average_psnr: tuple[float, ...]
    average_ssim: tuple[float, ...]
    #: Of the one prediction whose latents are the means of the prior, in OpenSTL's definition.
    openstl_mse: float
    openstl_ssim: float
    #: By networks that the user gave.
    networks: dict[str, float] = field(default_factory=dict)

    @property
    def best_psnr(self) -> float:
        """Mean over time."""
        return sum(self.psnr) / len(self.psnr)

    @property
    def best_ssim(self) -> float:
        """Mean over time."""
        return sum(self.ssim) / len(self.ssim)


@dataclass(frozen=True)
class Task:
    """A model, and the clips that it is to go on with."""

    model: SVG
    clips: Clips
    data: str
    split: str
    n_past: int
    length: int
    norms: str
    seed: int
    autocast: Callable[[], AbstractContextManager[object]]

    def batches(self, count: int, most: int) -> list[Tensor]:
        """The indices of the first ``count`` clips, by what is generated together.

        At most ``most`` at a time. With norms of the batch's own at least two, since the features
        of one frame have no variance: there it may be one more than ``most``.
        """
        count = min(count, len(self.clips))
        parts = math.ceil(count / most)
        if self.norms == "batch":
            if count < 2:
                raise ValueError('norms = "batch" takes the statistics of several clips; take two')
            parts = min(parts, count // 2)
        ends = [most * n if self.norms == "stored" else count * n // parts for n in range(parts)]
        indices = torch.arange(count)
        return [indices[a:b] for a, b in pairwise([*ends, count])]

    def truth(self, indices: Tensor) -> Tensor:
        """True frames (N, length, C, H, W)."""
        return self.clips.frames(indices, self.length)

    def generated(self, indices: Tensor, truth: Tensor, samples: int) -> Tensor:
        """Clips (N, samples, length, C, H, W), a function of the seed and of each clip's index."""
        latents = self.model.latents
        noise = latent_noise(self.seed, indices, samples, self.length - 1, latents)
        return self._rolled(truth, noise)

    def expected(self, truth: Tensor, guided: bool = False) -> Tensor:
        """The clips (N, length, C, H, W) with latents at the means of prior or posterior."""
        noise = torch.zeros(len(truth), 1, self.length - 1, self.model.latents)
        return self._rolled(truth, noise, guided)[:, 0]

    def _rolled(self, truth: Tensor, noise: Tensor, guided: bool = False) -> Tensor:
        noise = noise.to(truth.device)
        with self.autocast(), norm_statistics(self.model, self.norms):
            return roll_out(self.model, truth, self.n_past, self.length, noise, guided)


def open_task(
    run_folder: str | Path,
    *,
    n_past: int | None = None,
    length: int | None = None,
    norms: str = "stored",
    seed: int = 0,
    data: str | None = None,
    split: str = "test",
    device: str | None = None,
    data_root: str | None = None,
) -> Task:
    """The model of a finished run before the clips of its data set, or of another one."""
    check_choice("norms", norms, NORMS)
    check_choice("split", split, ("train", "test"))
    checked_count("seed", seed, least=0)
    model, config = load_video_model(run_folder)
    config = config.placed(device, data_root)
    given = config.n_past if n_past is None else n_past
    frames = max(config.n_eval, given + 1) if length is None else length
    checked_count("n_past", given)
    check_beyond("length", frames, given)
    fabric = make_fabric(config)
    found = load_clips(config, fabric.device, data)
    clips = found.train if split == "train" else found.test
    trained, there = (f"{x.channels}×{x.size}×{x.size}" for x in (model, clips))
    if trained != there:
        raise ValueError(f"the run was trained on {trained} frames, {found.name} has {there}")
    check_length(clips, frames, f"length = {frames}")
    return Task(
        model=model.to(fabric.device),
        clips=clips,
        data=found.name,
        split=split,
        n_past=given,
        length=frames,
        norms=norms,
        seed=seed,
        autocast=fabric.autocast,
    )


def evaluate_video(
    run_folder: str | Path,
    *,
    sequences: int = 256,
    samples: int = 100,
    rows: int = 800,
    networks: Mapping[str, Network] | None = None,
    progress: Callable[[int, int], object] = lambda there, count: None,
    **task: Any,
) -> VideoScore:
    """PSNR and SSIM of a finished run against the horizon, best of ``samples`` by mean SSIM.

    ``n_past`` and ``length`` are by default the run's n_past and n_eval; ``norms``, ``seed``,
    ``data``, ``split``, ``device`` and ``data_root`` as in ``open_task``. About ``rows``
    predictions are made at a time, at least all samples of a clip; that changes no result with
    stored norm statistics. ``networks`` are further metrics by name, such as FVD or LPIPS around
    networks of the user's own: each is called once with the predicted frames of the truth and of
    the first sample of every sequence.
    ``progress`` is called with how many clips are done, and of how many.
    """
    for name, value in (("sequences", sequences), ("samples", samples), ("rows", rows)):
        checked_count(name, value)
    opened = open_task(run_folder, **task)
    batches = opened.batches(sequences, max(1, rows // samples))
    count = sum(map(len, batches))
    found: dict[str, list[Tensor]] = defaultdict(list)
    pairs: list[tuple[Tensor, Tensor]] = []
    for indices in batches:
        truth = opened.truth(indices)
        future = truth[:, opened.n_past :]
        made = opened.generated(indices, truth, samples)[:, :, opened.n_past :]
        expected = opened.expected(truth)[:, opened.n_past :]
        compared = _compared(made, future)
        compared |= {name: by_time(metric, expected, future) for name, metric in OPENSTL.items()}
        for name, values in compared.items():
            found[name].append(values.double().cpu())
        if networks:
            pairs.append((future.cpu(), made[:, 0].cpu()))
        progress(int(indices[-1]) + 1, count)
    return VideoScore(
        data=opened.data,
        split=opened.split,
        sequences=count,
        samples=samples,
        n_past=opened.n_past,
        length=opened.length,
        norms=opened.norms,
        seed=opened.seed,
        networks={name: _called(network, pairs) for name, network in (networks or {}).items()},
        **_means(found),
    )


def _means(found: Mapping[str, list[Tensor]]) -> dict[str, Any]:
    """Of values (N, T) the means over clips; of OpenSTL's over time as well."""
    mean = {name: torch.cat(parts).mean(0) for name, parts in found.items()}
    return {
        name: values.mean().item() if name in OPENSTL else tuple(values.tolist())
        for name, values in mean.items()
    }


def best_samples(made: Tensor, future: Tensor) -> tuple[Tensor, Tensor]:
    """The sample with the best mean SSIM of each clip, and the SSIM of every frame (N, S, T)."""
    clips, samples = made.shape[:2]
    repeated = future.repeat_interleave(samples, dim=0)
    values = by_time(ssim, made.flatten(0, 1), repeated).view(clips, samples, -1)
    return values.mean(dim=2).argmax(dim=1), values


def _compared(made: Tensor, future: Tensor) -> dict[str, Tensor]:
    """Metrics of samples (N, S, T, C, H, W) against the truth, (N, T) each."""
    clips, samples = made.shape[:2]
    best, similar = best_samples(made, future)
    repeated = future.repeat_interleave(samples, dim=0)
    ratios = by_time(psnr, made.flatten(0, 1), repeated).view(clips, samples, -1)
    rows = torch.arange(clips, device=best.device)
    return {
        "psnr": ratios[rows, best],
        "ssim": similar[rows, best],
        "average_psnr": ratios.mean(dim=1),
        "average_ssim": similar.mean(dim=1),
    }


def _called(network: Network, pairs: list[tuple[Tensor, Tensor]]) -> float:
    truth, made = (torch.cat(parts) for parts in zip(*pairs, strict=True))
    return float(network(truth, made))


@dataclass(frozen=True, kw_only=True)
class TrivialScore:
    """What a prediction that needs no model scores; as in ``VideoScore``."""

    psnr: tuple[float, ...]
    ssim: tuple[float, ...]
    openstl_mse: float
    openstl_ssim: float


#: What is predicted for every later time, by the last frame that was given.
TRIVIAL: dict[str, Callable[[Tensor], Tensor]] = {
    "black frames": torch.zeros_like,
    "the last given frame": lambda last: last,
}


def trivial_scores(
    config: VideoConfig, *, sequences: int, n_past: int, length: int, data: str | None = None
) -> dict[str, TrivialScore]:
    """What predictions that need no model score on the first test clips, for scale."""
    clips = load_clips(config, make_fabric(config).device, data).test
    check_length(clips, length, f"length = {length}")
    metrics = {"psnr": psnr, "ssim": ssim} | OPENSTL
    found: dict[str, dict[str, list[Tensor]]] = {name: defaultdict(list) for name in TRIVIAL}
    for indices in torch.arange(min(sequences, len(clips))).split(100):
        truth = clips.frames(indices, length)
        future = truth[:, n_past:]
        for name, predict in TRIVIAL.items():
            made = predict(truth[:, n_past - 1]).unsqueeze(1).expand_as(future)
            for metric, function in metrics.items():
                values = by_time(function, made, future)
                found[name][metric].append(values.double().cpu())
    return {name: TrivialScore(**_means(parts)) for name, parts in found.items()}


@contextmanager
def norm_statistics(model: nn.Module, norms: str) -> Iterator[None]:
    """The model with stored norm statistics or with those of each batch; it is left as it was."""
    was_training = model.training
    model.train(norms == "batch")
    try:
        with kept_statistics(model) if norms == "batch" else nullcontext():
            yield
    finally:
        model.train(was_training)
