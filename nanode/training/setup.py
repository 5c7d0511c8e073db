"""All that takes part in a run, made from its configuration: nothing is written here."""

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from inspect import signature
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn

from nanode.data import Augmentation, Batches, Crop, Cutout, Flip, ImageData, Images, load
from nanode.data.source import show_progress
from nanode.gradients.randomness import undrawn
from nanode.models import create
from nanode.models.flows import SOLVERS
from nanode.solvers import Invertible
from nanode.training.average import Average
from nanode.training.calibration import calibrate
from nanode.training.config import AugmentConfig, PenaltyConfig, Settings, TrainConfig
from nanode.training.evaluation import Score, score
from nanode.training.journal import check_tensorboard
from nanode.training.optimizers import make_optimizer
from nanode.trajectories import coefficient_penalty, function_penalty, smoothness_penalty
from nanode.values import nearest

if TYPE_CHECKING:
    from lightning_fabric import Fabric

M = TypeVar("M", bound=nn.Module)


@dataclass
class Setup:
    """A configuration come to life."""

    config: TrainConfig
    fabric: "Fabric"
    data: ImageData
    model: nn.Module
    #: What is called: the model, or its compiled form.
    forward: nn.Module
    optimizer: torch.optim.Optimizer
    average: Average | None
    #: Training batches, at the place where the run is.
    batches: Batches

    @property
    def steps(self) -> int:
        """Steps of the whole run."""
        return self.config.epochs * len(self.batches)

    def averaged(self) -> AbstractContextManager[None]:
        """The model with the weights that are evaluated."""
        return nullcontext() if self.average is None else self.average.applied()

    def score(self, images: Images) -> Score:
        """The model as it is on some images."""
        # Not compiled, as below, and as whoever evaluates the run later.
        return score(self.model, images, self.config, self.fabric)

    def calibrate(self, at_most: int | None = None) -> None:
        """Find the norms' statistics anew, for the weights as they are."""
        count = self.config.calibration
        if at_most is not None:
            count = min(count, at_most)
        if count:
            with self.fabric.autocast():
                # Training images as the epochs after the last would show them.
                later = later_images(self.batches, self.config.epochs, count)
                # Not compiled: in this mode a compiled form would be compiled once more.
                calibrate(self.model, self.model, later)


def prepare(config: TrainConfig) -> Setup:
    """Make everything, so that what is wrong shows before any training; seeds the random state."""
    fabric = make_fabric(config)
    if config.tensorboard:
        check_tensorboard()
    data = load_data(config).to(fabric.device)
    batches = training_batches(config, data.train)
    torch.manual_seed(config.seed)
    model = make_model(config, data.shape[0], len(data.classes)).to(fabric.device)
    if config.penalty.weight:
        try:
            penalty(config.penalty, model)
        except ValueError as why:
            raise ValueError(f"penalty.weight for the model {config.model!r}: {why}") from why
    if config.compile:
        warm(model, fabric, batches.batch(0, 0)[0])
    optimizer: Any = fabric.setup_optimizers(make_optimizer(model, config.optimizer))
    return Setup(
        config=config,
        fabric=fabric,
        data=data,
        model=model,
        forward=compiled(model) if config.compile else model,
        optimizer=optimizer,
        average=None if config.average is None else Average(model, config.average),
        batches=batches,
    )


def make_fabric(config: Settings) -> "Fabric":
    """Lightning Fabric on one device, at the configured precision, whatever a cluster has set."""
    try:
        from lightning_fabric import Fabric
        from lightning_fabric.plugins import MixedPrecision
        from lightning_fabric.plugins.environments.lightning import LightningEnvironment
    except ImportError as why:
        raise ImportError("training needs Lightning Fabric: pip install nanode[train]") from why
    if config.device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device: cuda was asked for and torch finds none; use auto or cpu")
    device = config.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    # Given, or Fabric would look for Slurm, torchrun or MPI and take part in their jobs.
    plugins: list[Any] = [LightningEnvironment()]
    if config.precision == "bf16-mixed":  # as a plugin, which is not announced at every start
        plugins.append(MixedPrecision("bf16-mixed", device))
    with _unset("LT_"):  # such variables would go before what is given here
        return Fabric(accelerator=device, devices=1, plugins=plugins)


@contextmanager
def _unset(prefix: str) -> Iterator[None]:
    """Without the environment's variables whose names begin so."""
    kept = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith(prefix)}
    try:
        yield
    finally:
        os.environ.update(kept)


