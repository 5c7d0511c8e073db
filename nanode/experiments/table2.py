"""Table 2: video prediction by SVG, and with autonomous and non-autonomous flows in it."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from nanode.experiments.memory import measured_once
from nanode.experiments.plan import Options, Planned, changed, standing
from nanode.experiments.video import (
    BAIR,
    DETERMINISTIC,
    MODELS,
    STOCHASTIC,
    VideoRun,
    diverged,
    finished,
    has_bair,
    place_of,
    planned,
    trivial,
)
from nanode.reports.claims import Claim, judge
from nanode.reports.markdown import table, write_page
from nanode.reports.settings import commit
from nanode.reports.statistics import Spread, spread
from nanode.training.environment import commit as commit_of_tree
from nanode.training.environment import hardware, versions
from nanode.training.video import Elbo, Point, VideoConfig, VideoCosts
from nanode.training.video.costs import measure_video_costs
from nanode.training.video.setup import prepare

#: The paper's table: −ELBO on Moving MNIST and BAIR, activation and parameter memory in GB.
PAPER = {
    "svg": (2.2e-5, 9.5e-5, 4.9, 4.6e-3),
    "svg-auto": (3.3e-5, 9.0e-5, 4.7, 4.6e-3),
    "svg-nanode": (8.5e-6, 7.6e-5, 4.7, 1.9e-2),
}
#: Ratios are of −ELBO: below 1 is ahead of SVG.
CLAIMS = (
    Claim("NANODE reaches a lower −ELBO than SVG", ("svg",), ("svg-nanode",)),
    Claim("NANODE reaches a lower −ELBO than Auto", ("svg-auto",), ("svg-nanode",)),
)
#: Of Moving MNIST and of BAIR.
AUTO = (
    Claim("Auto stays behind SVG on Moving MNIST", ("svg-auto",), ("svg",)),
    Claim("Auto reaches a lower −ELBO than SVG on BAIR", ("svg",), ("svg-auto",)),
)
MEMORY = Path("table2") / "memory.json"
GRADIENTS = ("backprop", "checkpointed")
#: A run ends with the steps that pass its limit, and a GPU may be behind: its last point is late.
LATE = 1.05
#: Steps a second beside SVG's that three evaluations for one should reach.
TARGETS = {"backprop": 0.45, "checkpointed": 0.35}

ABOUT = (
    "SVG-LP with the VGG backbone; in Auto and NANODE each run of channel-preserving layers is one "
    "flow of three Euler steps (NANODE: trigonometric weights of order 3). All models train for "
    "the same time by one recipe: Adam at a constant learning rate. −ELBO is the training loss, "
    "mean squared error + β · divergence, summed over all frames but the first; its lowest mean "
    "over a few steps (how many is below) is given, as the paper reports a minimum, and the "
    "lowest on test clips, in eval mode. The paper's absolute scale can't be recovered, so "
    "ratios to SVG, seed by seed, stand beside the paper's; ± is the sample standard deviation "
    "over seeds."
)


@dataclass(frozen=True)
class Table2:
    """−ELBO, memory and speed of the three video models."""

    summary: str = "Table 2: −ELBO, memory and speed of SVG, Auto and NANODE on video"

    def plan(self, options: Options, root: Path | None = None) -> list[Planned]:
        """Every model on every data set, under one budget of time."""
        return planned(options)

    def report(self, root: Path, out: Path, options: Options) -> list[Path]:
        """The tables, beside the paper's; memory is measured unless that was done."""
        places = [place_of(recipe, options) for recipe in (STOCHASTIC, DETERMINISTIC, BAIR)]
        mnist, deterministic, bair = (finished(root, place) for place in places)
        least = [trivial(root, place, options).get("scores", {}) for place in places]
        costs = measured_once(root / MEMORY, measure, options)
        parts = [
            ABOUT,
            standing(self.plan(options, root), root, options),
            *comparisons("Moving MNIST", mnist, column=0),
            *comparisons("BAIR", bair, column=1),
            _missing(root, options),
            memory_section(costs),
            _speeds(mnist),
            speed_section(costs),
            _clips("stochastic Moving MNIST", mnist, least[0]),
            _clips("BAIR", bair, least[2]),
            _deterministic(deterministic, least[1]),
            _settings(dict(zip(places, (mnist, deterministic, bair), strict=True))),
        ]
        return [write_page(out / "table2.md", "Table 2: video prediction", parts)]


