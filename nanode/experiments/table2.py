"""Table 2: video prediction by SVG, and with autonomous and non-autonomous flows in it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nanode.experiments.memory import measured_once
from nanode.experiments.plan import Options, Planned, standing
from nanode.experiments.video import (
    BAIR,
    DETERMINISTIC,
    STOCHASTIC,
    Runs,
    has_bair,
    place_of,
    planned,
    runs_in,
    trivial,
)
from nanode.experiments.video_costs import MEMORY, measure, memory_section, speed_section, verdict
from nanode.experiments.video_losses import comparisons, mean_text
from nanode.reports.claims import WORDS
from nanode.reports.markdown import table, write_page
from nanode.reports.settings import commit
from nanode.reports.statistics import spread
from nanode.training.video import VideoCosts

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


class Table2:
    """−ELBO, memory and speed of the three video models."""

    summary = "Table 2: −ELBO, memory and speed of SVG, Auto and NANODE on video"
    draws = False

    def plan(self, options: Options, root: Path | None = None) -> list[Planned]:
        """Every model on every data set, under one budget of time."""
        return planned(options)

    def report(self, root: Path, out: Path, options: Options) -> list[Path]:
        """The tables, beside the paper's; memory is measured unless that was done."""
        places = [place_of(recipe, options) for recipe in (STOCHASTIC, DETERMINISTIC, BAIR)]
        mnist, deterministic, bair = (runs_in(root, place) for place in places)
        least = [trivial(root, place, options) for place in places]
        costs = measured_once(root / MEMORY, measure, options)
        parts = [
            f"{ABOUT} {WORDS} Leads are those of mean −ELBOs, in units of SVG's.",
            standing(self.plan(options, root), root, options),
            *comparisons("Moving MNIST", mnist, column=0),
            *comparisons("BAIR", bair, column=1),
            _missing(root, options),
            memory_section(costs) if costs else "",
            _speeds(mnist),
            speed_section(costs) if costs else "",
            _clips("stochastic Moving MNIST", mnist, least[0]),
            _clips("BAIR", bair, least[2]),
            _deterministic(deterministic, least[1]),
            _settings(dict(zip(places, (mnist, deterministic, bair), strict=True))),
        ]
        return [write_page(out / "table2.md", "Table 2: video prediction", parts)]


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
        record = runs[model][0].record
        gradient = record.config.options.get("gradient", "backprop")
        row = [model, "–" if model == "svg" else gradient, f"{speed}"]
        if base is None:
            rows.append([*row, "–", "–"])
        else:
            ratio = speed.mean / base.mean
            judged = verdict(model, gradient, ratio, record.hardware)
            rows.append([*row, f"{ratio:.3f}", judged])
    if not rows:
        return ""
    header = ["model", "gradient", "steps/s", "beside SVG", "at least"]
    return (
        "## Speed\n\nTraining steps a second, first steps left out. A flow evaluates its layers "
        "three times where SVG does once.\n\n" + table(header, rows)
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
                    mean_text([sum(c["psnr"]) / len(c["psnr"]) for c in known], ".2f"),
                    mean_text([sum(c["ssim"]) / len(c["ssim"]) for c in known], ".4f"),
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
    if not any(runs_in(root, place_of(BAIR, options)).values()):
        there = "its runs aren't over" if has_bair(options) else "the data set was not there"
        why = "the tiny variant leaves it out" if options.tiny else there
        words.append(f"BAIR was not run: {why}.")
    places = runs_in(root, place_of(DETERMINISTIC, options)).values()
    clips = [run.clips for found in places for run in found if run.clips is not None]
    if clips and not any(measured["data"] == "moving-mnist-test" for measured in clips):
        why = "is left out by the tiny variant" if options.tiny else "was not there"
        words.append(
            f"Moving MNIST's official test file {why}: the deterministic numbers are of "
            f"{clips[0]['sequences']:,} clips made by the same rules."
        )
    for recipe in (STOCHASTIC, DETERMINISTIC, BAIR):
        runs = runs_in(root, place_of(recipe, options), "failed")
        if failed := [f"{m} {run.folder.name}" for m, found in runs.items() for run in found]:
            words.append(f"**Failed** on {recipe}, and in no mean above: {', '.join(failed)}.")
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
