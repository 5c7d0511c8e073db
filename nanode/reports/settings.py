"""How the runs of a row were made, in words: what a reader needs to judge its number."""

from collections.abc import Callable, Iterable, Sequence

from nanode.reports.markdown import table
from nanode.reports.marks import images_per_second
from nanode.training import Costs, Flow, RunRecord
from nanode.training.records import THEN, Record

GB = 1e9
#: Of older records too, in which going on at another commit counts as files that differ.
MODIFIED = "A + behind a commit: at some start of the run files differed from it."


def settings(records: Iterable[RunRecord]) -> dict[str, str]:
    """Every setting of some runs; where runs differ, all values."""
    records = list(records)
    found = {name: _together(show(record) for record in records) for name, show in SETTINGS.items()}
    speed = images_per_second(records)
    return found | {"images/s": "–" if speed is None else f"{speed:,.0f}"}


def provenance(records: Sequence[RunRecord]) -> str:
    """Where the numbers of some runs come from, in a sentence; nothing if there are none."""
    if not records:
        return ""
    found = settings(records)
    seeds = ", ".join(map(str, sorted({record.seed for record in records})))
    return (
        f"Trained on {found['training images']} images, seed {seeds}, {found['hardware']}, "
        f"torch {found['torch']}, commit {found['commit']}."
    )


def settings_table(
    rows: Iterable[tuple[tuple[str, ...], Sequence[RunRecord]]], header: list[str]
) -> str:
    """How some rows were run: what all have in common in words, the rest in a table.

    ``rows`` are named by the columns of ``header``; those without runs are left out.
    """
    found = {name: settings(records) for name, records in rows if records}
    if not found:
        return ""
    keys = [key for key in next(iter(found.values())) if key not in header]
    values = {key: {row[key] for row in found.values()} for key in keys}
    varied = [key for key, seen in values.items() if len(seen) > 1]
    common = [
        f"{key} {value}" for key, (value, *more) in values.items() if not more and value != "–"
    ]
    rest = table(
        [*header, *varied],
        [[*name, *(row[key] for key in varied)] for name, row in found.items()],
    )
    parts = [
        f"All of these: {'; '.join(common)}." if common else "",
        rest if varied else "",
        MODIFIED if any("+" in row["commit"] for row in found.values()) else "",
    ]
    return "\n\n".join(part for part in parts if part)


def _together(values: Iterable[str]) -> str:
    """Each value once; of runs that don't tell nothing is said, unless none does."""
    return " / ".join(value for value in dict.fromkeys(values) if value != "–") or "–"


def initialisation(record: RunRecord) -> str:
    """What the weights are before training; orthogonal ones by what starts are taken of."""
    model = record.config.model
    reflections = " (of reflections)" if model.endswith("-orthogonal") else ""
    if model.startswith("uncon-resnet"):
        return f"each layer drawn by itself{reflections}"
    if "-independent" in model:
        return f"each coefficient drawn by itself{reflections}"
    nearest = ", the orthogonal matrices nearest to it" if reflections else ""
    if model.startswith("gated-"):
        return f"each field drawn by itself{nearest}"
    return f"one draw{nearest}" + (", constant in t" if _moves(record) else "")


def norm_affines(record: RunRecord) -> str:
    """Whether scales and shifts of norms are functions of time, too."""
    if not _moves(record):
        return "constant"
    return "move" if record.config.options.get("moving_norms", True) else "constant"


def hardware(record: RunRecord) -> str:
    """What trained it."""
    return str(record.hardware.get("name", "unknown"))


def commit(record: Record) -> str:
    """The commit that trained it, or several; + means that files differed from it."""
    if record.commit is None:
        return "unknown"
    parts = [part[:9] for part in record.commit.split(THEN)]
    return THEN.join(parts) + ("+" if record.modified else "")


def _moves(record: RunRecord) -> bool:
    fields = [flow.field for flow in record.flows]
    return any(name.startswith("TimeVarying(") and "Constant(" not in name for name in fields)


def _flow(show: Callable[[Flow], str]) -> Callable[[RunRecord], str]:
    """A setting of all flows of a model, each value once."""
    return lambda record: ", ".join(dict.fromkeys(map(show, record.flows))) or "–"


def _costs(show: Callable[[Costs], str]) -> Callable[[RunRecord], str]:
    return lambda record: "–" if record.costs is None else show(record.costs)


def _share_of_step(record: RunRecord) -> str:
    """What the flows take of a training step, in which images, optimizer and average count too."""
    costs, speed = record.costs, record.times.images_per_second
    if costs is None or costs.flow_seconds is None or speed is None:
        return "–"
    return f"{costs.flow_seconds * speed / record.config.batch_size:.0%}"


def _optimizer(record: RunRecord) -> str:
    optimizer, schedule = record.config.optimizer, record.config.schedule
    parts = [optimizer.name]
    if optimizer.name == "sgd":
        parts.append(f"{'Nesterov ' * optimizer.nesterov}momentum {optimizer.momentum:g}")
    parts.append(f"weight decay {optimizer.weight_decay:g} (of weights, not of norms and biases)")
    parts.append(f"{schedule.name}, warm-up {schedule.warmup:.0%}")
    return ", ".join(parts)


def _augmentation(record: RunRecord) -> str:
    augment = record.config.augment
    sizes = {name: getattr(augment, name) for name in ("crop", "cutout", "cutmix")}
    parts = [f"{name} {size:g}" for name, size in sizes.items() if size]
    return ", ".join([*parts, *(["flip"] if augment.flip else [])]) or "none"


def held_out(record: RunRecord) -> int | None:
    """How many training images a run held out; None for a tenth of a number not known here."""
    held = record.config.validation
    tenth_of_cifar = held is None and record.config.data.startswith("cifar")
    return 5_000 if tenth_of_cifar else held


def _images(record: RunRecord) -> str:
    held = held_out(record)
    if held is None:
        return "all but a tenth"
    return f"all but {held:,}" if held else "all"


SETTINGS: dict[str, Callable[[RunRecord], str]] = {
    "steps": _flow(lambda flow: flow.steps),
    "solver": _flow(lambda flow: flow.solver),
    "gradient": _flow(lambda flow: flow.gradient),
    "scale": _flow(lambda flow: f"{flow.scale:g}"),
    "initialisation": initialisation,
    "norm affines": norm_affines,
    "epochs": lambda record: str(record.config.epochs),
    "learning rate": lambda record: f"{record.config.optimizer.lr:g}",
    "optimizer": _optimizer,
    "label smoothing": lambda record: f"{record.config.label_smoothing:g}",
    "average of weights": lambda record: str(record.config.average or "none"),
    "calibration, batches": lambda record: str(record.config.calibration),
    "batch": lambda record: str(record.config.batch_size),
    "precision of f": lambda record: record.config.precision,
    "training images": _images,
    "augmentation": _augmentation,
    "parameters": _costs(lambda costs: f"{costs.parameters:,}"),
    "parameters of the flow, GB": _costs(lambda costs: f"{costs.flow_parameter_bytes / GB:.2g}"),
    "activations of the flow, GB": _costs(
        lambda costs: (
            "–"
            if costs.flow_activation_bytes is None
            else f"{costs.flow_activation_bytes / GB:.3g}"
        )
    ),
    "flow's share of both passes": _costs(
        lambda costs: "–" if costs.flow_time_share is None else f"{costs.flow_time_share:.0%}"
    ),
    "flow's share of a step": _share_of_step,
    "hardware": hardware,
    "torch": lambda record: str(record.versions.get("torch", "unknown")),
    "commit": commit,
}
