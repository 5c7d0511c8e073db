"""A whole run: train, evaluate, and one folder with all that came of it.

config.yaml        the configuration
run.json           the record, rewritten after each epoch
log.jsonl          one line a step and one an epoch
checkpoints/       where to resume
best.safetensors   the best weights on validation
final.safetensors  the weights that the final metrics belong to
"""

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

from torch import nn

from nanode.block import flows, uncompiled
from nanode.training.checkpoints import load_checkpoint, load_weights, reading, weights_notes
from nanode.training.config import TrainConfig
from nanode.training.costs import measure_costs
from nanode.training.evaluation import Score, score
from nanode.training.loop import Loop
from nanode.training.progress import Clock, Progress
from nanode.training.recording import carry_out, finished, opened, run_once
from nanode.training.records import RunRecord, Times
from nanode.training.setup import (
    Setup,
    load_data,
    make_fabric,
    make_model,
    prepare,
)
from nanode.values import check_choice


def train(
    config: TrainConfig,
    run_folder: str | Path,
    resume: bool = True,
    stop: Callable[[], bool] = lambda: False,
) -> RunRecord:
    """Train a model from start to end, or on from where an earlier call was interrupted.

    A finished run is not repeated: its record is returned. With ``resume=False`` the folder must
    not hold a run. The caller's random state is left alone. ``stop`` is asked after each step: once
    it says true, a checkpoint is written and the record comes back as "running". A folder that
    another process trains in is refused.

    Raises ``Diverged`` at a loss that is no finite number; ``run.json`` then says "failed".
    """
    folder = Path(run_folder)

    def go_on(earlier: RunRecord | None) -> RunRecord:
        clock = Clock(Times() if earlier is None else earlier.times, config.batch_size)
        setup = prepare(config)
        progress = _resumed(setup, folder)
        record = opened(RunRecord, setup, earlier if progress.step else None, measure_costs)
        return carry_out(Loop(setup, folder, clock, progress), record, stop)

    return run_once(RunRecord, config, folder, resume, go_on)


def evaluate(
    run_folder: str | Path,
    split: str = "test",
    device: str | None = None,
    data_root: str | None = None,
) -> Score:
    """Loss and accuracy of a finished run's final weights, with their stored norm statistics.

    ``device`` and ``data_root`` are by default the run's, and may be others on another machine.
    """
    check_choice("split", split, ("train", "validation", "test"))
    model, config = load_model(run_folder)
    config = config.placed(device, data_root)
    fabric = make_fabric(config)
    model = model.to(fabric.device)
    data = load_data(config)
    images = {"train": data.train, "validation": data.validation, "test": data.test}[split]
    if images is None:
        raise ValueError(f"the run in {run_folder} held out no images (validation: 0)")
    # On a CPU compiling takes longer than it saves.
    plain = uncompiled(flows(model).values()) if fabric.device.type == "cpu" else nullcontext()
    with plain:
        return score(model, images.to(fabric.device), config, fabric)


def load_model(run_folder: str | Path) -> tuple[nn.Module, TrainConfig]:
    """The model of a finished run with its final weights, in eval mode, and its configuration."""
    folder = Path(run_folder)
    record = finished(RunRecord, folder)
    path = folder / "final.safetensors"
    notes = weights_notes(path)
    model = make_model(record.config, notes["channels"], notes["classes"])
    load_weights(path, model)
    return model.eval(), record.config


def _resumed(setup: Setup, folder: Path) -> Progress:
    """Bring the setup to where the last checkpoint was written, if there is one."""
    if (found := load_checkpoint(folder, setup)) is None:
        return Progress()
    average, state = found
    with reading(folder):
        setup.batches.load_state_dict(state["batches"])
        if setup.average is not None:
            setup.average.load(average, state["updates"])
        return Progress.from_state(state["progress"])
