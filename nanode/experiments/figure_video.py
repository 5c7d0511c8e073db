"""The paper's figure of video losses against time, with the horizon of predictions and films."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from nanode.experiments.plan import Options, Planned, standing
from nanode.experiments.table2 import Runs
from nanode.experiments.video import FILM, STOCHASTIC, data_of, finished, planned
from nanode.reports.figures import Panel, draw
from nanode.reports.markdown import write_page
from nanode.reports.statistics import Spread, spread
from nanode.training.video import Point

NAME = "figure-video"

ABOUT = (
    "Stochastic Moving MNIST, the runs of Table 2. Above: training loss (mean squared error + β · "
    "divergence, summed over frames) against time and steps, one line a seed. Below: PSNR and SSIM "
    "of predicted frames, for the sample of each clip with the best mean SSIM; bars are the sample "
    "standard deviation over seeds. The paper's figure has the first panel; it says that after 10 "
    "hours SVG hasn't reached the loss that NANODE has after its first epoch."
)


@dataclass(frozen=True)
class FigureVideo:
    """Loss against time and steps, quality against the horizon, and films."""

    summary: str = "video: loss against time and steps, PSNR and SSIM against the horizon, films"

    def plan(self, options: Options, root: Path | None = None) -> list[Planned]:
        """The stochastic runs of Table 2."""
        data = data_of(STOCHASTIC, options)
        return [run for run in planned(options) if run.config.data == data]

    def report(self, root: Path, out: Path, options: Options) -> list[Path]:
        """The figure, a film of each model, and a page with all of them."""
        runs = finished(root, data_of(STOCHASTIC, options))
        figure = draw(out / f"{NAME}.png", _panels(runs))
        films = _films(runs, out)
        shown = [f"![{path.stem}]({path.name})" for path in films]
        still = standing(self.plan(options, root), root, options)
        parts = [ABOUT, still, f"![losses and quality]({NAME}.png)", *shown]
        return [figure, *films, write_page(out / f"{NAME}.md", "Video prediction", parts)]


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


def _films(runs: Runs, out: Path) -> list[Path]:
    """A copy of the film of each model's first seed."""
    copied = []
    for model, found in runs.items():
        film = found[0].folder / FILM if found else None
        if film is not None and film.exists():
            out.mkdir(parents=True, exist_ok=True)
            copied.append(Path(shutil.copyfile(film, out / f"{NAME}-{model}.gif")))
    return copied
