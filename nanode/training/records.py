"""The record of a run: one ``run.json`` with everything a table or a figure needs."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from nanode.training.config import TrainConfig
from nanode.training.documents import from_mapping
from nanode.training.files import write_json
from nanode.values import check_choice, check_number

#: The version of the file's layout.
FORMAT = 1
STATUSES = ("running", "finished", "failed")
#: Between what differed from one start of a run to the next.
THEN = ", then "


@dataclass(frozen=True, kw_only=True)
class Epoch:
    """One point of every curve: what was known at the end of an epoch."""

    epoch: int
    step: int
    #: The mean over the steps of the epoch.
    train_loss: float
    #: None where nothing is held out.
    validation_loss: float | None = None
    validation_accuracy: float | None = None

    def __post_init__(self) -> None:
        if self.validation_accuracy is not None:
            check_number("validation_accuracy", self.validation_accuracy, least=0, most=1)


@dataclass(frozen=True, kw_only=True)
class Metrics:
    """What the final weights do, on statistics found anew; accuracies are shares of 1."""

    #: None where nothing is held out.
    validation_loss: float | None = None
    validation_accuracy: float | None = None
    #: None where the configuration forbids to look.
    test_loss: float | None = None
    test_accuracy: float | None = None

    def __post_init__(self) -> None:
        for name in ("validation_accuracy", "test_accuracy"):
            if getattr(self, name) is not None:
                check_number(name, getattr(self, name), least=0, most=1)


@dataclass(frozen=True, kw_only=True)
class Times:
    """Seconds, over all starts of the run."""

    #: From the first start to the end, waiting between an interruption and the next start left out.
    total: float = 0.0
    #: First steps, one a start: mostly compilation.
    first_steps: float = 0.0
    #: All other training steps, evaluation and checkpoints left out.
    steps: float = 0.0
    #: How many steps ``steps`` covers.
    counted: int = 0
    images_per_second: float | None = None
    #: How often the run was started.
    starts: int = 0


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Bytes of one training step at the run's batch size and precision, not compiled as a whole."""

    batch_size: int
    precision: str
    parameters: int
    parameter_bytes: int
    #: Of the parameters inside the flows, norm affines included.
    flow_parameter_bytes: int
    #: Held by the flows from the forward to the backward pass, tables of weights apart. This and
    #: the next three are None where plain passes, as they are measured, don't fit the device.
    flow_activation_bytes: int | None = None
    #: Of the tables of weights of the flows, held for the backward pass.
    flow_table_bytes: int | None = None
    #: The largest peak of one flow, gradients and temporaries included.
    flow_peak_bytes: int | None = None
    #: All that autograd saves in one step of the whole model, parameters left out.
    saved_bytes: int | None = None
    #: The flows' share of the time of forward and backward pass; None where it wasn't measured.
    flow_time_share: float | None = None
    #: What the flows' forward and backward pass take in a step; None where it wasn't measured.
    flow_seconds: float | None = None


@dataclass(frozen=True, kw_only=True)
class Flow:
    """How one flow of the model is solved."""

    name: str
    field: str
    steps: str
    solver: str
    #: Where a run went on with another one that gives the same gradients, one after the other.
    gradient: str
    scale: float
    augment: int


@dataclass(frozen=True, kw_only=True)
class Record:
    """What every run records in its ``run.json``; each kind of run says what its parts are."""

    config: Any
    status: str = "running"
    #: Why a run failed.
    message: str | None = None
    seed: int
    #: Of the source; where a run went on at another one, all, one after the other.
    commit: str | None = None
    #: Whether files of the package differed from the commit, at any start.
    modified: bool | None = None
    versions: dict[str, Any] = field(default_factory=dict)
    hardware: dict[str, Any] = field(default_factory=dict)
    flows: tuple[Flow, ...] = ()
    started: str
    ended: str | None = None
    curves: Any = ()
    metrics: Any = None
    times: Times = field(default_factory=Times)
    costs: Any = None
    format: int = FORMAT

    def __post_init__(self) -> None:
        check_choice("status", self.status, STATUSES)
        if self.format != FORMAT:
            raise ValueError(
                f"format must be {FORMAT}, got {self.format!r}; read the record with the version "
                "of nanode that wrote it"
            )
        if self.seed != self.config.seed:
            raise ValueError(f"seed must be config.seed, {self.config.seed}; got {self.seed}")
        if self.status == "finished" and self.metrics is None:
            raise ValueError("metrics must be there once a run is finished, got none")
        if self.status == "failed" and not self.message:
            raise ValueError("message must say why the run failed, got none")

    def save(self, path: str | Path) -> None:
        """Write the record, all or nothing."""
        plain = asdict(self) | {"config": self.config.as_dict()}
        write_json(Path(path), plain)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read and check a record."""
        path = Path(path)
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as why:
            raise ValueError(f"can't read the run record {path}: {why}") from why
        if isinstance(document, dict):
            found, expected = ("kind" in keys for keys in (document, cls.__dataclass_fields__))
            if found != expected:
                raise ValueError(f"{path} is the record of {_run(found)}, not of {_run(expected)}")
        return from_mapping(cls, document, str(path))


@dataclass(frozen=True, kw_only=True)
class RunRecord(Record):
    """The record of an image classifier's run."""

    config: TrainConfig
    curves: tuple[Epoch, ...] = ()
    metrics: Metrics | None = None
    costs: Costs | None = None


def _run(video: bool) -> str:
    return "a video run" if video else "an image run"
