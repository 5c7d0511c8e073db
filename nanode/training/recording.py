"""What every kind of run does around its loop: open a record, and keep it true to the end."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

from nanode.training.costs import describe, flows
from nanode.training.environment import commit, hardware, now, versions
from nanode.training.loop import Diverged
from nanode.training.progress import Clock
from nanode.training.records import Record

R = TypeVar("R", bound=Record)


class Runs(Protocol):
    """A training loop; ``run`` is false where it was stopped before its end."""

    folder: Path
    clock: Clock

    def run(self, saved: Callable[[], object], stop: Callable[[], bool], /) -> bool:
        """Train, telling ``saved`` where the record should be written."""


def opened(kind: type[R], setup: Any, earlier: R | None, costs: Callable[[Any], Any]) -> R:
    """The record of a run that begins, or goes on."""
    if earlier is not None:
        return replace(earlier, config=setup.config)
    at, modified = commit()
    return kind(
        config=setup.config,
        seed=setup.config.seed,
        commit=at,
        modified=modified,
        versions=versions(),
        hardware=hardware(setup.fabric.device),
        flows=tuple(describe(name, block) for name, block in flows(setup.model).items()),
        started=now(),
        costs=costs(setup),
    )


def carry_out(
    loop: Runs,
    record: R,
    curves: Callable[[], dict[str, Any]],
    finish: Callable[[], Any],
    stop: Callable[[], bool],
) -> R:
    """Run a loop to its end, or until it is stopped; the record says how far it came."""

    def saved(**changes: Any) -> R:
        known = replace(record, times=loop.clock.times(), **curves(), **changes)
        known.save(loop.folder / "run.json")
        return known

    saved()
    try:
        if not loop.run(saved, stop):
            return saved()
        metrics = finish()
    except Diverged as why:
        saved(status="failed", message=str(why), ended=now())
        raise
    return saved(status="finished", metrics=metrics, ended=now())
