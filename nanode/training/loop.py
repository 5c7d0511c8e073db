"""The training loop, one step after the other."""

import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from nanode.data.batches import stream
from nanode.data.mixing import Mixed, cutmix
from nanode.training.calibration import kept_statistics
from nanode.training.checkpoints import load_weights, save_checkpoint, save_weights
from nanode.training.evaluation import Score
from nanode.training.journal import Journal
from nanode.training.optimizers import set_rate, take_step
from nanode.training.progress import Clock, Progress
from nanode.training.records import Epoch, Metrics
from nanode.training.schedules import rate
from nanode.training.setup import Setup, penalty

#: Batches from which norms have their statistics for a look at held-out images between epochs.
LOOKED_AT = 4
#: An epoch that ends so soon after a checkpoint writes none: they take a tenth of a second or two.
SECONDS_APART = 20.0


class Diverged(RuntimeError):
    """A loss that is no finite number: the run can't go on."""


class Loop:
    """Takes a setup through its epochs, from wherever it is."""

    def __init__(self, setup: Setup, folder: Path, clock: Clock, progress: Progress) -> None:
        self.setup, self.folder, self.clock, self.progress = setup, folder, clock, progress
        shown = {"tensorboard": setup.config.tensorboard, "progress": setup.config.progress}
        self.journal = Journal(folder, progress.step, **shown)
        #: Losses and rates of the steps since the last look, still on the device.
        self._unread: list[tuple[Tensor, float]] = []
        #: When the last checkpoint was written, and at which step.
        self._saved = -math.inf, progress.step

    def run(self, saved: Callable[[], object], stop: Callable[[], bool]) -> bool:
        """Train to the end; ``saved`` is called once an epoch has been looked at.

        As soon as ``stop()`` is true, at most a step later, a checkpoint is written and the result
        is False.
        """
        setup, progress = self.setup, self.progress
        every = setup.config.checkpoint_every
        setup.model.train()
        while setup.batches.epoch < setup.config.epochs:
            if stop():
                if self._saved[1] != progress.step:
                    self._checkpoint()
                return False
            self.clock.start()
            for images, labels in setup.batches:
                self._unread.append(self._step(images, labels))
                progress.step += 1
                if len(self._unread) >= setup.config.log_every or self.clock.first:
                    self._read()
                inside = setup.batches.position < len(setup.batches)
                stopping = inside and stop()
                if stopping or (every and inside and progress.step % every == 0):
                    self._read()
                    self._checkpoint()
                    self.clock.start()
                if stopping:
                    return False
            self._read()
            self._end_epoch()
            saved()
        return True

    def finish(self) -> Metrics:
        """Final weights, their norm statistics and their metrics; the test images are read here."""
        setup, config = self.setup, self.setup.config
        with setup.averaged():
            if config.select == "best":
                load_weights(self.folder / "best.safetensors", setup.model)
            setup.calibrate()
            metrics: dict[str, float] = {}
            tested = setup.data.test if config.test else None
            for split, images in (("validation", setup.data.validation), ("test", tested)):
                if images is not None:
                    found = setup.score(images)
                    if not math.isfinite(found.loss):
                        raise self._diverged(f"{split} loss", found.loss, self.progress.step)
                    metrics |= {f"{split}_loss": found.loss, f"{split}_accuracy": found.accuracy}
            self._save("final", epoch=setup.batches.epoch)
        return Metrics(**metrics)

    def points(self) -> dict[str, tuple[Epoch, ...]]:
        """The record's curves so far, by field."""
        return {"curves": tuple(self.progress.curves)}

    def _step(self, images: Tensor, labels: Tensor) -> tuple[Tensor, float]:
        """One step of the optimizer; returns its loss, not read yet, and its learning rate."""
        setup, config = self.setup, self.setup.config
        lr = config.optimizer.lr * rate(config.schedule, self.progress.step, setup.steps)
        set_rate(setup.optimizer, lr)
        # Not through Fabric's wrapper of the model, which would round the images to bfloat16: a
        # flow on them would have a state of that precision.
        batch = self._mixed(images, labels)
        with setup.fabric.autocast():
            logits = setup.forward(batch.images)
        loss = self._loss(logits.float(), batch)
        total = loss + penalty(config.penalty, setup.model) if config.penalty.weight else loss
        take_step(setup.fabric, setup.model, setup.optimizer, total, config.clip)
        if setup.average is not None:
            setup.average.update()
        return loss.detach(), lr

    def _mixed(self, images: Tensor, labels: Tensor) -> Mixed:
        """The batch as it is, or with boxes of other images in it."""
        config, batches = self.setup.config, self.setup.batches
        if config.augment.cutmix:
            # A function of seed and step, like all that is random about batches.
            chance = stream(config.seed, batches.epoch, f"cutmix {batches.position}")
            if torch.rand((), generator=chance, device="cpu").item() < config.augment.cutmix:
                return cutmix(images, labels, chance)
        return Mixed(images, labels, labels, share=0.0)

    def _loss(self, logits: Tensor, batch: Mixed) -> Tensor:
        smoothing = self.setup.config.label_smoothing
        loss = F.cross_entropy(logits, batch.labels, label_smoothing=smoothing)
        if batch.share:
            other = F.cross_entropy(logits, batch.others, label_smoothing=smoothing)
            loss = (1 - batch.share) * loss + batch.share * other
        return loss

    def _read(self) -> None:
        """Look at the losses of the steps since the last look: a GPU waits here."""
        if not self._unread:
            return
        losses = torch.stack([loss for loss, _ in self._unread]).tolist()
        self.clock.stop(len(losses))
        first = self.progress.step - len(losses) + 1
        for step, (loss, (_, lr)) in enumerate(zip(losses, self._unread, strict=True), first):
            if not math.isfinite(loss):
                raise self._diverged("training loss", loss, step, lr)
            self.journal.write(step, loss=loss, lr=lr)
            self.progress.loss_sum += loss
            self.progress.losses += 1
        self._unread.clear()
        self.journal.show(self._line(losses[-1]))

    def _line(self, loss: float) -> str:
        setup, speed = self.setup, self.clock.times().images_per_second
        epoch = min(setup.batches.epoch + 1, setup.config.epochs)
        line = f"epoch {epoch}/{setup.config.epochs}  step {self.progress.step}/{setup.steps}"
        line += f"  loss {loss:.4f}"
        return line if speed is None else f"{line}  {speed:,.0f} images/s"

    def _end_epoch(self) -> None:
        setup, progress = self.setup, self.progress
        mean = progress.loss_sum / max(progress.losses, 1)
        found: Score | None = None
        if setup.data.validation is not None:
            with setup.averaged(), kept_statistics(setup.model):
                if setup.average is not None:  # the running statistics are of other weights
                    setup.calibrate(at_most=LOOKED_AT)
                found = setup.score(setup.data.validation)
                if not math.isfinite(found.loss):
                    raise self._diverged("validation loss", found.loss, progress.step)
                if progress.best is None or found.accuracy > progress.best:
                    progress.best = found.accuracy
                    notes = {"epoch": setup.batches.epoch, "accuracy": found.accuracy}
                    self._save("best", **notes)
        point = Epoch(
            epoch=setup.batches.epoch,
            step=progress.step,
            train_loss=mean,
            validation_loss=None if found is None else found.loss,
            validation_accuracy=None if found is None else found.accuracy,
        )
        progress.curves.append(point)
        progress.loss_sum, progress.losses = 0.0, 0
        known = {key: value for key, value in asdict(point).items() if value is not None}
        self.journal.write(**known)
        last = setup.batches.epoch == setup.config.epochs
        if last or time.monotonic() - self._saved[0] >= SECONDS_APART:
            self._checkpoint()
        line = f"epoch {point.epoch}/{setup.config.epochs}  train loss {mean:.4f}"
        if found is not None:
            line += f"  validation {found.loss:.4f}, {found.accuracy:.2%}"
        self.journal.show(line, done=True)

    def _save(self, name: str, **notes: object) -> None:
        """Write the model as it is now, under a name."""
        data = self.setup.data
        shape = {"channels": data.shape[0], "classes": len(data.classes)}
        path = self.folder / f"{name}.safetensors"
        save_weights(path, self.setup.model.state_dict(), **shape, **notes)

    def _checkpoint(self) -> None:
        setup, average = self.setup, self.setup.average
        self.journal.flush()
        save_checkpoint(
            self.folder,
            setup,
            self.progress,
            average={} if average is None else average.state(),
            batches=setup.batches.state_dict(),
            updates=0 if average is None else average.updates,
        )
        self._saved = time.monotonic(), self.progress.step

    def _diverged(self, what: str, value: float, step: int, lr: float | None = None) -> Diverged:
        """What to raise for such a value."""
        config = self.setup.config
        return Diverged(
            f"the {what} became {value} at step {step} of {self.setup.steps}"
            + (f", at learning rate {lr:.3g}" if lr is not None else "")
            + "; lower optimizer.lr, set clip, or lengthen schedule.warmup. The configuration: "
            + json.dumps(config.as_dict())
        )
