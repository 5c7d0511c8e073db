"""Carries out planned runs, one after the other, over as many calls as it takes.

All state is in the run folders: a call looks at their records, skips what is over, goes on where a
checkpoint is, and begins the rest. So it may be interrupted anywhere and called again.
"""

import gc
import shutil
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch

from nanode.analysis.drawing import new_figure
from nanode.experiments.measurements import FILM, MEASUREMENTS, measure
from nanode.experiments.plan import Experiment, Options, Planned, changed
from nanode.training import Diverged, RunRecord, TrainConfig, train
from nanode.training.checkpoints import Unreadable, last_checkpoint
from nanode.training.locks import Busy, locked
from nanode.training.recording import check_same
from nanode.training.setup import load_data
from nanode.training.video import VideoConfig, VideoRecord, train_video
from nanode.training.video.setup import load_clips

#: What a run that is over doesn't need any more; its record and its journal stay.
LARGE = ("checkpoints", "best.safetensors", "final.safetensors")
#: Give up once runs of so many different models in a row broke off: the device is probably in a bad
#: state. A single model may just be too large, on every data set.
HOPELESS = 2


class BrokenOff(RuntimeError):
    """Runs that stopped at an error; all that could be carried out was."""


@dataclass(frozen=True)
class Outcome:
    """A planned run that is over, finished or failed."""

    planned: Planned
    record: RunRecord | VideoRecord
    #: Whether it ended in this call, not in an earlier one.
    new: bool


def reproduce(
    experiment: Experiment,
    root: Path,
    options: Options,
    *,
    minutes: float | None = None,
    overrides: Mapping[str, Any] | None = None,
    prune: bool = False,
    only: Iterable[str] = (),
    asked: Callable[[], bool] = lambda: False,
    trained: Callable[[], object] = lambda: None,
) -> Iterator[Outcome]:
    """Carry out an experiment, planning anew whenever finished runs have decided a choice.

    A run that breaks off doesn't keep others from being planned, and isn't tried twice in a call;
    one that another process is at is passed over.
    Once ``asked()`` is true, all stops as after ``minutes``. ``trained`` is called before a run
    that was trained is measured, which may take long.
    """
    late, patterns = until(minutes), tuple(only)
    ended, broken = set[str](), dict[str, str]()

    def stop() -> bool:
        return asked() or late()

    while True:
        planned = [
            replace(run, config=changed(run.config, overrides or {}))
            for run in experiment.plan(options, root)
            if run.name not in ended | set(broken) and matches(run.name, patterns)
        ]
        before = len(ended)
        for outcome in _outcomes(planned, root, stop, broken, trained):
            ended.add(outcome.planned.name)
            if prune:
                remove_large(root / outcome.planned.name)
            yield outcome
        if len(ended) == before or stop():
            break
    _complain(broken)


def check_figures(experiment: Experiment) -> None:
    """Say how to get matplotlib where it is missing and the report of an experiment draws."""
    if experiment.draws:
        new_figure(1, 1)


def _outcomes(
    runs: Sequence[Planned],
    root: Path,
    stop: Callable[[], bool],
    broken: dict[str, str],
    trained: Callable[[], object],
) -> Iterator[Outcome]:
    """Carry out planned runs until all are over, or until ``stop()`` is true.

    Those that break off are noted in ``broken``, with the reason.
    """
    # All folders and data are looked at first: what doesn't fit shows before anything is trained.
    ended = {run.name for run in runs if over(run, root)}
    if not stop():
        _read_data([run.config for run in runs if run.name not in ended])
    in_a_row: set[str] = set()
    record: RunRecord | VideoRecord | None
    for run in runs:
        # Looked at again: another process may have ended it by now.
        folder, new = root / run.name, not over(run, root)
        if new and stop():
            continue
        try:
            record = _carry_out(run, root, stop, trained) if new else load_record(run, folder)
        except Busy as why:
            print(f"passed over: {why}", file=sys.stderr)
            continue
        except Unreadable as why:
            print(f"{run.name}: {why}", file=sys.stderr)
            broken[run.name] = str(why)
            continue  # which says nothing of the device, so it isn't one in a row
        except (ValueError, OSError, ImportError):
            raise  # settings, data, disks, extras: the same for all that would follow
        except Exception as why:
            # Too little memory on the device or a kernel that it can't hold, say: other runs may
            # fit. Only words are kept of it, since its traceback would keep tensors alive.
            traceback.print_exc()
            broken[run.name] = f"{type(why).__name__}: {str(why)[:300]}"
            record = None
        if record is None:
            in_a_row.add(run.config.model)
            if len(in_a_row) == HOPELESS:
                _complain(broken, "; the rest was not tried")
            continue
        if new:
            in_a_row.clear()
        if new and not over(run, root):  # stopped while it was trained, or before it was measured
            continue
        yield Outcome(run, record, new)