Runs = Mapping[str, Sequence[VideoRun]]


# ---- −ELBO after the same time and after the same steps


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
            {"seconds": LATE * seconds},
        ),
        _comparison(
            f"{title}, after the same number of steps: {steps:,}",
            runs,
            column,
            {"steps": steps},
        ),
    ]


def _shared_steps(runs: Sequence[VideoRun]) -> int:
    """The last step at which all runs were both averaged and tested.

    The end of the slowest run isn't: its test there would stand beside earlier ones of the others.
    """
    curves = [points for run in runs for points in (run.record.curves, run.record.tests)]
    shared = set.intersection(*({point.step for point in points} for points in curves))
    return max(shared, default=min(points[-1].step for points in curves))


def _comparison(title: str, runs: Runs, column: int, limit: dict[str, Any]) -> str:
    def lowest(run: VideoRun, test: bool) -> Point | None:
        return run.lowest(test=test, **limit)

    header = ["model", "seeds", "steps", "−ELBO", "ratio to SVG", "paper's ratio"]
    header += ["test −ELBO", "ratio to SVG", "−ELBO per frame", "per pixel (H·W)", "over β"]
    rows, ratios = [], {}
    for model, found in runs.items():
        best = [lowest(run, False) for run in found]
        ratios[model] = _ratios(runs, model, lambda run: lowest(run, False))
        scales = [_elbo(run, point) for run, point in zip(found, best, strict=True)]
        rows.append(
            [
                model,
                len(found),
                _mean([run.made(**limit) for run in found], ".0f"),
                _mean([elbo.loss_sum for elbo in scales if elbo], ".5f"),
                _shown(ratios[model]),
                f"{PAPER[model][column] / PAPER['svg'][column]:.3f}",
                _mean([p.loss for run in found if (p := lowest(run, True))], ".5f"),
                _shown(_ratios(runs, model, lambda run: lowest(run, True))),
                _mean([elbo.loss_per_frame for elbo in scales if elbo], ".3e"),
                _mean([elbo.loss_per_pixel for elbo in scales if elbo], ".3e"),
                _mean([elbo.loss_over_beta for elbo in scales if elbo], ".1f"),
            ]
        )
    verdicts = [f"- {claim.text}: {judge(claim, ratios)}" for claim in (*CLAIMS, AUTO[column])]
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


def _mean(values: Sequence[float], style: str) -> str:
    found = spread(values)
    if found is None:
        return "–"
    shown = format(found.mean, style)
    return shown if not found.deviation else f"{shown} ± {format(found.deviation, style)}"


# ---- memory


def measure(options: Options) -> dict[str, Any]:
    """Bytes of a training step in single precision, 15 frames a clip, by model and gradient.

    And steps a second as the runs make them. On a CPU with few clips and the narrow model only;
    activations grow in proportion.
    """
    cuda = torch.cuda.is_available() and not options.tiny
    device = "cuda" if cuda else "cpu"
    rows = []
    for width in (16, 64) if cuda else (4,) if options.tiny else (16,):
        for model in MODELS:
            for gradient in GRADIENTS if model != "svg" else (None,):
                config = VideoConfig(
                    data="moving-digits",
                    model=model,
                    options={"width": width} | ({"gradient": gradient} if gradient else {}),
                    batch_size=100 if cuda else 1,
                    steps=1,
                    device=device,
                )
                row: dict[str, Any] = {"model": model, "width": width, "gradient": gradient}
                row |= asdict(measure_video_costs(prepare(config)))
                rows.append(row | {"steps_per_second": _steps_per_second(config)})
    at, modified = commit_of_tree()
    return {
        "hardware": hardware(torch.device(device)),
        "versions": versions(),
        "commit": at,
        "modified": modified,
        "rows": rows,
    }


def _steps_per_second(config: VideoConfig) -> float:
    """Of training as the runs do it, in half precision and with channels last on a GPU."""
    cuda = config.device == "cuda"
    own = {"precision": "bf16-mixed", "channels_last": True} if cuda else {}
    setup = prepare(changed(config, own))
    setup.model.train()
    seconds, (warm, timed) = 0.0, (3, 20) if cuda else (1, 2)
    for step in range(warm + timed):
        if step == warm:
            _synchronize(cuda)
            seconds = time.perf_counter()
        setup.step(setup.batch(step))
    _synchronize(cuda)
    return timed / (time.perf_counter() - seconds)


