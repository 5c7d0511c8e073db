"""What every kind of run does around its loop: open a record, and keep it true to the end."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

from nanode.block import flows
from nanode.training.checkpoints import earlier_record
from nanode.training.config import Settings
from nanode.training.costs import describe
from nanode.training.documents import save_config
from nanode.training.environment import commit, hardware, now, versions
from nanode.training.files import check_writable, remove_halves
from nanode.training.journal import Journal
from nanode.training.loop import Diverged
from nanode.training.progress import Clock
from nanode.training.records import Record

R = TypeVar("R", bound=Record)
L = TypeVar("L", bound="Runs")


class Runs(Protocol):
    """A training loop; ``run`` is false where it was stopped before its end."""

    clock: Clock

    def run(self, saved: Callable[[], object], stop: Callable[[], bool], /) -> bool:
        """Train, telling ``saved`` where the record should be written."""


def begun(kind: type[R], config: Settings, folder: Path, resume: bool) -> R | None:
    """The record of an earlier call; raises where a run there failed, or can't be gone on with."""
    check_writable(folder)
    earlier = earlier_record(kind, config, folder, resume)
    if earlier is not None and earlier.status == "failed":
        raise Diverged(
            f"the run in {folder} failed before and would again (delete it to try all the same): "
            f"{earlier.message}"
        )
    return earlier


def opened(kind: type[R], setup: Any, earlier: R | None, costs: Callable[[Any], Any]) -> R:
    """The record of a run that begins, or goes on."""
    at, modified = commit()
    if earlier is not None:
        # What goes on at another commit isn't that of the first: its files differ.
        differs = True if at != earlier.commit else earlier.modified or modified
        return replace(
            earlier,
            config=setup.config,
            modified=differs,
            hardware=earlier.hardware | _both(earlier.hardware, hardware(setup.fabric.device)),
            versions=earlier.versions | _both(earlier.versions, versions()),
        )
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


#: Of the devices and libraries that two halves of a run had.
_TOLD = ("name", "nanode", "python", "torch", "cuda")


def _both(then: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """What is told of both, where they differ one after the other."""
    return {
        key: ", then ".join(dict.fromkeys(str(found[key]) for found in (then, now) if key in found))
        for key in _TOLD
        if then.get(key) != now.get(key)
    }


def carry_out(
    folder: Path,
    record: R,
    step: int,
    make_loop: Callable[[Journal], L],
    curves: Callable[[], dict[str, Any]],
    finish: Callable[[L], Any],
    stop: Callable[[], bool],
) -> R:
    """Run a loop from a step to its end or until it is stopped; the record says how far it came."""
    config = record.config
    folder.mkdir(parents=True, exist_ok=True)
    remove_halves(folder)
    save_config(config, folder / "config.yaml")
    with Journal(folder, step, tensorboard=config.tensorboard, progress=config.progress) as journal:
        loop = make_loop(journal)

        def saved(**changes: Any) -> R:
            known = replace(record, times=loop.clock.times(), **curves(), **changes)
            known.save(folder / "run.json")
            return known

        saved()
        try:
            if not loop.run(saved, stop):
                return saved()
            metrics = finish(loop)
        except Diverged as why:
            saved(status="failed", message=str(why), ended=now())
            raise
        return saved(status="finished", metrics=metrics, ended=now())
