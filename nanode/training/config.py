"""The configuration of a training run: frozen dataclasses that check themselves.

A text below a field says what it is for; the command line shows it as the option's help.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Self, cast

from nanode.values import (
    check_choice,
    check_count,
    check_flag,
    check_keywords,
    check_name,
    check_number,
    check_seed,
)

OPTIMIZERS = ("sgd", "adamw")
SCHEDULES = ("one-cycle", "cosine", "constant")
PENALTIES = ("coefficients", "function", "smoothness")
PRECISIONS = ("32-true", "bf16-mixed")
#: What may differ between the two halves of an interrupted run: it changes no result but rounding.
NEUTRAL = (
    "data_root",
    "data_options.cache",
    "device",
    "log_every",
    "checkpoint_every",
    "tensorboard",
    "progress",
    "compile",
    "options.compile",
)
#: Methods that give the same gradients, so that the halves of a run may differ in them; None is
#: the first of them.
ALIKE = (None, "backprop", "checkpointed")


class Settings:
    """What the configuration of every kind of run has, and how it is checked.

    Each kind is a dataclass and declares these among its own fields, in the order of its files.
    """

    data: str
    model: str
    options: dict[str, Any]
    seed: int
    batch_size: int
    precision: str
    clip: float | None
    calibration: int
    compile: bool
    channels_last: bool
    data_root: str | None
    device: str
    checkpoint_every: int | None
    tensorboard: bool
    progress: bool

    def __post_init__(self) -> None:
        check_name("data", self.data)
        check_name("model", self.model)
        check_keywords("options", self.options)
        check_seed("seed", self.seed)
        check_count("batch_size", self.batch_size)
        check_choice("precision", self.precision, PRECISIONS)
        if self.clip is not None:
            check_number("clip", self.clip, above=0)
        check_count("calibration", self.calibration, least=0)
        check_choice("device", self.device, ("auto", "cpu", "cuda"))
        if self.checkpoint_every is not None:
            check_count("checkpoint_every", self.checkpoint_every)
        for name in ("compile", "channels_last", "tensorboard", "progress"):
            check_flag(name, getattr(self, name))

    def placed(self, device: str | None, data_root: str | None) -> Self:
        """The same on another machine; None keeps what it says."""
        given = {"device": device, "data_root": data_root}
        changes = {name: value for name, value in given.items() if value is not None}
        moved: Self = replace(cast("Any", self), **changes)
        return moved

    def as_dict(self) -> dict[str, Any]:
        """Nested plain values, as written to YAML and JSON."""
        values = asdict(cast("Any", self))  # every kind is a dataclass
        plain: dict[str, Any] = json.loads(json.dumps(values))
        return plain


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """How a gradient moves the weights; weight decay acts on weight tensors only."""

    name: str = "sgd"
    """``sgd`` or ``adamw``."""
    lr: float = 0.1
    """The highest learning rate of the schedule."""
    weight_decay: float = 5e-4
    """Of weight tensors; biases and norms never decay."""
    momentum: float = 0.9
    """SGD only."""
    nesterov: bool = True
    """SGD only."""
    betas: tuple[float, float] = (0.9, 0.999)
    """AdamW only."""

    def __post_init__(self) -> None:
        check_choice("optimizer.name", self.name, OPTIMIZERS)
        check_number("optimizer.lr", self.lr, above=0)
        check_number("optimizer.weight_decay", self.weight_decay, least=0)
        check_number("optimizer.momentum", self.momentum, least=0, below=1)
        check_flag("optimizer.nesterov", self.nesterov)
        if len(self.betas) != 2:
            raise ValueError(f"optimizer.betas must be two numbers, got {self.betas!r}")
        for beta in self.betas:
            check_number("optimizer.betas", beta, least=0, below=1)
        foreign = ("betas",) if self.name == "sgd" else ("momentum", "nesterov")
        defaults = {part.name: part.default for part in fields(self)}
        for key in foreign:
            if getattr(self, key) != defaults[key]:
                raise ValueError(
                    f"optimizer.{key} does nothing with optimizer.name {self.name!r}; leave it out"
                )
        if self.name == "sgd" and self.nesterov and self.momentum == 0:
            raise ValueError(
                "optimizer.nesterov needs a momentum above 0, got 0; set optimizer.nesterov to "
                "false for plain gradient descent"
            )


@dataclass(frozen=True, kw_only=True)
class ScheduleConfig:
    """The learning rate over the steps of a run, as shares of ``optimizer.lr``.

    ``constant`` has neither warm-up nor end.
    """

    name: str = "one-cycle"
    """``one-cycle``, ``cosine`` or ``constant``."""
    warmup: float = 0.25
    """The share of all steps in which the rate rises."""
    start: float = 0.04
    """The rate of the first step, if there is a warm-up, as a share of the highest."""
    end: float = 1e-4
    """The rate at the end, likewise: the last step's (one-cycle), or the next one's (cosine)."""

    def __post_init__(self) -> None:
        check_choice("schedule.name", self.name, SCHEDULES)
        check_number("schedule.warmup", self.warmup, least=0, below=1)
        check_number("schedule.start", self.start, least=0, most=1)
        check_number("schedule.end", self.end, least=0, most=1)


@dataclass(frozen=True, kw_only=True)
class AugmentConfig:
    """What happens to training images; all off by default."""

    crop: int = 0
    """Pixels of padding around an image before a random crop to its size."""
    border: str = "zero"
    """What the padding shows: black (``zero``) or the mirrored image (``reflect``)."""
    flip: bool = False
    """Mirror half of the images."""
    cutout: int = 0
    """The side of a square that is blanked out at a random place; 0 is none."""
    cutmix: float = 0.0
    """The share of batches in which a box of every image shows another image."""

    def __post_init__(self) -> None:
        check_count("augment.crop", self.crop, least=0)
        check_choice("augment.border", self.border, ("zero", "reflect"))
        check_flag("augment.flip", self.flip)
        check_count("augment.cutout", self.cutout, least=0)
        check_number("augment.cutmix", self.cutmix, least=0, most=1)


@dataclass(frozen=True, kw_only=True)
class PenaltyConfig:
    """A penalty on moving weights, added to the loss."""

    name: str = "smoothness"
    """What is kept small: ``coefficients``, ``function`` or ``smoothness``."""
    weight: float = 0.0
    """What the penalty is multiplied by; 0 leaves it out."""
    derivative: int = 1
    """Which derivative of the weights ``smoothness`` keeps small."""

    def __post_init__(self) -> None:
        check_choice("penalty.name", self.name, PENALTIES)
        check_number("penalty.weight", self.weight, least=0)
        check_count("penalty.derivative", self.derivative)


@dataclass(frozen=True, kw_only=True)
class TrainConfig(Settings):
    """Everything that decides a run.

    >>> config = TrainConfig(data="digits", model="auto", preset="tiny", batch_size=64)
    >>> config.optimizer.lr
    0.1
    >>> TrainConfig(data="digits", model="auto", epochs=0)
    Traceback (most recent call last):
    ValueError: epochs must be a whole number of at least 1, got 0
    """

    data: str
    """The data set, by name."""
    model: str
    """The model, by name."""
    preset: str = "paper"
    """The network around the flows, by name."""
    options: dict[str, Any] = field(default_factory=dict)
    """Further keywords of ``nanode.models.create``: steps, solver, gradient, scale …"""
    seed: int = 0
    """Of weights, the order of images and their augmentation."""
    epochs: int = 16
    """Passes over the training images."""
    batch_size: int = 512
    """Images in a step."""
    precision: str = "32-true"
    """``32-true``, or ``bf16-mixed`` for fields in half precision."""
    label_smoothing: float = 0.0
    """The share of a label that is spread over all classes."""
    clip: float | None = None
    """The largest norm of the gradient; null leaves gradients alone."""
    average: float | None = 0.999
    """The decay of the weight average that is evaluated; null evaluates the weights themselves."""
    calibration: int = 40
    """Training batches over which norm statistics are found anew at the end; 0 keeps the old."""
    validation: int | None = None
    """Training images held out for choices; null holds out a tenth, 0 trains on all."""
    select: str = "last"
    """Which weights the final metrics belong to: the ``last``, or the ``best`` on validation."""
    test: bool = True
    """Whether the final weights are tested; runs that serve a choice must not look."""
    compile: bool = False
    """Compile the whole model; ``options`` can compile single flows instead."""
    channels_last: bool = False
    """Compute in that memory layout."""
    profile: bool = False
    """Time a training step with and without its flows beforehand, for the share of the flows."""
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    augment: AugmentConfig = field(default_factory=AugmentConfig)
    penalty: PenaltyConfig = field(default_factory=PenaltyConfig)
    data_root: str | None = None
    """The folder of the data sets; null takes NANODE_DATA's, or the user's cache."""
    device: str = "auto"
    """``cpu``, ``cuda``, or ``auto``, which takes a GPU where there is one."""
    log_every: int = 50
    """Steps between two looks at the losses; each look makes a GPU wait."""
    checkpoint_every: int | None = None
    """Steps between checkpoints inside an epoch; null: at ends of epochs, 20 s apart."""
    tensorboard: bool = False
    """Log for TensorBoard too."""
    progress: bool = True
    """Show how far the run is."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_name("preset", self.preset)
        for name in ("epochs", "log_every"):
            check_count(name, getattr(self, name))
        check_choice("select", self.select, ("last", "best"))
        check_number("label_smoothing", self.label_smoothing, least=0, below=1)
        if self.average is not None:
            check_number("average", self.average, least=0, below=1)
        if self.validation is not None:
            check_count("validation", self.validation, least=0)
        for name in ("test", "profile"):
            check_flag(name, getattr(self, name))
        if self.validation == 0 and self.select == "best":
            raise ValueError('select: best needs held-out images, got validation: 0; use "last"')
        if self.validation == 0 and not self.test:
            raise ValueError(
                "a run with validation: 0 and test: false measures nothing; allow one of the two"
            )


def differences(one: Mapping[str, Any], other: Mapping[str, Any], path: str = "") -> dict[str, str]:
    """The dotted keys whose values decide results and differ, with both values in words."""
    found: dict[str, str] = {}
    for key in dict.fromkeys([*one, *other]):
        if f"{path}{key}" in NEUTRAL:
            continue
        a, b = one.get(key), other.get(key)
        if f"{path}{key}" == "options.gradient" and a in ALIKE and b in ALIKE:
            continue
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            found |= differences(a, b, f"{path}{key}.")
        elif a != b:
            found[f"{path}{key}"] = f"{a!r} there, {b!r} here"
    return found
