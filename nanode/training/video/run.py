"""A whole video run, and one folder with all that came of it.

config.yaml        the configuration
run.json           the record, rewritten at each checkpoint
log.jsonl          one line a step and one a measurement on test clips
checkpoints/       where to resume
final.safetensors  the weights that the final metrics belong to
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from nanode.models.video import SVG
from nanode.training.checkpoints import load_checkpoint, load_weights, reading, weights_notes
from nanode.training.progress import Clock
from nanode.training.recording import carry_out, finished, opened, run_once
from nanode.training.records import Times
from nanode.training.video.config import VideoConfig
from nanode.training.video.costs import measure_video_costs
from nanode.training.video.loop import VideoLoop, VideoProgress
from nanode.training.video.records import VideoRecord
from nanode.training.video.setup import VideoSetup, make_model, prepare


def train_video(
    config: VideoConfig,
    run_folder: str | Path,
    resume: bool = True,
    stop: Callable[[], bool] = lambda: False,
) -> VideoRecord:
    """Train a video model from start to end, or on from where an earlier call was interrupted.

    As ``nanode.training.train``: a finished run is not repeated, ``stop`` is asked after each step,
    the caller's random state is left alone, and ``Diverged`` is raised at a loss that is no finite
    number.
    """
    folder = Path(run_folder)

    def go_on(earlier: VideoRecord | None) -> VideoRecord:
        images = config.batch_size * config.length
        clock = Clock(Times() if earlier is None else earlier.times, images)
        setup = prepare(config)
        progress = _resumed(setup, folder)
        record = opened(VideoRecord, setup, earlier if progress.step else None, measure_video_costs)
        return carry_out(VideoLoop(setup, folder, clock, progress), record, stop)

    return run_once(VideoRecord, config, folder, resume, go_on)


def load_video_model(run_folder: str | Path) -> tuple[SVG, VideoConfig]:
    """The model of a finished run with its final weights, in eval mode, and its configuration.

    Its flows aren't compiled: generation has many shapes, and each would be compiled for.
    """
    folder = Path(run_folder)
    record = finished(VideoRecord, folder)
    path = folder / "final.safetensors"
    notes = weights_notes(path)
    options = {key: value for key, value in record.config.options.items() if key != "compile"}
    model = make_model(replace(record.config, options=options), notes["channels"], notes["size"])
    load_weights(path, model)
    return model.eval(), record.config


def _resumed(setup: VideoSetup, folder: Path) -> VideoProgress:
    """Bring the setup to where the last checkpoint was written, if there is one."""
    if (found := load_checkpoint(folder, setup)) is None:
        return VideoProgress()
    with reading(folder):
        return VideoProgress.from_state(found[1]["progress"])
