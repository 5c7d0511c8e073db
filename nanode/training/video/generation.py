"""A moving picture of what a trained model makes of the first frames of some clips."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nanode.training.video.evaluation import Task, best_samples, open_task
from nanode.training.video.pictures import compose, write_film, writer
from nanode.values import checked_count


def generate(
    run_folder: str | Path,
    path: str | Path,
    *,
    sequences: int = 5,
    samples: int = 20,
    shown: int = 3,
    scale: int = 2,
    fps: int = 8,
    **task: Any,
) -> Path:
    """Write a GIF or MP4 of truth, posterior mean, best sample and ``shown`` other samples.

    The best is that of ``samples`` with the best mean SSIM over predicted frames; if fewer others
    are left than ``shown``, all of them are shown. Rows are the first ``sequences`` clips;
    ``n_past``, ``length``, ``norms``, ``seed``, ``data``, ``split``, ``device`` and ``data_root``
    as in ``open_task``. The same arguments give the same film.
    """
    for name, value in (("sequences", sequences), ("samples", samples), ("scale", scale)):
        checked_count(name, value)
    checked_count("fps", fps)
    checked_count("shown", shown, least=0)
    writer(path)  # before minutes of sampling
    opened = open_task(run_folder, **task)
    columns = columns_of(opened, sequences, samples, shown)
    return write_film(path, compose(columns, opened.n_past, scale), fps)


def columns_of(task: Task, sequences: int, samples: int, shown: int) -> dict[str, Tensor]:
    """The clips of a film by column, (N, T, C, H, W) each on the CPU."""
    rows: dict[str, list[Tensor]] = {}
    # One at a time, to save memory, unless norms are to see all of them.
    most = 1 if task.norms == "stored" else sequences
    for indices in task.batches(sequences, most):
        truth = task.truth(indices)
        made = task.generated(indices, truth, samples)
        found, _ = best_samples(made[:, :, task.n_past :], truth[:, task.n_past :])
        order = [[b, *(n for n in range(samples) if n != b)] for b in found.tolist()]
        best, *others = (
            torch.stack([clip[n] for clip, n in zip(made, column, strict=True)])
            for column in zip(*order, strict=True)
        )
        clips = {
            "truth": truth,
            "posterior": task.expected(truth, guided=True),
            "best": best,
        } | {f"sample {n + 1}": other for n, other in enumerate(others[:shown])}
        for name, clip in clips.items():
            rows.setdefault(name, []).append(clip.cpu())
    return {name: torch.cat(parts) for name, parts in rows.items()}
