"""Memory and speed of the video models, measured where Table 2 is first written.

table2/memory.json
"""

import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from nanode.experiments.plan import Options, changed
from nanode.experiments.video import MODELS
from nanode.reports.markdown import table
from nanode.reports.paper import TABLE2
from nanode.training.environment import provenance
from nanode.training.video import VideoConfig
from nanode.training.video.costs import measure_video_costs
from nanode.training.video.setup import prepare

MEMORY = Path("table2") / "memory.json"
GRADIENTS = ("backprop", "checkpointed")
#: Steps a second beside SVG's that three evaluations for one should reach.
TARGETS = {"backprop": 0.45, "checkpointed": 0.35}


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
    return provenance(torch.device(device)) | {"rows": rows}


def _steps_per_second(config: VideoConfig) -> float:
    """Of training as the runs do it, in half precision and with channels last on a GPU."""
    cuda = config.device == "cuda"
    own = {"precision": "bf16-mixed", "channels_last": True} if cuda else {}
    setup = prepare(changed(config, own))
    setup.model.train()
    begun, (warm, timed) = 0.0, (3, 20) if cuda else (1, 2)
    for step in range(warm + timed):
        if step == warm:
            begun = _now(cuda)
        setup.step(setup.batch(step))
    return timed / (_now(cuda) - begun)


def _now(cuda: bool) -> float:
    """Seconds on a clock, once a GPU has done its work."""
    if cuda:
        torch.cuda.synchronize()
    return time.perf_counter()


def memory_section(found: dict[str, Any]) -> str:
    """The measured bytes beside the paper's, for a batch of 100 clips."""
    header = ["model", "width", "gradient", "activations, GB", "beside SVG", "paper", "paper's"]
    header += ["3×3 kernels, GB", "paper", "all parameters, GB"]
    base = {row["width"]: _activations(row) for row in found["rows"] if row["model"] == "svg"}
    rows = []
    for row in found["rows"]:
        _, _, activations, parameters = TABLE2[row["model"]]
        held = _activations(row)
        rows.append(
            [
                row["model"],
                row["width"],
                row["gradient"] or "–",
                f"{held / 1e9:.3g}",
                f"{held / base[row['width']]:.3f}",
                f"{activations:g}",
                f"{activations / TABLE2['svg'][2]:.3f}",
                f"{row['kernel_bytes'] / 1e9:.3g}",
                f"{parameters:.2g}",
                f"{row['parameter_bytes'] / 1e9:.3g}",
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


def verdict(model: str, gradient: str | None, ratio: float, on: Mapping[str, Any]) -> str:
    """NANODE's target for its speed beside SVG's, and whether it held; the targets are a GPU's."""
    if model != "svg-nanode" or gradient not in TARGETS:
        return "–"
    shown = f"{TARGETS[gradient]:g}"
    if on.get("device") != "cuda":
        return shown
    return shown + (": held" if ratio >= TARGETS[gradient] else ": **did not hold**")


def speed_section(found: dict[str, Any]) -> str:
    """Steps a second by every gradient method, one after the other on one machine."""
    base = {row["width"]: row["steps_per_second"] for row in found["rows"] if row["model"] == "svg"}
    rows = []
    for row in found["rows"]:
        speed, gradient = row["steps_per_second"], row["gradient"]
        ratio = speed / base[row["width"]]
        method = [row["model"], row["width"], gradient or "–"]
        judged = verdict(row["model"], gradient, ratio, found["hardware"])
        rows.append([*method, f"{speed:.2f}", f"{ratio:.3f}", judged])
    half = "bf16, channels last" if found["hardware"]["device"] == "cuda" else "fp32"
    clips = found["rows"][0]["batch_size"]
    header = ["model", "width", "gradient", "steps/s", "beside SVG", "at least"]
    return (
        f"All gradient methods beside each other ({half}, {clips} clips of 15 frames), on "
        f"{found['hardware']['name']}:\n\n{table(header, rows)}"
    )
