"""What an experiment is: a list of planned runs, and a report on their records."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol, TypeVar

from nanode.experiments.measurements import measured
from nanode.models.rows import buckets_of
from nanode.reports.records import find_record_of
from nanode.training import RunRecord, TrainConfig, recipe
from nanode.training.config import Settings, differences
from nanode.training.documents import from_mapping, put
from nanode.training.video import VideoConfig, VideoRecord
from nanode.values import check_choice, checked_count

C = TypeVar("C", bound=Settings)

BUDGETS = ("short", "full", "tiny")
DATA = ("cifar10", "cifar100")


@dataclass(frozen=True)
class Planned:
    """A run to come: its folder below a root, and its configuration."""

    name: str
    config: TrainConfig | VideoConfig
    #: What is measured on the final weights once the run is over: a name in ``MEASUREMENTS``.
    measure: str | None = None

    @property
    def kind(self) -> type[RunRecord] | type[VideoRecord]:
        """What its record is."""
        return VideoRecord if isinstance(self.config, VideoConfig) else RunRecord

    @property
    def row(self) -> str:
        """Where the runs of all its seeds are, a folder each."""
        return self.name.rpartition("/")[0]

    def unmeasured(self, root: Path) -> bool:
        """Whether what is to be measured on its weights below a root wasn't yet."""
        return self.measure is not None and measured(self.measure, root / self.name) is None

    def differs(self, record: RunRecord | VideoRecord) -> list[str]:
        """The settings that decide results and that a record doesn't share with the plan."""
        return list(differences(record.config.as_dict(), self.config.as_dict()))


@dataclass(frozen=True)
class Options:
    """What a user chooses about an experiment.

    ``tiny`` plans the same runs in seconds on a CPU, on the digits that come with the package;
    ``full`` plans all that ``short`` does, under the same names, and more; of video it plans longer
    runs, under other names.

    >>> Options(budget="tiny").sets
    ('digits',)
    >>> Options(data=("cifar",))
    Traceback (most recent call last):
    ValueError: data must be one of cifar10, cifar100; got 'cifar'. Did you mean 'cifar10'?
    """

    data: tuple[str, ...] = DATA
    seeds: int = 3
    budget: str = "short"
    data_root: str | None = None
    #: Whether reports measure what they show and no run tells: memory, scores without a model.
    measure: bool = True

    def __post_init__(self) -> None:
        if isinstance(self.data, str) or not self.data:
            raise ValueError(f"data must be one or more names, got {self.data!r}")
        for name in self.data:
            check_choice("data", name, DATA)
        checked_count("seeds", self.seeds)
        check_choice("budget", self.budget, BUDGETS)

    @property
    def tiny(self) -> bool:
        """Whether this is for seconds on a CPU."""
        return self.budget == "tiny"

    @property
    def main(self) -> str:
        """The data set that choices are made on and figures show."""
        return "digits" if self.tiny else "cifar10"

    @property
    def sets(self) -> tuple[str, ...]:
        """The data sets to train on."""
        return ("digits",) if self.tiny else tuple(dict.fromkeys(self.data))


class Experiment(Protocol):
    """A table or a figure of the paper: what to run for it, and how to show it."""

    @property
    def summary(self) -> str:
        """What it shows, in a line."""

    @property
    def draws(self) -> bool:
        """Whether its report has figures, which need matplotlib."""

    def plan(self, options: Options, root: Path | None = None) -> list[Planned]:
        """The runs to make, first things first.

        Runs that depend on a choice are planned once the records that decide it are below
        ``root``; until then they are left out.
        """

    def report(self, root: Path, out: Path, options: Options) -> list[Path]:
        """Write tables and figures into ``out``, from the records below ``root`` alone."""


TINY = (
    "**The tiny variant, of a few seconds on a CPU**: what is said here of data sets, epochs and "
    "numbers of evaluations is the real one's."
)


def standing(
    planned: Sequence[Planned], root: Path, options: Options, undecided: bool = False
) -> str:
    """What stands between the records below a root and the plan, in a sentence or two.

    Runs that are still to come, those that choices which are ``undecided`` will add, and runs that
    were made by other settings than are planned now. Nothing if all are over and as planned.
    """
    left, others = [], []
    for run in planned:
        record = find_record_of(run.kind, root, run.name)
        if record is None or (record.status == "finished" and run.unmeasured(root)):
            left.append(run.name)
        elif different := run.differs(record):
            others.append(f"{run.name} ({', '.join(different)})")
    parts = [TINY] if options.tiny else []
    if left:
        parts.append(
            f"**{len(planned) - len(left)} of {len(planned)} planned runs are over.** Still to "
            f"come: {_few(left)}."
        )
    if undecided:
        parts.append("Further runs follow from choices that are still open.")
    if others:
        parts.append(f"**By other settings than are planned now:** {_few(others)}.")
    return " ".join(parts)


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def configured(
    name: str,
    options: Options,
    model: str,
    data: str,
    steps: int,
    changes: Mapping[str, Any],
) -> TrainConfig:
    """A recipe for one model: ``steps`` evaluations in each flow, and further changes.

    Flows are compiled by themselves, which takes seconds where a whole model takes half a minute
    or more, and makes no slower steps. At K = 100 all activations of a batch would take half of a
    GPU of 140 GB with fused kernels, and more than there is without: there the states are
    checkpointed.
    """
    base = read_recipe(f"{name}-tiny" if options.tiny else name)
    own: dict[str, Any] = {"model": model, "data": data, "data_root": options.data_root}
    if options.tiny:
        few = min(max(steps // 3, 1), 4)
        own |= {"epochs": 1, "options.steps": max(few, buckets_of(model))}
    else:
        own |= {"options.compile": True, "options.steps": steps}
        if steps >= 100:
            own["options.gradient"] = "checkpointed"
    return changed(base, own | dict(changes))


#: A plan takes the same few recipes a hundred times.
read_recipe = cache(recipe)


def changed(config: C, changes: Mapping[str, Any]) -> C:
    """A configuration with other values at some dotted keys.

    >>> from nanode.training import recipe
    >>> changed(recipe("table1"), {"optimizer.lr": 0.4, "options.steps": 100}).options
    {'steps': 100}
    """
    plain = config.as_dict()
    for key, value in changes.items():
        put(plain, key.split("."), value)
    return from_mapping(type(config), plain, "the changed configuration")