def _read_data(configs: Iterable[TrainConfig | VideoConfig]) -> None:
    """Have every data set once, each fetched if it is missing."""
    for config in {(c.data, c.data_root): c for c in configs}.values():
        if isinstance(config, VideoConfig):
            load_clips(config, torch.device("cpu"))
        else:
            load_data(config)


def _complain(broken: Mapping[str, str], more: str = "") -> None:
    if broken:
        words = "; ".join(f"{name} ({why})" for name, why in broken.items())
        raise BrokenOff(f"these runs broke off{more}; call again to resume: {words}")


def over(run: Planned, root: Path) -> bool:
    """Whether a planned run has ended, all measurements included.

    Raises if its folder holds a run of another configuration.
    """
    folder = root / run.name
    path = folder / "run.json"
    if not path.exists():
        return False
    try:
        record = load_record(run, folder)
    except ValueError:
        if not path.exists():  # another process begins it anew
            return False
        raise
    check_same(record, run.config, folder)
    if record.status == "finished":
        return not run.unmeasured(root)
    return record.status == "failed"


def load_record(run: Planned, folder: Path) -> RunRecord | VideoRecord:
    """The record in a planned run's folder."""
    return run.kind.load(folder / "run.json")


def matches(name: str, patterns: Sequence[str]) -> bool:
    """Whether a run's name fits one of the patterns; with no pattern, any does."""
    return not patterns or any(fnmatchcase(name, pattern) for pattern in patterns)


def until(minutes: float | None) -> Callable[[], bool]:
    """Says true once so many minutes are over."""
    if minutes is None:
        return lambda: False
    if not minutes > 0:
        raise ValueError(f"minutes must be above 0, got {minutes!r}")
    end = time.monotonic() + 60 * minutes
    return lambda: time.monotonic() >= end


def remove_large(folder: Path) -> None:
    """Remove the weights and checkpoints of a run that is over."""
    for name in LARGE:
        path = folder / name
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)  # another process may be at it too
        else:
            path.unlink(missing_ok=True)


def _carry_out(
    run: Planned, root: Path, stop: Callable[[], bool], trained: Callable[[], object]
) -> RunRecord | VideoRecord:
    """Train a run and measure it."""
    folder = root / run.name
    record: RunRecord | VideoRecord
    with locked(folder):
        if over(run, root):  # by another process, just now
            return load_record(run, folder)
        _clear(run, folder)
        _free_memory()
        try:
            if isinstance(run.config, VideoConfig):
                record = train_video(run.config, folder, stop=stop)
            else:
                record = train(run.config, folder, stop=stop)
        except Diverged:
            return load_record(run, folder)
        if record.status == "finished" and run.measure is not None:
            trained()
            if not stop():
                _free_memory()
                measure(run.measure, folder)
        return record


def _clear(run: Planned, folder: Path) -> None:
    """Remove what an earlier start left, unless it can be gone on with; the folder is locked.

    A record without its checkpoint would lend commit and hardware to a run that begins anew, and
    one without its final weights can't be measured any more; weights without a record are nobody's.
    """
    path = folder / "run.json"
    if path.exists():
        running = load_record(run, folder).status == "running"
        if last_checkpoint(folder) if running else (folder / "final.safetensors").exists():
            return
        path.unlink()
    remove_large(folder)
    for name in (*(f"{name}.json" for name in MEASUREMENTS), FILM):  # of the weights that are gone
        (folder / name).unlink(missing_ok=True)


def _free_memory() -> None:
    """Give back what an earlier run's model and captured graphs still hold."""
    torch.compiler.reset()  # compiled code, which is also made for a few models only
    gc.collect()  # cycles
    torch.cuda.empty_cache()
