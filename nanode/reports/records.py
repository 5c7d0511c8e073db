"""Reads the records of runs below a root."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from nanode.reports.statistics import Spread, spread
from nanode.training import RunRecord
from nanode.training.config import differences
from nanode.training.records import Record

R = TypeVar("R", bound=Record)

_SEED = re.compile(r"seed(0|[1-9]\d*)", re.ASCII)


def find_record(root: Path, name: str) -> RunRecord | None:
    """The record of a run that is over, finished or failed; None if there is none."""
    return find_record_of(RunRecord, root, name)


def find_record_of(kind: type[R], root: Path, name: str) -> R | None:
    """As ``find_record``, of any kind of run."""
    path = root / name / "run.json"
    if not path.exists():
        return None
    record = kind.load(path)
    return None if record.status == "running" else record


def seed_folders(kind: type[R], folder: Path) -> list[Path]:
    """The runs of a row, begun or over, in the order of their seeds; ``seed0-old`` is no seed's.

    Raises if one is of another seed than its folder says: a copy would count as a run of its own.
    """
    found = ((_SEED.fullmatch(path.name), path) for path in folder.glob("seed*"))
    numbered = dict(sorted((int(match[1]), path) for match, path in found if match))
    begun = {seed: path for seed, path in numbered.items() if (path / "run.json").exists()}
    for seed, path in begun.items():
        own = kind.load(path / "run.json").seed
        if own != seed:
            rename = "" if own in numbered else f"rename the folder to seed{own}, or "
            raise ValueError(f"{path} holds a run of seed {own}; {rename}move it elsewhere")
    return list(begun.values())


@dataclass(frozen=True)
class Cell:
    """The runs behind one number of a table, one a seed."""

    records: tuple[RunRecord, ...] = ()
    #: Why there is no number yet, or what is special about it.
    note: str = ""

    @classmethod
    def read(cls, root: Path, names: Iterable[str], note: str = "") -> "Cell":
        """Those of the named runs that are over."""
        found = (find_record(root, name) for name in names)
        records = tuple(record for record in found if record is not None)
        if other := _differing(records):
            note = "; ".join([*([note] if note else []), f"**not one configuration**: {other}"])
        return cls(records, note)

    @classmethod
    def seeds(cls, root: Path, folder: str, note: str = "") -> "Cell":
        """Every seed's run in a folder that is over."""
        found = seed_folders(RunRecord, root / folder)
        return cls.read(root, [path.relative_to(root).as_posix() for path in found], note)

    @property
    def finished(self) -> list[RunRecord]:
        """The runs that didn't fail."""
        return [record for record in self.records if record.status == "finished"]

    @property
    def failed(self) -> list[RunRecord]:
        """The runs that did."""
        return [record for record in self.records if record.status == "failed"]

    @property
    def accuracy(self) -> Spread | None:
        """Test accuracy in per cent."""
        tested = [r.metrics.test_accuracy for r in self.finished if r.metrics is not None]
        return spread([100 * accuracy for accuracy in tested if accuracy is not None])

    def curve(self, name: str, factor: float = 1.0) -> list[tuple[float, Spread | None]]:
        """The field of ``Epoch`` with that name, by epoch: means over the runs, where all have it.

        Where one that diverged has none, the rest would seem to recover.
        """
        found = []
        for points in zip(*(record.curves for record in self.records), strict=False):
            values = [getattr(point, name) for point in points]
            known = [factor * value for value in values if value is not None]
            found.append((points[0].epoch, spread(known) if len(known) == len(values) else None))
        return found

    def __str__(self) -> str:
        parts = []
        if (accuracy := self.accuracy) is not None:
            parts.append(f"{accuracy} ({_seeds(self.finished)})")
        if self.failed:
            parts.append(f"failed ({_seeds(self.failed)})")
        return "; ".join([*parts, *([self.note] if self.note else [])]) or "–"


def _differing(records: Sequence[RunRecord]) -> str:
    """What decides results and differs between runs beside their seeds."""
    plain = [record.config.as_dict() | {"seed": 0, "profile": False} for record in records]
    keys = [key for other in plain[1:] for key in differences(plain[0], other)]
    return ", ".join(dict.fromkeys(keys))


def _seeds(records: list[RunRecord]) -> str:
    seeds = sorted(record.seed for record in records)
    return f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"
