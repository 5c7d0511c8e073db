"""``nanode train``: one command for each kind of data."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, TypeVar

from cyclopts import App, Parameter

from nanode.cli.app import no_empty_paths
from nanode.cli.settings import settings_over_a_base
from nanode.data import data_root
from nanode.interrupts import GOES_ON, asked_to_stop
from nanode.training import TrainConfig, train
from nanode.training.setup import make_model
from nanode.training.video import VideoConfig, train_video
from nanode.training.video.setup import make_model as make_video_model

command = App(name="train")
C = TypeVar("C", TrainConfig, VideoConfig)


@dataclass(frozen=True, kw_only=True)
class Run:
    """What both commands take beside their settings."""

    out: Path
    """The folder of the run: record, log, checkpoints, weights."""
    recipe: str | None = None
    """A recipe to start from; ``nanode recipes`` lists them."""
    config: Path | None = None
    """A YAML file to start from, such as the config.yaml of another run."""
    resume: bool = True
    """Whether the folder may hold a part of this run."""


@command.command(
    usage="nanode train image [--recipe NAME | --config FILE] [OPTIONS] --out FOLDER",
    config=(no_empty_paths, settings_over_a_base(TrainConfig, "nanode.training", "digits-tiny")),
)
def image(
    *,
    run: Annotated[Run, Parameter(name="*")],
    settings: Annotated[TrainConfig, Parameter(name="*")],
) -> None:
    """Train an image classifier.

    What neither the recipe or file nor an option says is as shown below. A run that was interrupted
    goes on where it stopped; one that is finished is not repeated.
    """
    # A name it can't make shows before data are fetched.
    make_model(settings, channels=3, classes=10)
    with asked_to_stop() as asked:
        record = train(_placed(settings), run.out, run.resume, asked)
    if record.metrics is None:
        raise KeyboardInterrupt(GOES_ON)
    for split in ("validation", "test"):
        accuracy, loss = (
            getattr(record.metrics, f"{split}_{kind}") for kind in ("accuracy", "loss")
        )
        if accuracy is not None:
            print(f"{split:10} {accuracy:7.2%}  loss {loss:.4f}")
    print(f"{record.times.total:.1f} s; the record is {run.out / 'run.json'}")


@command.command(
    usage="nanode train video [--recipe NAME | --config FILE] [OPTIONS] --out FOLDER",
    config=(
        no_empty_paths,
        settings_over_a_base(VideoConfig, "nanode.training.video", "moving-mnist-tiny"),
    ),
)
def video(
    *,
    run: Annotated[Run, Parameter(name="*")],
    settings: Annotated[VideoConfig, Parameter(name="*")],
) -> None:
    """Train a video model.

    What neither the recipe or file nor an option says is as shown below. A run that was interrupted
    goes on where it stopped; one that is finished is not repeated.
    """
    # A name it can't make shows before data are fetched.
    make_video_model(settings, channels=1, size=64)
    with asked_to_stop() as asked:
        record = train_video(_placed(settings), run.out, run.resume, asked)
    if record.metrics is None:
        raise KeyboardInterrupt(GOES_ON)
    best, test = record.metrics.best_train, record.metrics.test
    print(f"train  loss {best.elbo.loss_sum:.5f} at best, at step {best.step:,}")
    print(
        f"test   loss {test.loss_sum:.5f}  squared error {test.mse:.5f}  divergence {test.kld:.4f}"
    )
    print(f"{record.times.total:.1f} s; the record is {run.out / 'run.json'}")


def _placed(settings: C) -> C:
    """With folders that are the same ones from anywhere, for whoever evaluates the run."""
    if settings.data_root is not None:
        settings = replace(settings, data_root=str(data_root(settings.data_root).absolute()))
    if isinstance(settings, VideoConfig) and settings.data_options.get("cache"):
        cache = str(Path(settings.data_options["cache"]).absolute())
        settings = replace(settings, data_options={**settings.data_options, "cache": cache})
    return settings
