"""The video runs that Table 2 and its figure share, and a longer one for a film.

    table2/<place>/<model>/seed<n>         the place is the data set, with -full behind it for hours
    figure-video/<data>/<model>/seed0

All models train for the same time with a constant learning rate, so the beginning of a run is what
a shorter run would have been: one set of runs serves the comparison after the same time and the one
after the same number of steps.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from nanode.data import DataError, data_root
from nanode.data.video.bair import FOLDER
from nanode.experiments.measurements import measured
from nanode.experiments.plan import Options, Planned, changed
from nanode.models.video import NAMES
from nanode.reports.records import seed_folders
from nanode.training.files import read_json, write_json
from nanode.training.video import (
    Point,
    VideoConfig,
    VideoRecord,
    trivial_scores,
    video_recipe,
)

MODELS = tuple(NAMES)
#: Minutes of training of a run.
MINUTES = {"short": 2.4, "full": 60.0}
#: Steps of the run that is filmed.
FILMED = 5_000
FIGURE = "figure-video"
STOCHASTIC, DETERMINISTIC, BAIR = "moving-mnist", "moving-mnist-deterministic", "bair"
#: By budget, what is measured once a run is over.
MEASURES = {"short": "some-clips", "full": "clips", "tiny": "few-clips"}


def planned(options: Options) -> list[Planned]:
    """Stochastic Moving MNIST seed by seed, the deterministic one, and BAIR if it is there."""
    runs = [run for seed in range(options.seeds) for run in _runs(STOCHASTIC, options, seed)]
    runs += _runs(DETERMINISTIC, options, seed=0)
    if has_bair(options):
        runs += _runs(BAIR, options, seed=0)
    return runs


def filmed(options: Options) -> Planned:
    """A longer run of NANODE, at a rate that falls and with the skips of the frame before.

    In the minutes of the table's runs digits don't learn to stay whole.
    """
    base = _base(STOCHASTIC, options)
    own: dict[str, Any] = {"model": "svg-nanode", "options.skip": "every"}
    if not options.tiny:
        own |= {"minutes": None, "steps": FILMED, "schedule.name": "one-cycle"}
        own |= {"evaluate_every": 500, "point_every": 50, "checkpoint_every": None}
    name = f"{FIGURE}/{base.data}/svg-nanode/seed0"
    return Planned(name, changed(base, own), measure=_measure(STOCHASTIC, options))


def has_bair(options: Options) -> bool:
    """Whether the BAIR data set was fetched; a person must do that."""
    return not options.tiny and (data_root(options.data_root) / FOLDER).is_dir()


def _runs(recipe: str, options: Options, seed: int) -> Iterator[Planned]:
    for model in MODELS:
        config = changed(_base(recipe, options), {"model": model, "seed": seed})
        name = f"table2/{place_of(recipe, options)}/{model}/seed{seed}"
        yield Planned(name, config, measure=_measure(recipe, options))


def _measure(recipe: str, options: Options) -> str:
    if recipe == DETERMINISTIC and not options.tiny:
        return "prediction"
    return MEASURES[options.budget]


def _base(recipe: str, options: Options) -> VideoConfig:
    own: dict[str, Any]
    if options.tiny:
        own = {"steps": 4, "evaluate_every": 2, "point_every": 1}
        return changed(video_recipe(f"{recipe}-tiny"), own)
    own = {
        "steps": None,
        "minutes": MINUTES[options.budget],
        "precision": "bf16-mixed",
        "channels_last": True,
        # The width whose kernels take the paper's 4.6 MB; the public SVG has 64.
        "options.width": 16,
        "data_root": options.data_root,
    }
    if options.budget == "short":
        # Some hundred steps: more points than the recipe's.
        own |= {"point_every": 10, "evaluate_every": 100, "checkpoint_every": 500}
    return changed(video_recipe(recipe), own)


# ---- what became of them


#: Whether a point of a curve counts: up to a time, or up to a step.
Early = Callable[[Point], bool]


@dataclass(frozen=True)
class VideoRun:
    """A finished run: its record, and what was measured on its final weights."""

    record: VideoRecord
    clips: dict[str, Any] | None
    folder: Path

    def lowest(self, early: Early, *, test: bool = False) -> Point | None:
        """The lowest point of a loss curve among those that count."""
        points = self.record.tests if test else self.record.curves
        return min(filter(early, points), key=lambda point: point.loss, default=None)

    def made(self, early: Early) -> int:
        """How many steps were made at the last point that counts."""
        return max((point.step for point in filter(early, self.record.curves)), default=0)


def place_of(recipe: str, options: Options) -> str:
    """Where a recipe's runs are: longer ones can't have the names of shorter ones."""
    return _base(recipe, options).data + ("-full" if options.budget == "full" else "")


#: By model, in the order of their seeds.
Runs = Mapping[str, Sequence[VideoRun]]


def runs_in(root: Path, place: str, status: str = "finished") -> Runs:
    """The runs in a place that are finished, or those of another status."""
    folders = {m: seed_folders(VideoRecord, root / "table2" / place / m) for m in MODELS}
    runs = {model: map(run_in, found) for model, found in folders.items()}
    return {m: [r for r in found if r.record.status == status] for m, found in runs.items()}


def trivial(root: Path, place: str, options: Options) -> dict[str, Any]:
    """Scores of predictions that need no model, on the clips that the runs were measured on.

    Measured once; nothing where no run was measured, or where the data set isn't there.
    """
    runs = [run for found in runs_in(root, place).values() for run in found]
    run = next((run for run in runs if run.clips is not None), None)
    if run is None or run.clips is None:
        return {}
    on = {key: run.clips[key] for key in ("data", "sequences", "n_past", "length")}
    path = root / "table2" / place / "trivial.json"
    if path.exists():
        found = read_json(path)
        if found["on"] == on:
            scores: dict[str, Any] = found["scores"]
            return scores
    if not options.measure:
        return {}
    own_root = options.data_root or run.record.config.data_root
    try:
        made = trivial_scores(replace(run.record.config, data_root=own_root, device="auto"), **on)
    except DataError:
        return {}
    scores = {name: asdict(score) for name, score in made.items()}
    write_json(path, {"on": on, "scores": scores})
    return scores


def run_in(folder: Path) -> VideoRun:
    """The run in a folder, with what was measured there."""
    record = VideoRecord.load(folder / "run.json")
    names = (*MEASURES.values(), "prediction")
    clips = next((c for name in names if (c := measured(name, folder))), None)
    return VideoRun(record, clips, folder)
