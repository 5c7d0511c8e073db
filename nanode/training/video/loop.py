"""The training loop of a video run."""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nanode.training.checkpoints import save_checkpoint, save_weights
from nanode.training.journal import Journal
from nanode.training.loop import Diverged
from nanode.training.optimizers import set_rate
from nanode.training.progress import Clock
from nanode.training.schedules import rate
from nanode.training.video.records import Best, Point, VideoMetrics
from nanode.training.video.setup import VideoSetup


@dataclass
class VideoProgress:
    """The place in a run and what was found on the way."""

    step: int = 0
    #: Of training.
    seconds: float = 0.0
    #: Sums of loss, error and divergence over the steps since the last point, and how many.
    sums: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])
    summed: int = 0
    curves: list[Point] = field(default_factory=list)
    tests: list[Point] = field(default_factory=list)

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> "VideoProgress":
        """What ``asdict`` was taken of."""
        points = {name: [Point(**point) for point in state[name]] for name in ("curves", "tests")}
        return cls(**state | points)


class VideoLoop:
    """Takes a setup to its end, from wherever it is."""

    def __init__(
        self, setup: VideoSetup, folder: Path, clock: Clock, progress: VideoProgress
    ) -> None:
        self.setup, self.folder, self.clock, self.progress = setup, folder, clock, progress
        shown = {"tensorboard": setup.config.tensorboard, "progress": setup.config.progress}
        self.journal = Journal(folder, progress.step, **shown)
        self._resumed = progress.step > 0
        #: Loss, error and divergence of the steps since the last look, still on the device.
        self._unread: list[Tensor] = []

    def run(self, saved: Callable[[], object], stop: Callable[[], bool]) -> bool:
        """Train to the end; ``saved`` is called after each checkpoint.

        As soon as ``stop()`` is true, at most a step later, a checkpoint is written and the result
        is False.
        """
        config, progress = self.setup.config, self.progress
        self.setup.model.train()
        self.clock.start()
        while not self._over():
            if stop():
                self._read()
                self._checkpoint()
                return False
            self._unread.append(self._step())
            progress.step += 1
            point = progress.step % config.point_every == 0
            test = progress.step % config.evaluate_every == 0
            every = config.checkpoint_every
            keep = test if every is None else progress.step % every == 0
            if point or test or keep or self.clock.first:
                self._read()
            if point:
                self._point()
            if test:
                self._test()
            if keep:
                self._checkpoint()
                saved()
            if test or keep:
                self.clock.start()
        self._read()
        if not progress.curves:  # else the steps since the last point are too few for one
            self._point()
        self._test()
        return True

    def finish(self) -> VideoMetrics:
        """Final weights, their norm statistics and their metrics."""
        setup, progress = self.setup, self.progress
        if setup.config.calibration:
            setup.calibrate()
        test = setup.score()
        if not math.isfinite(test.loss_sum):  # statistics found anew may make it so
            raise self._diverged("test loss", test.loss_sum, progress.step)
        notes = {"channels": setup.model.channels, "size": setup.model.size, "step": progress.step}
        save_weights(self.folder / "final.safetensors", setup.model.state_dict(), **notes)
        return VideoMetrics(
            steps=progress.step,
            best_train=self._best(progress.curves),
            best_test=self._best(progress.tests),
            test=test,
        )

    def points(self) -> dict[str, tuple[Point, ...]]:
        """The record's curves so far, by field."""
        return {"curves": tuple(self.progress.curves), "tests": tuple(self.progress.tests)}

    def _best(self, points: list[Point]) -> Best:
        """The lowest point of a curve."""
        lowest = min(points, key=lambda point: point.loss)
        elbo = self.setup.elbo(lowest.mse, lowest.kld)
        return Best(step=lowest.step, seconds=lowest.seconds, elbo=elbo)

    def _over(self) -> bool:
        config, progress = self.setup.config, self.progress
        if config.steps is not None and progress.step >= config.steps:
            return True
        spent = progress.seconds + (self.clock.running if self._unread else 0.0)
        return config.minutes is not None and spent >= 60 * config.minutes

    def _step(self) -> Tensor:
        """One step of the optimizer; returns loss, error and divergence, not read yet."""
        setup, config, step = self.setup, self.setup.config, self.progress.step
        # A constant rate is the one schedule that may do without an end.
        share = rate(config.schedule, step, config.steps or step + 1)
        set_rate(setup.optimizer, config.optimizer.lr * share)
        return setup.step(setup.batch(step))

    def _read(self) -> None:
        """Look at the losses of the steps since the last look: a GPU waits here."""
        if not self._unread:
            return
        progress, rows = self.progress, torch.stack(self._unread).tolist()
        warming = self._resumed and self.clock.first
        spent = self.clock.stop(len(rows))
        if not warming:  # else it took what the first start had taken already
            progress.seconds += spent
        self._unread.clear()
        first = progress.step - len(rows) + 1
        for step, row in enumerate(rows, first):
            if not all(map(math.isfinite, row)):
                raise self._diverged("training loss", row[0], step)
            loss, mse, kld = row
            self.journal.write(step, loss=loss, mse=mse, kld=kld)
            progress.sums = [a + b for a, b in zip(progress.sums, row, strict=True)]
        progress.summed += len(rows)
        self.journal.show(self._line(rows[-1][0]))

    def _point(self) -> None:
        """Add the means over the steps since the last point to the curve."""
        progress = self.progress
        if not progress.summed:
            return
        loss, mse, kld = (value / progress.summed for value in progress.sums)
        progress.curves.append(
            Point(step=progress.step, seconds=progress.seconds, loss=loss, mse=mse, kld=kld)
        )
        progress.sums, progress.summed = [0.0, 0.0, 0.0], 0

    def _test(self) -> None:
        """Measure the loss on test clips, unless this step's is known."""
        progress = self.progress
        if progress.tests and progress.tests[-1].step == progress.step:
            return
        found = self.setup.score()
        if not math.isfinite(found.loss_sum):
            raise self._diverged("test loss", found.loss_sum, progress.step)
        point = Point(
            step=progress.step,
            seconds=progress.seconds,
            loss=found.loss_sum,
            mse=found.mse,
            kld=found.kld,
        )
        progress.tests.append(point)
        self.journal.write(progress.step, test_loss=point.loss, test_mse=point.mse)
        self.journal.show(f"{self._line(None)}  test loss {point.loss:.4f}", done=True)

    def _line(self, loss: float | None) -> str:
        config, progress = self.setup.config, self.progress
        line = f"step {progress.step}" + ("" if config.steps is None else f"/{config.steps}")
        line += f"  {progress.seconds / 60:.1f}"
        line += " min" if config.minutes is None else f"/{config.minutes:g} min"
        return line if loss is None else f"{line}  loss {loss:.4f}"

    def _checkpoint(self) -> None:
        self.journal.flush()
        save_checkpoint(self.folder, self.setup, self.progress, average={})

    def _diverged(self, what: str, value: float, step: int) -> Diverged:
        """What to raise for such a value."""
        return Diverged(
            f"the {what} became {value} at step {step}; lower optimizer.lr or set clip. The "
            "configuration: " + json.dumps(self.setup.config.as_dict())
        )
