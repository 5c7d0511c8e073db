"""The record of a video run."""

import json
from dataclasses import dataclass
from pathlib import Path

from nanode.training.records import Costs, Record
from nanode.training.video.config import VideoConfig
from nanode.training.video.loss import Elbo
from nanode.values import check_choice

KIND = "video"


@dataclass(frozen=True, kw_only=True)
class Point:
    """One point of a loss curve."""

    step: int
    #: Of training up to this step; evaluation and checkpoints left out, compiling counted.
    seconds: float
    #: ``loss_sum`` and its two terms.
    loss: float
    mse: float
    kld: float


@dataclass(frozen=True, kw_only=True)
class Best:
    """The lowest point of a curve."""

    step: int
    seconds: float
    elbo: Elbo


@dataclass(frozen=True, kw_only=True)
class VideoMetrics:
    """How far a run came."""

    steps: int
    #: The lowest mean training loss over ``point_every`` steps, as the paper reports it.
    best_train: Best
    #: The lowest loss on test clips met on the way.
    best_test: Best
    #: The loss of the final weights on test clips, with norm statistics found anew.
    test: Elbo


@dataclass(frozen=True, kw_only=True)
class VideoCosts(Costs):
    """Bytes of one training step; ``saved_bytes`` is the activation memory of all models alike."""

    #: Of 3×3 kernels, moving ones with all their coefficients: what the paper calls parameters.
    kernel_bytes: int
    #: The peak of a whole step above what was there before; None without a GPU.
    peak_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class VideoRecord(Record):
    """Everything there is to know about a video run, as in its ``run.json``."""

    config: VideoConfig
    kind: str = KIND
    #: Means over training steps.
    curves: tuple[Point, ...] = ()
    #: On test clips.
    tests: tuple[Point, ...] = ()
    metrics: VideoMetrics | None = None
    costs: VideoCosts | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("kind", self.kind, (KIND,))

    @property
    def steps_per_second(self) -> float | None:
        """Training steps a second, first steps left out."""
        return self.times.counted / self.times.steps if self.times.counted else None


def is_video_run(run_folder: str | Path) -> bool:
    """Whether the run in a folder is a video run."""
    try:
        document = json.loads((Path(run_folder) / "run.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(document, dict) and document.get("kind") == KIND
