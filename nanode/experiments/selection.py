"""Choosing between runs by held-out images."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nanode.experiments.plan import Planned
from nanode.reports.records import find_record
from nanode.training import RunRecord

#: How many images of CIFAR choices are made by, and how many final runs are tested on.
HELD_OUT, TESTED = 5_000, 10_000
#: Why there is no choice, where no run of a candidate is still to come.
ALL_FAILED = "every candidate failed"


@dataclass(frozen=True)
class Candidate:
    """What may be chosen for a row.

    >>> print(Candidate(lr=0.4, scale=3.0))
    lr0.4-scale3
    """

    lr: float
    #: The residual scale; None is the row's own.
    scale: float | None = None
    #: The share of batches with boxes of other images; None is the recipe's.
    cutmix: float | None = None

    def __str__(self) -> str:
        return "-".join(f"{key.rpartition('.')[2]}{v:g}" for key, v in self.changes().items())

    def changes(self) -> dict[str, Any]:
        """The same as keys of a configuration."""
        keys = {
            "optimizer.lr": self.lr,
            "options.scale": self.scale,
            "augment.cutmix": self.cutmix,
        }
        return {key: value for key, value in keys.items() if value is not None}


#: The runs that a choice is made between.
Round = dict[Candidate, Planned]


def best(candidates: Round, root: Path | None, images: int | None = None) -> Candidate | None:
    """The candidate with the highest validation accuracy, the first of equals.

    With ``images``, the number of images that accuracies are of, the first candidate wins unless
    another leads it by more than the standard error. None as long as one of the runs isn't over as
    it is planned, or if all of them failed.
    """
    if root is None or is_open(candidates, root):
        return None
    found: list[tuple[float, Candidate]] = []
    for candidate, planned in candidates.items():
        record = find_record(root, planned.name)
        if record is not None and record.metrics is not None:
            accuracy = record.metrics.validation_accuracy
            assert accuracy is not None, f"{planned.name} holds out no images"
            found.append((accuracy, candidate))
    if not found:
        return None
    (least, first), (most, ahead) = found[0], max(found, key=lambda pair: pair[0])
    margin = 0.0 if images is None else standard_error(least, images)
    return ahead if most > least + margin else first


def is_open(candidates: Round, root: Path) -> bool:
    """Whether the run of a candidate isn't over as it is planned."""
    records = ((planned, find_record(root, planned.name)) for planned in candidates.values())
    return any(record is None or bool(planned.differs(record)) for planned, record in records)


def error_text(accuracy: float, images: int) -> str:
    """The standard error of an accuracy that was found on so many images, in words.

    >>> error_text(0.96, 10_000)
    '0.20 points at 96 per cent'
    """
    error = 100 * standard_error(accuracy, images)
    return f"{error:.2f} points at {100 * accuracy:g} per cent"


def standard_error(accuracy: float, images: int) -> float:
    """Of an accuracy that was found on so many images.

    >>> f"{standard_error(0.9, 900):.2f}"
    '0.01'
    """
    return float((accuracy * (1 - accuracy) / images) ** 0.5)


def validation_text(record: RunRecord | None) -> str:
    """What a candidate reached on held-out images, in per cent, or why there is no number."""
    if record is None:
        return "missing"
    if record.metrics is None or record.metrics.validation_accuracy is None:
        return record.status
    return f"{100 * record.metrics.validation_accuracy:.2f}"
