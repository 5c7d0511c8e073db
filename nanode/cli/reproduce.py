"""``nanode reproduce``: the paper's tables and figures by name."""

from contextlib import suppress
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from nanode.data import DataError
from nanode.experiments import EXPERIMENTS, Options, Outcome, over, reproduce
from nanode.experiments.execution import BrokenOff, check_figures
from nanode.experiments.plan import Experiment
from nanode.interrupts import GOES_ON, asked_to_stop
from nanode.training.files import check_writable
from nanode.training.video import VideoRecord
from nanode.values import check_choice


def command(
    name: str | None = None,
    /,
    *,
    data: Annotated[tuple[str, ...], Parameter(consume_multiple=True)] = Options.data,
    seeds: int = Options.seeds,
    budget: str = Options.budget,
    root: Path = Path("runs"),
    out: Path | None = None,
    data_root: str | None = None,
    minutes: float | None = None,
    report_only: bool = False,
) -> None:
    """Carry out an experiment of the paper and report on it.

    Parameters
    ----------
    name
        The experiment; without a name all are listed.
    data
        One or more data sets for the tables of images; their figures are on CIFAR-10.
    seeds
        How many runs there are of each row of a table; figures of images and some rows have one
        unless the budget is full.
    budget
        short, full, or tiny (a minute or two on a CPU, on the digits that come with the package).
    root
        The folder for the folders of the runs. What is over there is not repeated, and what was
        interrupted goes on: the same command may be given again and again.
    out
        The folder for the report; by default ``report`` in the folder of the runs.
    data_root
        The folder of the data sets; by default the one that NANODE_DATA names, or the user's cache.
    minutes
        Stop after so long; what is there so far is reported.
    report_only
        Train and measure nothing: report on what is there.
    """
    if name is None:
        for known, about in EXPERIMENTS.items():
            print(f"{known:20} {about.summary}")
        return
    check_choice("the experiment", name, EXPERIMENTS)
    experiment = EXPERIMENTS[name]
    options = Options(tuple(data), seeds, budget, data_root, measure=not report_only)
    out = root / "report" if out is None else out
    for folder in (out,) if report_only else (root, out):
        check_writable(folder)
    check_figures(experiment)  # else a missing matplotlib would show once all is trained
    broken: Exception | None = None
    with asked_to_stop() as asked:
        try:
            runs = reproduce(experiment, root, options, minutes=minutes, asked=asked)
            for outcome in () if report_only else runs:
                if outcome.new:
                    print(_line(outcome), flush=True)
        except (BrokenOff, DataError, OSError) as why:  # what is there is reported all the same
            broken = why
    _report(experiment, root, out, options)
    if broken is not None:
        raise broken
    if asked():
        raise KeyboardInterrupt(GOES_ON)


def _report(experiment: Experiment, root: Path, out: Path, options: Options) -> None:
    """Write and print the report, and say how many runs are still to come."""
    for path in experiment.report(root, out, options):
        if path.suffix == ".md":
            print(f"\n{path.read_text(encoding='utf-8')}")
        print(path)
    left = 0
    for run in experiment.plan(options, root):
        with suppress(ValueError):  # by other settings than are planned now, which the page says
            left += not over(run, root)
    if left:
        print(f"\nRuns still to come: {left}. Give the same command again to go on.")


def _line(outcome: Outcome) -> str:
    record = outcome.record
    shown = f"{outcome.planned.name}  {record.status} after {record.times.total:.0f} s"
    if isinstance(record, VideoRecord):
        metrics = record.metrics
        return shown if metrics is None else f"{shown}  test loss {metrics.test.loss_sum:.5f}"
    if record.metrics is not None:
        for split in ("validation", "test"):
            accuracy = getattr(record.metrics, f"{split}_accuracy")
            shown += "" if accuracy is None else f"  {split} {accuracy:.2%}"
    return shown