def _synchronize(cuda: bool) -> None:
    if cuda:
        torch.cuda.synchronize()


def memory_section(found: dict[str, Any]) -> str:
    """The measured bytes beside the paper's, for a batch of 100 clips."""
    header = ["model", "width", "gradient", "activations, GB", "beside SVG", "paper", "paper's"]
    header += ["3×3 kernels, GB", "paper", "all parameters, GB"]
    base = {row["width"]: _activations(row) for row in found["rows"] if row["model"] == "svg"}
    rows = []
    for row in found["rows"]:
        costs, (_, _, activations, parameters) = row, PAPER[row["model"]]
        held = _activations(row)
        rows.append(
            [
                row["model"],
                row["width"],
                row["gradient"] or "–",
                f"{held / 1e9:.3g}",
                f"{held / base[row['width']]:.3f}",
                f"{activations:g}",
                f"{activations / PAPER['svg'][2]:.3f}",
                f"{costs['kernel_bytes'] / 1e9:.3g}",
                f"{parameters:.2g}",
                f"{costs['parameter_bytes'] / 1e9:.3g}",
            ]
        )
    clips = found["rows"][0]["batch_size"]
    scaled = "" if clips == 100 else f", scaled from {clips} (activations grow in proportion)"
    return (
        "## Memory\n\nIn single precision. Activations: all that autograd holds between the "
        "forward and the backward pass of one training step, for 100 clips of 15 frames"
        f"{scaled}; the paper doesn't say for which batch its figures are. Measured on "
        f"{found['hardware']['name']}.\n\n{table(header, rows)}"
    )


def _activations(row: dict[str, Any]) -> float:
    """Bytes held in a step of 100 clips: the tables of moving weights don't grow with clips."""
    table: int = row["flow_table_bytes"]
    held: float = table + (row["saved_bytes"] - table) * 100 / row["batch_size"]
    return held


# ---- speed, pictures, and how it was run


def _speeds(runs: Runs) -> str:
    speeds = {
        model: spread([s for run in found if (s := run.record.steps_per_second)])
        for model, found in runs.items()
    }
    base = speeds.get("svg")
    rows = []
    for model, speed in speeds.items():
        if speed is None:
            continue
        gradient = runs[model][0].record.config.options.get("gradient", "backprop")
        target = "–" if model == "svg" else f"{TARGETS.get(gradient, 0.35):g}"
        ratio = "–" if base is None else f"{speed.mean / base.mean:.3f}"
        rows.append([model, "–" if model == "svg" else gradient, f"{speed}", ratio, target])
    if not rows:
        return ""
    header = ["model", "gradient", "steps/s", "beside SVG", "at least"]
    return (
        "## Speed\n\nTraining steps a second, first steps left out. A flow evaluates its layers "
        "three times where SVG does once.\n\n" + table(header, rows)
    )


def speed_section(found: dict[str, Any]) -> str:
    """Steps a second by every gradient method, one after the other on one machine."""
    base = {row["width"]: row["steps_per_second"] for row in found["rows"] if row["model"] == "svg"}
    rows = []
    for row in found["rows"]:
        speed, gradient = row["steps_per_second"], row["gradient"]
        ratio = speed / base[row["width"]]
        target = TARGETS.get(gradient) if row["model"] == "svg-nanode" else None
        shown = "–" if target is None else f"{target:g}"
        if target is not None and found["hardware"]["device"] == "cuda":  # what it is said of
            shown += ": held" if ratio >= target else ": **did not hold**"
        method = [row["model"], row["width"], gradient or "–"]
        rows.append([*method, f"{speed:.2f}", f"{ratio:.3f}", shown])
    half = "bf16, channels last" if found["hardware"]["device"] == "cuda" else "fp32"
    clips = found["rows"][0]["batch_size"]
    header = ["model", "width", "gradient", "steps/s", "beside SVG", "at least"]
    return (
        f"All gradient methods beside each other ({half}, {clips} clips of 15 frames), on "
        f"{found['hardware']['name']}:\n\n{table(header, rows)}"
    )


