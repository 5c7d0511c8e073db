"""How far a run is, and how long it took: what a checkpoint keeps beside weights and optimizer."""

import time
from dataclasses import dataclass, field, replace
from typing import Any

from nanode.training.records import Epoch, Times


@dataclass
class Progress:
    """The place in a run and what was found on the way."""

    step: int = 0
    #: The sum of the losses of the current epoch, and how many.
    loss_sum: float = 0.0
    losses: int = 0
    #: The best validation accuracy so far.
    best: float | None = None
    curves: list[Epoch] = field(default_factory=list)

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> "Progress":
        """What ``asdict`` was taken of."""
        return cls(**state | {"curves": [Epoch(**point) for point in state["curves"]]})


class Clock:
    """Times a start of a run: its first step, then stretches of steps between looks at the losses.

    Reading a loss makes a GPU finish its work, so a stretch that ends with one is timed truly.
    """

    def __init__(self, earlier: Times, batch_size: int) -> None:
        self._times = replace(earlier, starts=earlier.starts + 1)
        self._batch_size = batch_size
        self._opened = self._since = time.perf_counter()
        #: Whether the first step is still to come.
        self.first = True

    @property
    def running(self) -> float:
        """Seconds since the current stretch began; a GPU may be behind."""
        return time.perf_counter() - self._since

    def start(self) -> None:
        """A stretch of steps begins."""
        self._since = time.perf_counter()

    def stop(self, steps: int) -> float:
        """So many steps were finished since ``start``; the next stretch begins.

        Returns the seconds that they took.
        """
        now = time.perf_counter()
        spent, self._since = now - self._since, now
        known = self._times
        if self.first:
            self.first = False
            self._times = replace(known, first_steps=known.first_steps + spent)
        else:
            self._times = replace(known, steps=known.steps + spent, counted=known.counted + steps)
        return spent

    def times(self) -> Times:
        """All starts so far."""
        known = self._times
        images = known.counted * self._batch_size
        return replace(
            known,
            total=known.total + time.perf_counter() - self._opened,
            images_per_second=images / known.steps if known.counted else None,
        )