def load_data(config: TrainConfig) -> ImageData:
    """The data set, with held-out images unless the configuration wants none."""
    progress = show_progress if config.progress else None
    data = load(config.data, config.data_root, progress=progress)
    # One seed for all runs: what a choice was made on is never trained on by another seed's run.
    return data if config.validation == 0 else data.hold_out(config.validation, seed=0)


def make_model(config: TrainConfig, channels: int, classes: int) -> nn.Module:
    """The model of a configuration, as it starts."""
    shape = {"preset": config.preset, "channels": channels, "classes": classes}
    model = built(create, config.model, shape, config.options)
    if config.channels_last:
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return model


def built(create: Callable[..., M], name: str, shape: dict[str, Any], options: dict[str, Any]) -> M:
    """A model by name, of a shape that is settled; what is wrong with its options is said first."""
    known = [key for key in signature(create).parameters if key not in ("name", *shape)]
    for key in options:
        if key not in known:
            raise ValueError(
                f"options has no {key!r}, only {', '.join(known)}{nearest(key, known)}"
            )
    _check_gradient(options)
    try:
        return create(name, **shape, **options)
    except TypeError as why:
        raise ValueError(f"options doesn't fit the model {name!r}: {why}") from why
    except ValueError as why:
        wrong = any(str(why).startswith(f"{key} ") for key in options)
        raise ValueError(f"options.{why}" if wrong else str(why)) from why


def _check_gradient(options: dict[str, Any]) -> None:
    """Refuse what a gradient method can't do, in the words of configurations."""
    if options.get("gradient") == "backsolve" and options.get("norm") != "group":
        raise ValueError(
            "options.gradient backsolve has no evaluations in common with the forward pass, and "
            "batch norms have statistics for each; options.norm may be group (where the model has "
            "it), or options.gradient checkpointed"
        )
    solver = options.get("solver") or "euler"
    undone = [name for name, (make, _) in SOLVERS.items() if isinstance(make(), Invertible)]
    if options.get("gradient") == "reversal" and solver in [*SOLVERS] and solver not in undone:
        raise ValueError(
            f"options.gradient reversal undoes the solver's steps, and {solver}'s can't be undone; "
            f"options.solver may be {', '.join(undone)} (on the command line "
            "--options.solver coupled-euler), or options.gradient checkpointed"
        )


def penalty(config: PenaltyConfig, model: nn.Module) -> Tensor:
    """The configured penalty on moving weights, by its weight."""
    if config.name == "smoothness":
        return config.weight * smoothness_penalty(model, config.derivative)
    kinds = {"coefficients": coefficient_penalty, "function": function_penalty}
    return config.weight * kinds[config.name](model)


def augmentations(config: AugmentConfig) -> list[Augmentation]:
    """What is done to training images, in order."""
    found: list[Augmentation] = []
    if config.crop:
        found.append(Crop(config.crop, "reflect" if config.border == "reflect" else "zero"))
    if config.flip:
        found.append(Flip())
    if config.cutout:
        found.append(Cutout(config.cutout))
    return found


def training_batches(config: TrainConfig, images: Images) -> Batches:
    """Images epoch by epoch, shuffled and augmented."""
    return Batches(
        images,
        config.batch_size,
        seed=config.seed,
        augment=augmentations(config.augment),
        channels_last=config.channels_last,
    )


def later_images(batches: Batches, epoch: int, count: int) -> Iterator[Tensor]:
    """So many batches of images from an epoch on, whatever epoch the batches are in."""
    for n in range(count):
        later, step = divmod(n, len(batches))
        yield batches.batch(epoch + later, step)[0]


@torch.no_grad()
def warm(model: nn.Module, fabric: "Fabric", *inputs: Any) -> None:
    """Call a model that is about to be compiled once uncompiled; it is left as it was.

    Flows keep tables from their first call on. Traced without them, a model is compiled for its
    first step and again for its second.
    """
    # Models of earlier runs in this process share code with this one, and torch compiles a piece
    # of code for a few models only before it gives up and runs it uncompiled.
    torch.compiler.reset()
    with undrawn([fabric.device]), fabric.autocast():
        model.eval()(*inputs)
    model.train()


def compiled(model: nn.Module) -> nn.Module:
    """The model's compiled form, which shares its weights."""
    form: Any = torch.compile(model, dynamic=False)
    assert isinstance(form, nn.Module)
    return form
