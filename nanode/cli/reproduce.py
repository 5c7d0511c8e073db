"""``nanode reproduce``: the paper's tables and figures by name."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from nanode.experiments import EXPERIMENTS, Options, Outcome, over, reproduce
from nanode.training.values import check_choice
from nanode.training.video import VideoRecord


def command(
    name: str | None = None,
    /,
    *,
    data: Annotated[tuple[str, ...], Parameter(consume_multiple=True)] = Options.data,
    seeds: int = Options.seeds,
    budget: str = Options.budget,
    root: Path = Path("runs"),
    out: Path = Path("results"),
    data_root: str | None = None,
    minutes: float | None = None,
) -> None:
    """Carry out an experiment of the paper and report on it.

    Parameters
    ----------
    name
        The experiment; without a name all are listed.
    data
        One or more data sets.
    seeds
        How many runs there are of each row of the paper.
    budget
        short, full, or tiny (seconds on a CPU, on the digits that come with the package).
    root
        The folder for the folders of the runs. What is over there is not repeated, and what was
        interrupted goes on: the same command may be given again and again.
    out
        The folder for the report.
    data_root
        The folder of the data sets; by default the one that NANODE_DATA names, or the user's cache.
    minutes
        Stop after so long; what is there so far is reported.
    """
    if name is None:
        for known, about in EXPERIMENTS.items():
            print(f"{known:20} {about.summary}")
        return
    check_choice("the experiment", name, EXPERIMENTS)
    experiment, options = EXPERIMENTS[name], Options(tuple(data), seeds, budget, data_root)
    for outcome in reproduce(experiment, root, options, minutes=minutes):
        if outcome.new:
            print(_line(outcome), flush=True)
    for path in experiment.report(root, out, options):
        if path.suffix == ".md":
            print(f"\n{path.read_text(encoding='utf-8')}")
        print(path)
    left = [run.name for run in experiment.plan(options, root) if not over(run, root)]
    if left:
        print(f"\nRuns still to come: {len(left)}. Give the same command again to go on.")


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
