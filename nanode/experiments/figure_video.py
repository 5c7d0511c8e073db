"""The paper's figure of video losses against time, with the horizon of predictions and films."""

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from nanode.experiments.measurements import FILM
from nanode.experiments.plan import Options, Planned, standing
from nanode.experiments.video import (
    FIGURE,
    STOCHASTIC,
    Runs,
    VideoRun,
    filmed,
    place_of,
    planned,
    run_in,
    runs_in,
    trivial,
)
from nanode.reports.figures import Panel, draw
from nanode.reports.markdown import write_page
from nanode.reports.statistics import Spread, spread
from nanode.training.video import Point

ABOUT = (
    "Stochastic Moving MNIST, the runs of Table 2. Above: training loss (mean squared error + β · "
    "divergence, summed over all frames but the first) against time and steps, one line a seed. "
    "Below: PSNR and SSIM of predicted frames, for the sample of each clip with the best mean "
    "SSIM; bars are the sample standard deviation over seeds. The paper's figure has the first "
    "panel; it says that after 10 hours SVG hasn't reached the loss that NANODE has after its "
    "first epoch."
)


FILMS = (
    "## Films\n\nOf the first seed of each model: truth, the posterior's mean, the best sample and "
    "others. Green borders: the frame was given (the truth's are green throughout); red ones: it "
    "was predicted."
)


class FigureVideo:
    """Loss against time and steps, quality against the horizon, and films."""

    summary = "video: loss against time and steps, PSNR and SSIM against the horizon, films"
    draws = True

    def plan(self, options: Options, root: Path | None = None) -> list[Planned]:
        """The stochastic runs of Table 2, and the one that is filmed."""
        place = f"table2/{place_of(STOCHASTIC, options)}/"
        return [*(r for r in planned(options) if r.name.startswith(place)), filmed(options)]

    def report(self, root: Path, out: Path, options: Options) -> list[Path]:
        """The figure, a film of each model, and a page with all of them."""
        place = place_of(STOCHASTIC, options)
        runs, least = runs_in(root, place), trivial(root, place, options)
        figure = draw(out / f"{FIGURE}.png", _panels(runs, least))
        films = {
            m: film for m, found in runs.items() if found and (film := _film(found[0], out, m))
        }
        still = standing(self.plan(options, root), root, options)
        shown = [f"{model}:\n\n![{model}]({film.name})" for model, film in films.items()]
        parts = [ABOUT, still, _protocol(runs), f"![losses and quality]({FIGURE}.png)"]
        parts += [FILMS, *shown] if shown else []
        folder = root / filmed(options).name
        longer = run_in(folder) if (folder / "run.json").exists() else None
        if longer and longer.record.status == "finished" and (film := _film(longer, out, "longer")):
            films["longer"] = film
            parts += [_longer(longer), f"![a longer run]({film.name})"]
        page = write_page(out / f"{FIGURE}.md", "Video prediction", parts)
        return [figure, *films.values(), page]


def _panels(runs: Runs, least: Mapping[str, Any]) -> list[Panel]:
    """``least``: the scores of predictions that need no model."""
    loss = "training loss"
    minutes, steps = _curves(runs, lambda p: p.seconds / 60), _curves(runs, lambda p: p.step)
    return [
        Panel(title="against time", x="minutes", y=loss, curves=minutes, y_scale="log"),
        Panel(title="against steps", x="steps", y=loss, curves=steps, y_scale="log"),
        *(
            Panel(
                title=metric.upper(),
                x="frame",
                y=unit,
                series=(series := _horizon(runs, metric)),
                curves={
                    name: [_over_frames(series, scores[metric])] for name, scores in least.items()
                },
            )
            for metric, unit in (("psnr", "dB"), ("ssim", "SSIM"))
        ),
    ]


Series = dict[str, list[tuple[float, Spread | None]]]


def _over_frames(series: Series, values: Sequence[float]) -> list[tuple[float, float]]:
    """Values of the frames that the series have."""
    frames = next(points for points in series.values() if points)
    return [(frame, value) for (frame, _), value in zip(frames, values, strict=True)]


def _curves(
    runs: Runs, place: Callable[[Point], float]
) -> dict[str, list[list[tuple[float, float]]]]:
    """The losses of every seed."""
    return {
        model: [[(place(point), point.loss) for point in run.record.curves] for run in found]
        for model, found in runs.items()
    }


def _horizon(runs: Runs, metric: str) -> Series:
    """Means over seeds of each predicted frame."""
    series: Series = {}
    for model, found in runs.items():
        known = [run.clips for run in found if run.clips is not None]
        frames = zip(*(clips[metric] for clips in known), strict=True)
        first = known[0]["n_past"] + 1 if known else 0
        series[model] = [(first + n, spread(values)) for n, values in enumerate(frames)]
    return series


def _protocol(runs: Runs) -> str:
    """How the quality of frames was measured, and what was trained."""
    known = [run for found in runs.values() for run in found if run.clips is not None]
    if not known:
        return ""
    config, clips = known[0].record.config, known[0].clips
    assert clips is not None
    trained = f"{config.steps:,} steps" if config.minutes is None else f"{config.minutes:g} minutes"
    return (
        f"Runs of {trained} on {known[0].record.hardware.get('name', 'an unknown machine')}, width "
        f"{config.options.get('width', 64)}; the best of {clips['samples']} samples on "
        f"{clips['sequences']} test clips, where the published protocol has 100 on 256. Thin "
        "lines: what predictions that need no model score on the same clips. **A model whose curve "
        "is below them has learnt little that shows in this measure.**"
    )


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
    others = "skips" if config.schedule.name == "constant" else "schedule and skips"
    text = (
        "## A longer run\n\n"
        f"{config.model}, {record.metrics.steps:,} steps of {config.batch_size} clips by a "
        f"{config.schedule.name} schedule, skips: {config.options['skip']} (a predicted frame is "
        f"decoded with those of the frame before it), seed {record.seed}, "
        f"{record.hardware['name']}. Test −ELBO {record.metrics.test.loss_sum:.4f}, which is not "
        f"to be compared with Table 2's: {others} are others"
    )
    if clips is not None:
        psnr, ssim = (sum(clips[name]) / len(clips[name]) for name in ("psnr", "ssim"))
        text += f"; PSNR {psnr:.2f} dB and SSIM {ssim:.4f} over all predicted frames"
    return text + "."
