"""What is measured on a run's final weights once it is over, written beside its record.

fit.json         loss and accuracy on the training images
steps.json       accuracy on held-out images with fewer and fewer steps, and how few keep it
clips.json       PSNR and SSIM of predicted frames; some-clips and few-clips: of fewer predictions
prediction.json  the same of what has one right answer
film.gif         beside these two: what a video model predicts
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any

from torch import nn

from nanode.block import flows
from nanode.data import ImageData, Images, data_root
from nanode.data.video.official import FOLDERS, SEQUENCES
from nanode.gradients import Compiled
from nanode.training import RunRecord, TrainConfig, evaluate, load_model
from nanode.training.calibration import calibrate
from nanode.training.evaluation import score
from nanode.training.files import read_json, write_json
from nanode.training.setup import (
    later_images,
    load_data,
    make_fabric,
    training_batches,
)
from nanode.training.video import VideoRecord, evaluate_video, generate
from nanode.trajectories import smoothness_penalty

FILM = "film.gif"
#: How much accuracy fewer steps may cost.
TOLERANCE = 0.01


def fit(folder: Path) -> dict[str, Any]:
    """Loss and accuracy on the training images, as they are."""
    found = evaluate(folder, "train")
    return {"train_loss": found.loss, "train_accuracy": found.accuracy}


def steps(folder: Path) -> dict[str, Any]:
    """Accuracy with fewer steps, norm statistics interpolated in time or found anew.

    The fewest steps are chosen on held-out images, on statistics found anew; test images are read
    with these alone, unless they are those of the run, or the run reads none. All finer grids keep
    the accuracy too.
    """
    model, config = load_model(folder)
    coarse = _Coarse(model, config)
    (trained,) = {block.steps for block in flows(model).values()}
    assert isinstance(trained, int)
    grids = [coarse.measure(count) for count in range(trained, 0, -1)]
    fewest = fewest_steps(grids, grids[0]["validation_accuracy"] - TOLERANCE)
    assert fewest is not None
    tested = RunRecord.load(folder / "run.json").metrics
    assert tested is not None
    return {
        "trained_steps": trained,
        "tolerance": TOLERANCE,
        "motion": smoothness_penalty(model).item(),
        "fewest_steps": fewest,
        "fewest_test_accuracy": tested.test_accuracy
        if fewest == trained or not config.test
        else coarse.accuracy(coarse.calibrated(fewest), coarse.data.test),
        "grids": grids,
    }


def fewest_steps(grids: Sequence[Mapping[str, Any]], least: float) -> int | None:
    """The coarsest grid down to which held-out accuracy is at least that; None if none is so."""
    kept = takewhile(lambda grid: grid["validation_accuracy"] >= least, grids)
    return min((grid["steps"] for grid in kept), default=None)


class _Coarse:
    """A trained model on other grids than its own."""

    def __init__(self, model: nn.Module, config: TrainConfig) -> None:
        self.config, self.fabric = config, make_fabric(config)
        self.model = model.to(self.fabric.device)
        for block in flows(model).values():
            if isinstance(block.gradient, Compiled):  # not worth it for one look at each grid
                block.gradient = block.gradient.method
        self.data: ImageData = load_data(config).to(self.fabric.device)
        self.batches = training_batches(config, self.data.train)

    def measure(self, count: int) -> dict[str, Any]:
        """Accuracy on held-out images with so many steps."""
        held = self.data.validation
        assert held is not None, "steps are chosen on held-out images"
        return {
            "steps": count,
            "validation_accuracy": self.accuracy(self.calibrated(count), held),
            "interpolated_accuracy": self.accuracy(self.regridded(count), held),
        }

    def regridded(self, count: int) -> nn.Module:
        """A copy that takes so many steps, norm statistics interpolated."""
        # In training mode norms make room for the new grid, in eval mode they would keep the old.
        model = copy.deepcopy(self.model).train()
        for block in flows(model).values():
            block.regrid(count)
        return model.eval()

    def calibrated(self, count: int) -> nn.Module:
        """The same with norm statistics found anew, as at the end of training."""
        model, config = self.regridded(count), self.config
        images = later_images(self.batches, config.epochs, max(config.calibration, 1))
        with self.fabric.autocast():
            calibrate(model, model, images)
        return model

    def accuracy(self, model: nn.Module, images: Images) -> float:
        """On some images, by stored statistics."""
        return score(model, images, self.config, self.fabric).accuracy


def clips(folder: Path, sequences: int, samples: int, data: str | None = None) -> dict[str, Any]:
    """PSNR and SSIM against the horizon, and a film beside."""
    found = evaluate_video(folder, sequences=sequences, samples=samples, data=data)
    with suppress(ImportError):  # numbers that took hours are not lost for want of Pillow
        generate(folder, folder / FILM, sequences=3, scale=1, samples=min(samples, 20))
    return asdict(found)


def prediction(folder: Path) -> dict[str, Any]:
    """What has one right answer, on as many clips as others report: the official ones if there."""
    root = data_root(VideoRecord.load(folder / "run.json").config.data_root)
    official = any((root / name / SEQUENCES.name).exists() for name in FOLDERS)
    return clips(folder, 10_000, samples=1, data="moving-mnist-test" if official else None)


#: By name: finds plain values out about the finished run in a folder.
MEASUREMENTS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "fit": fit,
    "steps": steps,
    "clips": partial(clips, sequences=256, samples=100),  # as published
    "some-clips": partial(clips, sequences=64, samples=20),
    "few-clips": partial(clips, sequences=2, samples=2),  # a second on a CPU
    "prediction": prediction,
}


def measure(name: str, folder: Path) -> None:
    """Measure a finished run and write ``<name>.json`` into its folder."""
    write_json(folder / f"{name}.json", MEASUREMENTS[name](folder))


def measured(name: str, folder: Path) -> dict[str, Any] | None:
    """What was found, if it was measured."""
    path = folder / f"{name}.json"
    return read_json(path) if path.exists() else None
