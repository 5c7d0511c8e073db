"""The experiments without the command line's dependencies: ``python -m nanode.experiments``."""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from nanode.experiments import EXPERIMENTS, Options, Outcome, Planned, over, reproduce
from nanode.experiments.archive import check_target, restore, write_records, write_unfinished
from nanode.experiments.execution import BrokenOff, check_figures, load_record, matches
from nanode.experiments.plan import BUDGETS, DATA, changed
from nanode.interrupts import GOES_ON, asked_to_stop, print_anything, unread
from nanode.training.documents import read_value
from nanode.training.video import VideoMetrics


def main(arguments: Sequence[str] | None = None) -> int:
    """Carry out an experiment, or list its runs, or report on them."""
    print_anything()
    given = _parser().parse_args(arguments)
    try:
        with asked_to_stop() as asked:
            _act(given, asked)
            if asked():
                raise KeyboardInterrupt
        print(end="", flush=True)  # else what is left would be found unwanted at the very end
    except (OSError, ValueError, ImportError) as why:
        if isinstance(why, BrokenPipeError) and unread():
            return 141
        print(f"error: {why}", file=sys.stderr)
        return 2
    except BrokenOff as why:  # tracebacks were printed as it happened
        print(f"error: {why}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(GOES_ON, file=sys.stderr)
        return 130
    return 0


def _act(given: argparse.Namespace, asked: Callable[[], bool]) -> None:
    experiment = EXPERIMENTS[given.experiment]
    options = _options(given)
    root = given.root
    if given.report:
        check_figures(experiment)
    _restore(given, root)
    planned = experiment.plan(options, root)
    if not planned and not given.report:
        print(f"{given.experiment} trains nothing; --report FOLDER makes its page", file=sys.stderr)
    elif given.only and not any(matches(run.name, given.only) for run in planned):
        # No error: runs that are planned once others are over may still be meant.
        print(f"no run planned so far matches {' '.join(given.only)}", file=sys.stderr)
    if given.list:
        for run in planned:
            if matches(run.name, given.only):
                meant = replace(run, config=changed(run.config, dict(given.set)))
                print(f"{_status(meant, root):8}  {run.name}")
        return
    try:
        if given.report:
            for path in experiment.report(root, given.report, options):
                print(path)
            return
        for outcome in reproduce(
            experiment,
            root,
            options,
            minutes=given.minutes,
            overrides=dict(given.set),
            prune=given.prune,
            only=given.only,
            asked=asked,
            trained=lambda: _archive(given, root),
        ):
            if outcome.new:
                print(json.dumps(_line(outcome)), flush=True)
                _archive(given, root)
    finally:  # whatever happened: what is over is worth keeping
        _archive(given, root)


def _restore(given: argparse.Namespace, root: Path) -> None:
    """Unpack the archives named, and those to be written anew, so that nothing in them is lost."""
    if given.archive_checkpoints and given.archive is None:
        raise ValueError("--archive-checkpoints writes beside --archive FILE.tar.gz; name that too")
    if given.archive is not None:
        check_target(given.archive)
    own = [path for path in _archives(given) if path.exists()]
    for path in dict.fromkeys([*given.restore, *own]):
        print(f"taken from {path}: {len(restore(path, root))} runs", file=sys.stderr)


def _archives(given: argparse.Namespace) -> list[Path]:
    """The archive of all records, and that of unfinished runs; those that were asked for."""
    if given.archive is None:
        return []
    name = given.archive.name.removesuffix(".tar.gz")
    other = given.archive.with_name(f"{name}-unfinished.tar.gz")
    return [given.archive, other] if given.archive_checkpoints else [given.archive]


def _archive(given: argparse.Namespace, root: Path) -> None:
    match _archives(given):
        case [records, *others]:
            write_records(records, root)
            for path in others:
                write_unfinished(path, root, _unmeasured(given, root))


def _unmeasured(given: argparse.Namespace, root: Path) -> set[str]:
    """Runs of any experiment that may be trained, but have a measurement still to come."""
    options = _options(given)
    planned = (run for experiment in EXPERIMENTS.values() for run in experiment.plan(options, root))
    return {run.name for run in planned if run.unmeasured(root)}


def _options(given: argparse.Namespace) -> Options:
    return Options(tuple(given.data), given.seeds, given.budget, given.data_root)


def _status(run: Planned, root: Path) -> str:
    """Whether a planned run is done, failed, begun or open."""
    if over(run, root):
        return "failed" if load_record(run, root / run.name).status == "failed" else "done"
    return "begun" if (root / run.name / "run.json").exists() else "open"


def _line(outcome: Outcome) -> dict[str, Any]:
    record, metrics = outcome.record, outcome.record.metrics
    found: dict[str, Any]
    if isinstance(metrics, VideoMetrics):
        found = {"steps": metrics.steps, "test_loss": metrics.test.loss_sum}
        found |= {"best_train_loss": metrics.best_train.elbo.loss_sum}
    else:
        keys = ("validation_accuracy", "test_accuracy")
        found = {key: None if metrics is None else getattr(metrics, key) for key in keys}
    return {
        "name": outcome.planned.name,
        "status": record.status,
        **found,
        "seconds": round(record.times.total, 1),
        "images_per_second": record.times.images_per_second,
        "message": None if record.message is None else record.message[:200],
    }


def _path(text: str) -> Path:
    """A path; an empty text, which ``Path`` would take for the current folder, is none."""
    if not text:
        raise argparse.ArgumentTypeError("it is empty; name a path (. is the current folder)")
    return Path(text)


def _setting(text: str) -> tuple[str, Any]:
    """``key=value``, the value as in a YAML file."""
    key, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"expected key=value, got {text!r}")
    return key, read_value(value)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m nanode.experiments", description=__doc__)
    parser.add_argument("experiment", choices=list(EXPERIMENTS))
    parser.add_argument("--root", type=_path, required=True, help="where run folders are")
    parser.add_argument("--data", nargs="+", default=list(DATA), choices=DATA)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--budget", default="short", choices=BUDGETS)
    parser.add_argument("--data-root", help="where data sets are")
    parser.add_argument("--minutes", type=float, help="stop, resumably, after so long")
    several: dict[str, Any] = {"nargs": "+", "default": [], "action": "extend"}
    parser.add_argument("--only", **several, metavar="PATTERN", help="runs by name")
    parser.add_argument("--set", **several, type=_setting, metavar="KEY=VALUE")
    parser.add_argument("--prune", action="store_true", help="keep no weights of runs that ended")
    parser.add_argument(
        "--archive",
        type=_path,
        metavar="FILE.tar.gz",
        help="write all records there after each run and at the end, without weights; a file that "
        "is there already is unpacked below the root first",
    )
    parser.add_argument(
        "--archive-checkpoints",
        action="store_true",
        help="write runs that aren't over, with checkpoints, to FILE-unfinished.tar.gz",
    )
    parser.add_argument(
        "--restore",
        **several,
        type=_path,
        metavar="FILE.tar.gz",
        help="first unpack such archives below the root; runs that are further there stay",
    )
    parser.add_argument("--list", action="store_true", help="print the runs and which are done")
    report = "write tables and figures there"
    parser.add_argument("--report", type=_path, metavar="FOLDER", help=report)
    return parser


if __name__ == "__main__":
    sys.exit(main())
