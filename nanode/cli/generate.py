"""``nanode generate``: a moving picture of what a trained video model predicts."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from nanode.training.files import check_writable
from nanode.training.video import generate


@dataclass(frozen=True, kw_only=True)
class Film:
    """What ``generate`` takes beside the run and the file."""

    sequences: int = 5
    """How many clips, one below the other."""
    samples: int = 20
    """How many predictions of each clip the best is chosen from, by mean SSIM."""
    shown: int = 3
    """How many other samples are shown, if there are so many."""
    n_past: int | None = None
    """Frames that are given; by default as in training."""
    length: int | None = None
    """Frames of a clip; by default the run's n_eval."""
    data: str | None = None
    """Another data set than the run's."""
    split: Literal["test", "train"] = "test"
    """Which clips."""
    seed: int = 0
    """Of the samples."""
    norms: Literal["stored", "batch"] = "stored"
    """Stored norm statistics, or those of each batch, as the original SVG generates."""
    scale: int = 2
    """How many times larger than its pixels a frame is shown."""
    fps: int = 8
    """Frames a second."""
    device: Literal["auto", "cpu", "cuda"] | None = None
    """Where to compute; by default as in training."""
    data_root: str | None = None
    """The folder of the data sets; by default as in training."""


DEFAULT = Film()


def command(
    run: Path,
    /,
    *,
    out: Path | None = None,
    film: Annotated[Film, Parameter(name="*")] = DEFAULT,
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
    """
    path = run / "generated.gif" if out is None else out
    if path.is_dir():
        raise ValueError(f"out must be a .gif or .mp4 file, and {path} is a folder")
    check_writable(path.parent)
    print(generate(run, path, **asdict(film)))
