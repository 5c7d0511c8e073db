"""−ELBO of the video models beside SVG's: after the same time, and after the same steps."""

from collections.abc import Callable, Sequence

from nanode.experiments.video import Early, Runs, VideoRun
from nanode.reports.claims import Claim, judge
from nanode.reports.markdown import table
from nanode.reports.paper import TABLE2
from nanode.reports.statistics import Spread, spread
from nanode.training.video import Elbo, Point

#: By −ELBO in units of SVG's mean: below 1 is ahead of it.
CLAIMS = (
    Claim("NANODE reaches a lower −ELBO than SVG", ("svg",), ("svg-nanode",)),
    Claim("NANODE reaches a lower −ELBO than Auto", ("svg-auto",), ("svg-nanode",)),
)
#: Of Moving MNIST and of BAIR.
AUTO = (
    Claim("Auto stays behind SVG on Moving MNIST", ("svg-auto",), ("svg",)),
    Claim("Auto reaches a lower −ELBO than SVG on BAIR", ("svg",), ("svg-auto",)),
)
#: A run ends with the steps that pass its limit, and a GPU may be behind: its last point is late.
LATE = 1.05


def comparisons(title: str, runs: Runs, column: int) -> list[str]:
    """Two tables of one data set, of the models that there are runs of; none without SVG's."""
    runs = {model: found for model, found in runs.items() if found}
    every = [run for found in runs.values() for run in found]
    if "svg" not in runs:
        return []
    seconds = min(run.record.curves[-1].seconds for run in every)
    steps = _shared_steps(every)
    return [
        _comparison(
            f"{title}, after the same time: {seconds / 60:.3g} min of training",
            runs,
            column,
            lambda point: point.seconds <= LATE * seconds,
        ),
        _comparison(
            f"{title}, after the same number of steps: {steps:,}",
            runs,
            column,
            lambda point: point.step <= steps,
        ),
    ]


def _shared_steps(runs: Sequence[VideoRun]) -> int:
    """The last step at which all runs were both averaged and tested.

    The end of the slowest run isn't: its test there would stand beside earlier ones of the others.
    """
    curves = [points for run in runs for points in (run.record.curves, run.record.tests)]
    shared = set.intersection(*({point.step for point in points} for points in curves))
    return max(shared, default=min(points[-1].step for points in curves))


def _comparison(title: str, runs: Runs, column: int, early: Early) -> str:
    header = ["model", "seeds", "steps", "−ELBO", "ratio to SVG", "paper's ratio"]
    header += ["test −ELBO", "ratio to SVG", "−ELBO per frame", "per pixel (H·W)", "over β"]
    rows, losses = [], {}
    for model, found in runs.items():
        best = [run.lowest(early) for run in found]
        losses[model] = spread([point.loss for point in best if point is not None])
        scales = [_elbo(run, point) for run, point in zip(found, best, strict=True)]
        rows.append(
            [
                model,
                len(found),
                mean_text([run.made(early) for run in found], ".0f"),
                mean_text([elbo.loss_sum for elbo in scales if elbo], ".5f"),
                _shown(_ratios(runs, model, lambda run: run.lowest(early))),
                f"{TABLE2[model][column] / TABLE2['svg'][column]:.3f}",
                mean_text([p.loss for run in found if (p := run.lowest(early, test=True))], ".5f"),
                _shown(_ratios(runs, model, lambda run: run.lowest(early, test=True))),
                mean_text([elbo.loss_per_frame for elbo in scales if elbo], ".3e"),
                mean_text([elbo.loss_per_pixel for elbo in scales if elbo], ".3e"),
                mean_text([elbo.loss_over_beta for elbo in scales if elbo], ".1f"),
            ]
        )
    # Ratios seed by seed would share what SVG's losses vary by, and two of them decide nothing.
    unit = losses["svg"].mean if losses["svg"] else 1.0
    measured = {model: loss and loss.over(unit) for model, loss in losses.items()}
    verdicts = [f"- {claim.text}: {judge(claim, measured)}" for claim in (*CLAIMS, AUTO[column])]
    return f"## {title}\n\n{table(header, rows)}\n\n" + "\n".join(verdicts)


def _ratios(runs: Runs, model: str, lowest: Callable[[VideoRun], Point | None]) -> Spread | None:
    """A model's loss over SVG's, seed by seed."""
    ours, base = (
        {run.record.seed: point.loss for run in runs[name] if (point := lowest(run))}
        for name in (model, "svg")
    )
    return spread([ours[seed] / base[seed] for seed in ours if seed in base])


def _elbo(run: VideoRun, point: Point | None) -> Elbo | None:
    config = run.record.config
    if point is None:
        return None
    return Elbo.of(point.mse, point.kld, config.beta, config.length - 1, pixels=64 * 64)


def _shown(value: Spread | None) -> str:
    if value is None:
        return "–"
    return f"{value.mean:.3f}" + ("" if value.deviation is None else f" ± {value.deviation:.3f}")


def mean_text(values: Sequence[float], style: str) -> str:
    """A mean, with what the values vary by if they do."""
    found = spread(values)
    if found is None:
        return "–"
    shown = format(found.mean, style)
    return shown if not found.deviation else f"{shown} ± {format(found.deviation, style)}"
