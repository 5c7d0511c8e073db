"""What every kind of run does around its loop: open a record, and keep it true to the end."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch

from nanode.block import flows
from nanode.training.checkpoints import last_checkpoint
from nanode.training.config import Settings, differences
from nanode.training.costs import describe
from nanode.training.documents import parse_document, save_config
from nanode.training.environment import now, provenance
from nanode.training.files import named, remove_halves
from nanode.training.journal import Journal
from nanode.training.locks import check_alone, locked
from nanode.training.loop import Diverged
from nanode.training.progress import Clock
from nanode.training.records import THEN, Record

R = TypeVar("R", bound=Record)


class RunLoop(Protocol):
    """A training loop, and what a run asks of it."""

    folder: Path
    journal: Journal
    clock: Clock

    def run(self, saved: Callable[[], object], stop: Callable[[], bool], /) -> bool:
        """Train, telling ``saved`` where the record should be written; false if stopped early."""

    def finish(self) -> Any:
        """Evaluate and write the final weights; returns the record's metrics."""

    def points(self) -> dict[str, Any]:
        """The record's curves so far, by field."""


def run_once(
    kind: type[R],
    config: Settings,
    folder: Path,
    resume: bool,
    train: Callable[[R | None], R],
) -> R:
    """Have ``train`` begin a run or go on from an earlier call's record, with the folder locked.

    A finished run is not repeated, and one that failed is refused; the caller's random state is
    left alone.
    """
    if (over := _over(_earlier_record(kind, config, folder, resume), folder)) is not None:
        return over  # though another process may be measuring it
    check_alone()
    with locked(folder):
        earlier = _earlier_record(kind, config, folder, resume)
        if (over := _over(earlier, folder)) is not None:
            return over
        with torch.random.fork_rng(range(torch.cuda.device_count())):
            return train(earlier)


def check_same(record: Record, config: Settings, folder: Path) -> None:
    """Refuse to go on with what another configuration began."""
    if found := differences(record.config.as_dict(), config.as_dict()):
        failed = record.status == "failed"
        own = "delete it" if failed else "resume with its own configuration"
        words = ", ".join(f"{key} ({values})" for key, values in found.items())
        raise ValueError(
            f"{folder} belongs to another configuration: {words}; {own}, or name another run folder"
        )


def _earlier_record(kind: type[R], config: Settings, folder: Path, resume: bool) -> R | None:
    """The record of a run that a folder already holds, if it may be resumed with ``config``."""
    path = folder / "run.json"
    if not path.exists():
        _check_free(folder, config)
        return None
    if not resume:
        raise ValueError(
            f"{folder} holds a run already; have it resumed (resume=True, --resume), or name "
            "another folder"
        )
    record = kind.load(path)
    check_same(record, config, folder)
    return record


def _check_free(folder: Path, config: Settings) -> None:
    """Refuse a folder without a record that holds what a run would write over, or go on from."""
    if last_checkpoint(folder) is not None:
        raise ValueError(
            f"{folder} holds checkpoints but no run.json, without which nothing can go on from "
            "them; remove the folder checkpoints, or name another run folder"
        )
    path = folder / "config.yaml"
    if not path.exists():
        return
    try:
        other = parse_document(type(config), path.read_text(encoding="utf-8"), str(path))
        same = not differences(other.as_dict(), config.as_dict())
    except ValueError:
        same = False
    if not same:
        raise ValueError(f"{path} is not this run's; move it away, or name another run folder")


def _over(earlier: R | None, folder: Path) -> R | None:
    """The record of a run that is finished; raises at one that failed."""
    if earlier is not None and earlier.status == "failed":
        raise Diverged(
            f"the run in {folder} failed before and would again (delete it to try all the same): "
            f"{earlier.message}"
        )
    return earlier if earlier is not None and earlier.status == "finished" else None


def finished(kind: type[R], folder: Path) -> R:
    """The record of a finished run; raises where it isn't."""
    record = kind.load(folder / "run.json")
    if record.status == "running":
        raise ValueError(
            f"the run in {folder} was interrupted or is still running, expected a finished one; "
            "give its train command again to go on with it"
        )
    if record.status != "finished":
        raise ValueError(f"the run in {folder} is {record.status}, expected a finished one")
    return record


def opened(kind: type[R], setup: Any, earlier: R | None, costs: Callable[[Any], Any]) -> R:
    """The record of a run that begins, or goes on."""
    here = provenance(setup.fabric.device)
    solved = tuple(describe(name, block) for name, block in flows(setup.model).items())
    if earlier is not None:
        return replace(
            earlier,
            config=setup.config,
            commit=_then(earlier.commit, here["commit"]),
            modified=_either(earlier.modified, here["modified"]),
            hardware=earlier.hardware | _both(earlier.hardware, here["hardware"]),
            versions=earlier.versions | _both(earlier.versions, here["versions"]),
            flows=tuple(
                replace(now, gradient=_one_after_the_other(then.gradient, now.gradient))
                for then, now in zip(earlier.flows, solved, strict=True)
            ),
        )
    return kind(
        config=setup.config,
        seed=setup.config.seed,
        flows=solved,
        started=now(),
        costs=costs(setup),
        **here,
    )


#: Of the devices and libraries that two halves of a run had.
_TOLD = ("name", "nanode", "python", "torch", "cuda")


def _both(then: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """What is told of both, where they differ one after the other."""
    return {
        key: _then(*(str(found[key]) for found in (then, now) if key in found))
        for key in _TOLD
        if then.get(key) != now.get(key)
    }


def _then(*told: str | None) -> str | None:
    """What the starts of a run told, each once and in order; None where none told anything.

    >>> _then("a, then b", "a"), _then(None, "b"), _then(None, None)
    ('a, then b', 'unknown, then b', None)
    """
    return _one_after_the_other(*(one or "unknown" for one in told)) if any(told) else None


def _one_after_the_other(*told: str) -> str:
    return THEN.join(dict.fromkeys(part for one in told for part in one.split(THEN)))


def _either(then: bool | None, now: bool | None) -> bool | None:
    """Whether files were modified at any start; None where that is unknown."""
    if then or now:
        return True
    return None if then is None or now is None else False


def carry_out(loop: RunLoop, record: R, stop: Callable[[], bool]) -> R:
    """Run a loop to its end or until it is stopped; the record says how far it came."""
    folder = loop.folder
    folder.mkdir(parents=True, exist_ok=True)
    remove_halves(folder)
    if not (folder / "config.yaml").exists():  # one that was there may have comments
        save_config(record.config, folder / "config.yaml")

    def saved(**changes: Any) -> R:
        known = replace(record, times=loop.clock.times(), **loop.points(), **changes)
        known.save(folder / "run.json")
        return known

    with named(folder), loop.journal:
        saved()
        try:
            if not loop.run(saved, stop):
                return saved()
            metrics = loop.finish()
        except Diverged as why:
            saved(status="failed", message=str(why), ended=now())
            raise
        return saved(status="finished", metrics=metrics, ended=now())
