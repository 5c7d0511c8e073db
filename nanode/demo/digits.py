"""Four models on handwritten digits: accuracy, time and memory of the paper's kinds of weights.

All are trained by one recipe, ten steps deep. The flows hold a few states for the backward pass and
compute the rest again, which changes no gradient; the residual network holds everything.
"""

import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean
from time import perf_counter

import torch

from nanode.reports.figures import Panel, draw
from nanode.reports.markdown import table
from nanode.reports.records import Cell
from nanode.training import RunRecord, TrainConfig, recipe, train

FOLDER = Path("out/demo")
#: Each model with the way its gradient is found.
ROWS = {
    "auto": "checkpointed",
    "con-resnet": "backprop",
    "b-nanode-10": "checkpointed",
    "t-nanode-10": "checkpointed",
}
SEEDS = 2


def configurations(base: TrainConfig, seeds: int) -> list[TrainConfig]:
    """Every model with every seed, all else equal."""
    return [
        replace(base, model=model, seed=seed, options=base.options | {"gradient": gradient})
        for seed in range(seeds)
        for model, gradient in ROWS.items()
    ]


def train_all(configs: Sequence[TrainConfig], folder: Path, workers: int) -> list[RunRecord]:
    """Train so many at a time, each on one thread: these networks are too small for more."""
    folders = [folder / f"{config.model}-seed{config.seed}" for config in configs]
    if workers == 1:
        return [*_shown(map(_train, configs, folders))]
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        return [*_shown(pool.map(_train, configs, folders))]


def _train(config: TrainConfig, folder: Path) -> RunRecord:
    torch.set_num_threads(1)
    return train(config, folder)


def _shown(records: Iterable[RunRecord]) -> Iterable[RunRecord]:
    for record in records:
        name = f"{record.config.model}, seed {record.seed}"
        print(f"  {name}: {record.times.total:.0f} s", flush=True)
        yield record


def summary(cells: Mapping[str, Cell]) -> str:
    """The table of all models."""
    header = [
        "model",
        "test accuracy, %",
        "seconds of steps",
        "activations held, kB",
        "parameters, kB",
        "gradient",
    ]
    rows = []
    for model, cell in cells.items():
        seconds = fmean(record.times.first_steps + record.times.steps for record in cell.records)
        held, kept = kilobytes(cell)
        rows.append([model, cell.accuracy, f"{seconds:.0f}", held, kept, ROWS[model]])
    return table(header, rows)


def panels(cells: Mapping[str, Cell]) -> list[Panel]:
    """How the models learn, and accuracy against what they take in memory."""
    curves = {model: cell.curve("validation_accuracy", 100) for model, cell in cells.items()}
    found = [Panel("Learning", "epoch", "validation accuracy, %", curves)]
    for n, kind in enumerate(("activations held", "parameters")):
        points = {model: [(kilobytes(cell)[n], cell.accuracy)] for model, cell in cells.items()}
        ticks = sorted({x for ((x, _),) in points.values()})
        labels = f"Memory: {kind}", "kB in the flow", "test accuracy, %"
        found.append(Panel(*labels, points, scale="log", ticks=ticks))
    return found


def kilobytes(cell: Cell) -> tuple[float, float]:
    """What the flow holds for the backward pass, and its parameters."""
    costs = cell.records[0].costs
    assert costs is not None
    assert costs.flow_activation_bytes is not None
    return round(costs.flow_activation_bytes / 1e3), round(costs.flow_parameter_bytes / 1e3, 1)


def _cores() -> int:
    """Those that this process may use, where the system tells."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def main(
    folder: Path = FOLDER,
    base: TrainConfig | None = None,
    seeds: int | None = None,
    workers: int | None = None,
) -> None:
    """Train all models, print their table and draw their figure; on one core with one seed."""
    start = perf_counter()
    base = replace(recipe("digits-tiny") if base is None else base, progress=False)
    cores = _cores()
    seeds = (SEEDS if cores > 1 else 1) if seeds is None else seeds
    configs = configurations(base, seeds)
    workers = min(len(configs), cores) if workers is None else workers
    print(f"Training {len(ROWS)} models, seeds {seeds}, {workers} at a time:")
    runs = folder / "runs"
    shutil.rmtree(runs, ignore_errors=True)  # those of an earlier demo
    records = train_all(configs, runs, workers)
    cells = {
        model: Cell(tuple(record for record in records if record.config.model == model))
        for model in ROWS
    }
    print(f"\n{summary(cells)}\n")
    print(f"Memory is that of the flow alone, for a batch of {base.batch_size} images. Activations")
    print("held are a matter of the gradient, and any of these models could use either.")
    path = draw(folder / "digits.png", panels(cells), columns=3)
    print(f"All in all {perf_counter() - start:.0f} s. Figure: {path}; runs: {runs}")
