"""Activation memory of one flow in single precision: what each gradient method holds.

memory/memory.json
"""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from nanode.analysis import measure_memory
from nanode.block import flows
from nanode.experiments.plan import Options, Planned
from nanode.models import create
from nanode.reports.markdown import table, write_page
from nanode.training.environment import provenance
from nanode.training.files import read_json, write_json

#: Model, solver and gradient; the first is what the others are compared with.
METHODS = (
    ("uncon-resnet", "euler", "backprop"),
    ("t-nanode-10", "euler", "backprop"),
    ("t-nanode-10", "euler", "checkpointed"),
    ("t-nanode-10", "coupled-euler", "reversal"),
    ("t-nanode-10", "leapfrog", "reversal"),
)
EVALUATIONS = (10, 100)
FILE = Path("memory") / "memory.json"
#: What constant memory should cost at most, beside the untied ResNet at K = 10.
TARGET = 0.15


class Memory:
    """Activation memory of one flow; nothing is trained, ``report`` measures."""

    summary = "activation memory of the paper's flow in fp32, by gradient method, K = 10, 100"
    draws = False

    def plan(self, options: Options, root: Path | None = None) -> list[Planned]:
        """No runs."""
        return []

    def report(self, root: Path, out: Path, options: Options) -> list[Path]:
        """Measure unless that was done, and write the page."""
        measured_once(root / FILE, measure, options)
        section = memory_section(root) or "Not measured yet."
        return [write_page(out / "memory.md", "Activation memory", [section])]


def measure(options: Options) -> dict[str, Any]:
    """Bytes of one forward and backward pass by each method, at each number of evaluations."""
    device = torch.device("cuda" if torch.cuda.is_available() and not options.tiny else "cpu")
    batch = 128 if device.type == "cuda" else 4
    preset, side = ("tiny", 8) if options.tiny else ("paper", 32)
    rows = []
    for model, solver, gradient in METHODS:
        for steps in EVALUATIONS:
            net = create(model, preset=preset, steps=steps, solver=solver, gradient=gradient)
            (block,) = flows(net.to(device)).values()
            x = torch.randn(batch, next(net.stem.parameters()).shape[0], side, side, device=device)
            row = {"model": model, "solver": solver, "gradient": gradient, "evaluations": steps}
            rows.append(row | asdict(measure_memory(block, x)))
    about = {"state": [batch, *x.shape[1:]], "precision": "float32"}
    return about | provenance(device) | {"rows": rows}


def measured_once(
    path: Path, measure: Callable[[Options], dict[str, Any]], options: Options
) -> dict[str, Any] | None:
    """What a file holds, measured if there is none, and again on a GPU if that was a CPU.

    Where nothing may be measured, None if there is none.
    """
    found = read_json(path) if path.exists() else None
    gpu = torch.cuda.is_available() and not options.tiny
    if options.measure and (found is None or (gpu and found["hardware"]["device"] != "cuda")):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, measure(options))
        found = read_json(path)
    return found


def memory_section(root: Path) -> str:
    """The measured bytes as a part of a page; empty if nothing was measured."""
    path = root / FILE
    if not path.exists():
        return ""
    found = read_json(path)
    held = {
        (row["model"], row["solver"], row["gradient"], row["evaluations"]): row
        for row in found["rows"]
    }
    header = ["model, solver, gradient"]
    header += [f"K = {k}: held, MB" for k in EVALUATIONS]
    header += [f"beside the ResNet, K = {k}" for k in EVALUATIONS]
    header += [f"K = {k}: peak, MB" for k in EVALUATIONS]
    rows, words = [], []
    # A file that an earlier version wrote may hold fewer methods.
    for method in (m for m in METHODS if all((*m, k) in held for k in EVALUATIONS)):
        ours = [held[*method, k] for k in EVALUATIONS]
        theirs = [held[*METHODS[0], k] for k in EVALUATIONS]
        ratios = [a["held"] / b["held"] for a, b in zip(ours, theirs, strict=True)]
        sizes = [f"{row['held'] / 1e6:.1f}" for row in ours]
        peaks = [f"{row['peak'] / 1e6:.1f}" for row in ours]
        rows.append([", ".join(method), *sizes, *(f"{ratio:.3f}" for ratio in ratios), *peaks])
        if method[2] == "reversal":
            peak = [a["peak"] / b["peak"] for a, b in zip(ours, theirs, strict=True)]
            words.append(_verdict(method, ratios[0], [row["held"] for row in ours], peak))
    state = "×".join(map(str, found["state"]))
    at = "unknown" if found["commit"] is None else found["commit"][:9]
    return "\n\n".join(
        [
            "## Activation memory in single precision",
            f"What one flow holds from its forward to its backward pass, for a state of {state} in "
            f"{found['precision']}, beside input, output and the table of weights; and the peak of "
            "everything, gradients and tables included. K counts evaluations. Measured on "
            f"{found['hardware']['name']}, torch {found['versions']['torch']}, commit "
            f"{at}{'+' if found['modified'] else ''}.",
            table(header, rows),
            "\n".join(words),
        ]
    )


def _verdict(method: tuple[str, str, str], ratio: float, held: list[int], peak: list[float]) -> str:
    small = "held" if ratio <= TARGET else "**did not hold**"
    same = "held" if len(set(held)) == 1 else "**did not hold**"
    return (
        f"- {method[1]} with {method[2]}: at most {TARGET} of the untied ResNet at K = 10: {small} "
        f"({ratio:.3f}); the same bytes at K = 100: {same} ({held[1] - held[0]:+,} bytes). Of "
        f"the ResNet's peak: {peak[0]:.3f} at K = 10, {peak[1]:.3f} at K = 100."
    )
