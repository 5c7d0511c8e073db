"""``nanode generate``: a moving picture of what a trained video model predicts."""

from pathlib import Path
from typing import Literal

from nanode.training.files import check_writable
from nanode.training.video import generate


def command(
    run: Path,
    /,
    *,
    out: Path | None = None,
    sequences: int = 5,
    samples: int = 20,
    shown: int = 3,
    n_past: int | None = None,
    length: int | None = None,
    data: str | None = None,
    split: Literal["test", "train"] = "test",
    seed: int = 0,
    norms: Literal["stored", "batch"] = "stored",
    scale: int = 2,
    fps: int = 8,
    device: Literal["auto", "cpu", "cuda"] | None = None,
    data_root: str | None = None,
) -> None:
    """Show truth, posterior mean, best sample and other samples side by side.

    A green border means that a frame was given, a red one that it was predicted; the truth's are
    green throughout.

    Parameters
    ----------
    run
        The folder of a finished video run.
    out
        The film, a .gif or .mp4; by default generated.gif in the folder of the run.
    sequences
        How many clips, one below the other.
    samples
        How many predictions of each clip the best is chosen from, by mean SSIM.
    shown
        How many other samples are shown, if there are so many.
    n_past
        Frames that are given; by default as in training.
    length
        Frames of a clip; by default the run's n_eval.
    data
        Another data set than the run's.
    split
        Which clips.
    seed
        Of the samples.
    norms
        Stored norm statistics, or those of each batch, as the original SVG generates.
    scale
        How many times larger than its pixels a frame is shown.
    fps
        Frames a second.
    device
        Where to compute; by default as in training.
    data_root
        The folder of the data sets; by default as in training.
    """
    film = run / "generated.gif" if out is None else out
    check_writable(film.parent)
    path = generate(
        run,
        film,
        sequences=sequences,
        samples=samples,
        shown=shown,
        n_past=n_past,
        length=length,
        data=data,
        split=split,
        seed=seed,
        norms=norms,
        scale=scale,
        fps=fps,
        device=device,
        data_root=data_root,
    )
    print(path)
