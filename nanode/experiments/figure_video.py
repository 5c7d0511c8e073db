"""The paper's figure of video losses against time, with the horizon of predictions and films."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from nanode.experiments.plan import Options, Planned, standing
from nanode.experiments.table2 import Runs
from nanode.experiments.video import (
    FIGURE,
    FILM,
    STOCHASTIC,
    VideoRun,
    data_of,
    filmed,
    finished,
    planned,
    run_in,
)
from nanode.reports.figures import Panel, draw
from nanode.reports.markdown import write_page
from nanode.reports.statistics import Spread, spread
from nanode.training.video import Point

ABOUT = (
    "Stochastic Moving MNIST, the runs of Table 2. Above: training loss (mean squared error + β · "
    "divergence, summed over frames) against time and steps, one line a seed. Below: PSNR and SSIM "
    "of predicted frames, for the sample of each clip with the best mean SSIM; bars are the sample "
    "standard deviation over seeds. The paper's figure has the first panel; it says that after 10 "
    "hours SVG hasn't reached the loss that NANODE has after its first epoch."
)


FILMS = (
    "## Films\n\nOf the first seed of each model: truth, the posterior's mean, the best sample and "
    "others. Green borders: the frame was given; red ones: it was predicted."
)


@dataclass(frozen=True)
class FigureVideo:
    """Loss against time and steps, quality against the horizon, and films."""

    summary: str = "video: loss against time and steps, PSNR and SSIM against the horizon, films"

    def plan(self, options: Options, root: Path | None = None) -> list[Planned]:
        """The stochastic runs of Table 2, and the one that is filmed."""
        data = data_of(STOCHASTIC, options)
        return [*(run for run in planned(options) if run.config.data == data), filmed(options)]

    def report(self, root: Path, out: Path, options: Options) -> list[Path]:
        """The figure, a film of each model, and a page with all of them."""
        runs = finished(root, data_of(STOCHASTIC, options))
        figure = draw(out / f"{FIGURE}.png", _panels(runs))
        films = {
            m: film for m, found in runs.items() if found and (film := _film(found[0], out, m))
        }
        still = standing(self.plan(options, root), root, options)
        shown = [f"{model}:\n\n![{model}]({film.name})" for model, film in films.items()]
        parts = [ABOUT, still, f"![losses and quality]({FIGURE}.png)"]
        parts += [FILMS, *shown] if shown else []
        folder = root / filmed(options).name
        if (folder / "run.json").exists() and (film := _film(run_in(folder), out, "longer")):
            films["longer"] = film
            parts += [_longer(run_in(folder)), f"![a longer run]({film.name})"]
        page = write_page(out / f"{FIGURE}.md", "Video prediction", parts)
        return [figure, *films.values(), page]


def _panels(runs: Runs) -> list[Panel]:
    loss = "training loss"
    minutes, steps = _curves(runs, lambda p: p.seconds / 60), _curves(runs, lambda p: p.step)
    return [
        Panel(title="against time", x="minutes", y=loss, curves=minutes, y_scale="log"),
        Panel(title="against steps", x="steps", y=loss, curves=steps, y_scale="log"),
        Panel(title="PSNR", x="frame", y="dB", series=_horizon(runs, "psnr")),
        Panel(title="SSIM", x="frame", y="SSIM", series=_horizon(runs, "ssim")),
    ]


def _curves(
    runs: Runs, place: Callable[[Point], float]
) -> dict[str, list[list[tuple[float, float]]]]:
    """The losses of every seed."""
    return {
        model: [[(place(point), point.loss) for point in run.record.curves] for run in found]
        for model, found in runs.items()
    }


def _horizon(runs: Runs, metric: str) -> dict[str, list[tuple[float, Spread]]]:
    """Means over seeds of each predicted frame."""
    series = {}
    for model, found in runs.items():
        known = [run.clips for run in found if run.clips is not None]
        frames = zip(*(clips[metric] for clips in known), strict=True)
        first = known[0]["n_past"] + 1 if known else 0
        means = [(first + n, spread(values)) for n, values in enumerate(frames)]
        series[model] = [(frame, mean) for frame, mean in means if mean is not None]
    return series


def _film(run: VideoRun, out: Path, name: str) -> Path | None:
    """A copy of a run's film, if there is one."""
    film = run.folder / FILM
    if not film.exists():
        return None
    out.mkdir(parents=True, exist_ok=True)
    return Path(shutil.copyfile(film, out / f"{FIGURE}-{name}.gif"))


def _longer(run: VideoRun) -> str:
    """What the longer run is, and what it reached."""
    record, clips = run.record, run.clips
    assert record.metrics is not None
    config = record.config
    text = (
        "## A longer run\n\n"
        f"{config.model}, {record.metrics.steps:,} steps of {config.batch_size} clips by a "
        f"{config.schedule.name} schedule, skips: {config.options['skip']} (a predicted frame is "
        f"decoded with those of the frame before it), seed {record.seed}, "
        f"{record.hardware['name']}. Test −ELBO {record.metrics.test.loss_sum:.4f}"
    )
    if clips is not None:
        psnr, ssim = (sum(clips[name]) / len(clips[name]) for name in ("psnr", "ssim"))
        text += f"; PSNR {psnr:.2f} dB and SSIM {ssim:.4f} over all predicted frames"
    return text + "."
