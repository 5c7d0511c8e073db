"""The configuration of a video run."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nanode.training import documents
from nanode.training.config import OptimizerConfig, ScheduleConfig, Settings
from nanode.values import (
    check_count,
    check_keywords,
    check_number,
)

_PACKAGE = "nanode.training.video"


@dataclass(frozen=True, kw_only=True)
class AdamConfig:
    """Adam, with decoupled weight decay on weight tensors if there is any."""

    lr: float = 2e-3
    """The highest learning rate of the schedule."""
    betas: tuple[float, float] = (0.9, 0.999)
    """How slowly the means of gradients and of their squares move."""
    weight_decay: float = 0.0
    """Of weight tensors; biases and norms never decay."""

    def __post_init__(self) -> None:
        self.as_optimizer()  # whose checks are these

    def as_optimizer(self) -> OptimizerConfig:
        """As other runs configure it."""
        return OptimizerConfig(
            name="adamw", lr=self.lr, betas=self.betas, weight_decay=self.weight_decay
        )


@dataclass(frozen=True, kw_only=True)
class VideoScheduleConfig(ScheduleConfig):
    """The learning rate over the steps of a run: by default it stays."""

    name: str = "constant"
    """``constant``; or ``one-cycle`` or ``cosine``, which need ``steps``."""


@dataclass(frozen=True, kw_only=True)
class VideoConfig(Settings):
    """Everything that decides a video run.

    >>> VideoConfig(data="moving-digits", steps=100, n_past=0)
    Traceback (most recent call last):
    ValueError: n_past must be a whole number of at least 1, got 0
    """

    data: str
    """The data set, by name."""
    data_options: dict[str, Any] = field(default_factory=dict)
    """Further keywords of ``nanode.data.video.load``."""
    model: str = "svg-nanode"
    """``svg``, ``svg-auto`` or ``svg-nanode``."""
    options: dict[str, Any] = field(default_factory=dict)
    """Further keywords of ``nanode.models.video.create``: width, z_dim, skip, encode, gradient …"""
    seed: int = 0
    """Of weights, latents and the order of clips."""
    n_past: int = 5
    """Frames that are given."""
    n_future: int = 10
    """Frames that are predicted in training."""
    n_eval: int = 30
    """Frames of a generated clip, the given ones counted in."""
    beta: float = 1e-4
    """The weight of the divergence between posterior and prior."""
    batch_size: int = 100
    """Clips in a step."""
    steps: int | None = None
    """The run ends after so many steps; null ends it by ``minutes`` alone."""
    minutes: float | None = None
    """The run ends after so much training: evaluation doesn't count, compiling does."""
    precision: str = "32-true"
    """``32-true``, or ``bf16-mixed`` for encoder and decoder in half precision."""
    clip: float | None = None
    """The largest norm of the gradient; null leaves gradients alone."""
    calibration: int = 20
    """Training batches over which norm statistics are found anew at the end; 0 keeps the old."""
    test_clips: int = 200
    """Test clips that the loss is measured on; their latents are the same in all runs."""
    evaluate_every: int = 600
    """Steps between two measurements of the loss on test clips."""
    point_every: int = 50
    """Steps in a point of the curve, which is their mean; each point makes a GPU wait."""
    compile: bool = False
    """Compile encoder and decoder; ``options`` can compile single flows instead."""
    channels_last: bool = False
    """Compute in that memory layout."""
    optimizer: AdamConfig = field(default_factory=AdamConfig)
    schedule: VideoScheduleConfig = field(default_factory=VideoScheduleConfig)
    data_root: str | None = None
    """The folder of the data sets; null takes NANODE_DATA's, or the user's cache."""
    device: str = "auto"
    """``cpu``, ``cuda``, or ``auto``, which takes a GPU where there is one."""
    checkpoint_every: int | None = None
    """Steps between checkpoints; null writes one at each measurement on test clips."""
    tensorboard: bool = False
    """Log for TensorBoard too."""
    progress: bool = True
    """Show how far the run is."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_keywords("data_options", self.data_options)
        for name in ("n_past", "n_future", "test_clips", "evaluate_every", "point_every"):
            check_count(name, getattr(self, name))
        check_beyond("n_eval", self.n_eval, self.n_past)
        check_number("beta", self.beta, above=0)
        if self.steps is not None:
            check_count("steps", self.steps)
        if self.minutes is not None:
            check_number("minutes", self.minutes, above=0)
        if self.steps is None and self.minutes is None:
            raise ValueError("a run needs an end: set steps, minutes, or both")
        if self.schedule.name != "constant" and self.steps is None:
            raise ValueError(
                f"schedule.name {self.schedule.name!r} needs to know how many steps there are: "
                "set steps, or take constant"
            )

    @property
    def length(self) -> int:
        """Frames of a training clip."""
        return self.n_past + self.n_future


def check_beyond(name: str, value: int, n_past: int) -> None:
    """Refuse a length of clips that leaves no frame to predict."""
    check_count(name, value)
    if value <= n_past:
        raise ValueError(
            f"{name} counts the given frames too and must be above n_past = {n_past}, got {value}"
        )


def load_video_config(path: str | Path) -> VideoConfig:
    """Read a configuration from a YAML file."""
    return documents.read_document(VideoConfig, path)


def video_recipe_names() -> list[str]:
    """The configurations of video runs that come with the package."""
    return documents.recipe_names(_PACKAGE)


def video_recipe(name: str) -> VideoConfig:
    """A configuration that comes with the package.

    >>> video_recipe("bair").n_past
    2
    """
    return documents.shipped(VideoConfig, name, _PACKAGE)
