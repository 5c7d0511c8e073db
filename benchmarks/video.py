"""Training steps a second of the video models, and their memory: one line of JSON each.

    python benchmarks/video.py --preset tiny
    python benchmarks/video.py --preset full --device cuda --precision bf16-mixed --json video.json

Rows are models × gradient methods × what is compiled: nothing, each flow's field (``flows``), or
encoder and decoder (``model``). All on Moving MNIST from the embedded digits, made on the device.
A row that fails says why.
"""

import argparse
import gc
import itertools
import json
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from nanode.models.video import NAMES
from nanode.training.environment import commit, hardware, versions
from nanode.training.video import VideoConfig
from nanode.training.video.costs import measure_video_costs
from nanode.training.video.setup import VideoSetup, prepare

#: Width, clips in a batch, and frames given and predicted.
PRESETS = {"full": (64, 100, 5, 10), "narrow": (16, 100, 5, 10), "tiny": (4, 2, 2, 2)}
GRADIENTS = ("backprop", "checkpointed")
COMPILED = ("nothing", "flows", "model")


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--preset", choices=tuple(PRESETS), default="tiny")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--precision", choices=("32-true", "bf16-mixed"), default="32-true")
    parser.add_argument("--models", nargs="+", choices=tuple(NAMES), default=list(NAMES))
    parser.add_argument("--gradients", nargs="+", choices=GRADIENTS, default=list(GRADIENTS))
    parser.add_argument("--compiled", nargs="+", choices=COMPILED, default=["nothing"])
    parser.add_argument("--encode", choices=("batch", "frame"), default="batch")
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--repeats", type=int, default=5, help="timed stretches")
    parser.add_argument("--steps", type=int, default=3, help="steps in a stretch")
    parser.add_argument("--json", type=Path, metavar="PATH")
    options = parser.parse_args(argv)
    if min(options.repeats, options.steps) < 1:
        parser.error("--repeats and --steps must be positive")
    return options


def rows(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """SVG has no flows: only what all of it is compiled by makes a difference to it."""
    for model, gradient, compiled in itertools.product(
        options.models, options.gradients, options.compiled
    ):
        if model == "svg" and (gradient != options.gradients[0] or compiled == "flows"):
            continue
        yield {
            "model": model,
            "gradient": None if model == "svg" else gradient,
            "compiled": compiled,
        }


def configuration(row: dict[str, Any], options: argparse.Namespace) -> VideoConfig:
    width, clips, n_past, n_future = PRESETS[options.preset]
    own: dict[str, Any] = {"width": width, "encode": options.encode}
    if row["gradient"] is not None:
        own |= {"gradient": row["gradient"], "compile": row["compiled"] == "flows"}
    return VideoConfig(
        data="moving-digits",
        model=row["model"],
        options=own,
        n_past=n_past,
        n_future=n_future,
        batch_size=clips,
        steps=1,
        precision=options.precision,
        compile=row["compiled"] == "model",
        channels_last=options.channels_last,
        device=options.device,
        progress=False,
    )


def measure(row: dict[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    setup = prepare(configuration(row, options))
    costs = measure_video_costs(setup)
    setup.model.train()
    start = time.perf_counter()
    stretch(setup, 1)
    first = time.perf_counter() - start
    stretch(setup, options.steps)
    if options.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    times = [stretch(setup, options.steps) / options.steps for _ in range(options.repeats)]
    peak = torch.cuda.max_memory_allocated() if options.device == "cuda" else None
    return {
        "steps_per_second": 1 / statistics.median(times),
        "milliseconds": [1000 * t for t in times],
        "first_step_seconds": first,
        "parameters": costs.parameters,
        "kernel_bytes": costs.kernel_bytes,
        # Of one step, uncompiled: what autograd holds between the passes, and the peak of both.
        "saved_bytes": costs.saved_bytes,
        "step_peak_bytes": costs.peak_bytes,
        # Of everything, optimizer and compiled code included.
        "peak_bytes": peak,
    }


def stretch(setup: VideoSetup, steps: int) -> float:
    """Seconds of some steps, data included."""
    start = time.perf_counter()
    for step in range(steps):
        setup.step(setup.batch(step))
    if setup.fabric.device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def main(argv: list[str] | None = None) -> None:
    options = arguments(argv)
    width, clips, n_past, n_future = PRESETS[options.preset]
    common = {
        "width": width,
        "batch": clips,
        "frames": n_past + n_future,
        "precision": options.precision,
        "encode": options.encode,
        "channels_last": options.channels_last,
    }
    done = []
    for row in rows(options):
        try:
            found = measure(row, options)
        except (RuntimeError, ValueError, AssertionError) as why:
            found = {"error": f"{type(why).__name__}: {str(why)[:300]}"}
        found = row | common | found
        # Compared with SVG as it is compiled, or else with SVG as it is.
        speeds = {
            other["compiled"]: other["steps_per_second"]
            for other in done
            if other["model"] == "svg" and "steps_per_second" in other
        }
        base = speeds.get(row["compiled"], speeds.get("nothing"))
        if base is not None and "steps_per_second" in found:
            found["speed_beside_svg"] = found["steps_per_second"] / base
        done.append(found)
        print(json.dumps(found), flush=True)
        gc.collect()
        torch.compiler.reset()
        if options.device == "cuda":
            torch.cuda.empty_cache()
    if options.json is not None:
        machine = hardware(torch.device(options.device))
        about = {"hardware": machine, "versions": versions(), "commit": commit()[0]}
        document = about | {"rows": done}
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