def _clips(title: str, runs: Runs, least: Mapping[str, Any]) -> str:
    rows = []
    for model, found in runs.items():
        known = [run.clips for run in found if run.clips is not None]
        if known:
            first = known[0]
            rows.append(
                [
                    model,
                    len(known),
                    f"{first['sequences']} × {first['samples']}",
                    f"{first['n_past']} → {first['length'] - first['n_past']}",
                    _mean([sum(c["psnr"]) / len(c["psnr"]) for c in known], ".2f"),
                    _mean([sum(c["ssim"]) / len(c["ssim"]) for c in known], ".4f"),
                ]
            )
    if not rows:
        return ""
    rows += [
        [name, "–", "–", "–", *(f"{sum(s[m]) / len(s[m]):{style}}" for m, style in STYLES)]
        for name, s in least.items()
    ]
    header = ["model", "seeds", "clips × samples", "frames", "PSNR, dB", "SSIM"]
    return (
        f"## Predicted frames of {title}\n\nOf the best of all samples by mean SSIM (the published "
        "protocol: 256 clips × 100 samples); the horizon is in figure-video. Below the models, for "
        "scale, predictions that need none.\n\n" + table(header, rows)
    )


STYLES = (("psnr", ".2f"), ("ssim", ".4f"))


def _deterministic(runs: Runs, least: Mapping[str, Any]) -> str:
    rows, frames = [], ""
    for model, found in runs.items():
        for run in found:
            if run.clips is not None and run.record.metrics is not None:
                frames = f"{run.clips['n_past']} → {run.clips['length'] - run.clips['n_past']}"
                clips = run.record.metrics.steps * run.record.config.batch_size
                rows.append(
                    [
                        model,
                        f"{run.clips['sequences']:,} of {run.clips['data']}",
                        f"{run.record.metrics.steps:,}",
                        f"{clips / 10_000:.1f}",
                        f"{run.clips['openstl_mse']:.2f}",
                        f"{run.clips['openstl_ssim']:.4f}",
                    ]
                )
    if not rows:
        return ""
    rows += [
        [name, "–", "–", "–", f"{s['openstl_mse']:.2f}", f"{s['openstl_ssim']:.4f}"]
        for name, s in least.items()
    ]
    header = ["model", "test clips", "steps", "epochs of 10,000 clips", "MSE", "SSIM"]
    return (
        f"## Deterministic Moving MNIST, {frames}\n\nIn OpenSTL's definition (squared error summed "
        "over pixels, averaged over frames; its SSIM), latents at their means. Published, after "
        "200 / 2000 epochs of 10,000 clips, MSE: ConvLSTM 29.80 / 22.41, PredRNN 23.97 / 26.43, "
        "PredRNN++ 22.06 / 14.07, SimVP 26.69 / 15.05, TAU 24.60 / 15.69. Those are of the "
        "official 10,000 test clips (moving-mnist-test); moving-mnist-deterministic are clips made "
        "by the same rules from the test digits. Below the models, for scale, predictions that "
        "need none.\n\n" + table(header, rows)
    )


def _missing(root: Path, options: Options) -> str:
    words = ["FVD and LPIPS were not measured: their networks must be given by the user."]
    if not any(finished(root, place_of(BAIR, options)).values()):
        there = "its runs aren't over" if has_bair(options) else "the data set was not there"
        words.append(f"BAIR was not run: {there}.")
    words += [
        f"**Failed** on {recipe}, and in no mean above: {', '.join(failed)}."
        for recipe in (STOCHASTIC, DETERMINISTIC, BAIR)
        if (failed := diverged(root, place_of(recipe, options)))
    ]
    return "## What is not here\n\n" + " ".join(words)


def _settings(places: Mapping[str, Runs]) -> str:
    rows = []
    every = [(p, m, found[0]) for p, runs in places.items() for m, found in runs.items() if found]
    for place, model, run in every:
        record = run.record
        config, costs = record.config, record.costs
        assert isinstance(costs, VideoCosts)
        flow = record.flows[0] if record.flows else None
        rows.append(
            [
                place,
                model,
                "–" if flow is None else f"{flow.field}, {flow.steps} × {flow.solver}",
                "–" if flow is None else flow.gradient,
                config.options.get("width", 64),
                config.batch_size,
                f"{config.optimizer.lr:g}",
                config.precision,
                f"{config.minutes:g}" if config.minutes else f"{config.steps:,} steps",
                config.point_every,
                config.options.get("skip", "original"),
                f"{costs.parameters:,}",
                record.hardware.get("name", "unknown"),
                commit(record),
            ]
        )
    if not rows:
        return ""
    header = ["data", "model", "flow", "gradient", "width", "batch", "learning rate", "precision"]
    header += ["minutes", "steps in a mean", "skip", "parameters", "hardware", "commit"]
    return "## How it was run\n\n" + table(header, rows)
