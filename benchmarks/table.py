"""What is written down about a comparison: the record for JSON, the table for reading."""

import os
import platform
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

import problem

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = (
    "torch",
    "numpy",
    "torchdiffeq",
    "torchode",
    "torchdyn",
    "jax",
    "jaxlib",
    "diffrax",
    "equinox",
)
COLUMNS = (
    ("forward ms", "forward_ms", "{:.2f}", 1),
    ("backward ms", "backward_ms", "{:.2f}", 1),
    ("total ms", "total_ms", "{:.2f}", 1),
    ("floor ms", "floor_ms", "{:.2f}", 1),
    ("× floor", "floor_ratio", "{:.2f}", 1),
    ("first s", "first_call_s", "{:.1f}", 1),
    ("peak MB", "peak_bytes", "{:.1f}", 1e-6),
    ("error x0", "error_x0", "{:.1e}", 1),
    ("error coef.", "error_coefficients", "{:.1e}", 1),
    ("evals", "evaluations", "{:d}", 1),
)
NOTES = """\
Medians. Memory: peak of forward + backward beyond what was held before.
Errors: ‖g − g_ref‖ / ‖g_ref‖ against the same discretisation in float64 (Euler; another one is \
named in the row).
An exact method shows about 1e-7 in float32, or 1e-5 to 1e-3 where rounding opens or shuts a \
single ReLU at its kink (in float64 the same solve shows 1e-15).
In bfloat16 rounding alone gives a few 1e-2.
PyTorch rows run eagerly but for those named compiled or captured; diffrax rows are compiled, and \
their backward is total minus forward.
floor: bytes that evaluations so arranged must move (counted in floor.py) at the speed of a copy \
here, or their arithmetic at that of a large product, whichever takes longer; first: the first \
call, compilation included.
evals: evaluations of f in the forward pass."""


def versions() -> dict[str, str]:
    # The checkout comes first on the systems' path, so its version is the one measured.
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found = {"python": platform.python_version(), "nanode": project["version"]}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found


def record(
    device: str,
    case: problem.Case,
    repeats: int,
    seed: int,
    about: dict[str, Any],
    rows: list[dict[str, Any]],
) -> dict[str, Any]:
    # Here, since processes that measure JAX import this file and have no use for torch.
    from nanode.training.environment import commit, now, processor

    return {
        "date": now(),
        "hardware": {
            "device": device,
            "cpu": processor(),
            "cores": os.cpu_count(),
            "torch_threads": about["threads"],
            "gpu": about["gpu"],
        },
        "versions": versions(),
        "commit": commit()[0],
        #: What the floor is reckoned by.
        "copy_bytes_per_second": about["bandwidth"],
        "product_operations_per_second": about["rate"],
        "problem": problem.describe(case),
        "repeats": repeats,
        "seed": seed,
        "rows": rows,
    }


def _cells(row: dict[str, Any]) -> list[str]:
    cells = [str(row["steps"]), row["system"]]
    for _, key, pattern, scale in COLUMNS:
        value = row.get(key)
        cells.append("–" if value is None else pattern.format(value * scale))
    if row["status"] != "ok":
        note = f"{row['status']}: {' '.join(row['reason'].split())}"
    elif row["reference"] != "Euler":
        note = f"Coupled(Euler), K/2 steps; error against {row['reference']}"
    else:
        note = ""
    return [*cells, note if len(note) <= 90 else note[:89] + "…"]


def render(result: dict[str, Any]) -> str:
    """A Markdown table, K by K."""
    case, hardware = result["problem"], result["hardware"]
    header = ["K", "system", *(title for title, *_ in COLUMNS), "note"]
    rows = [_cells(row) for row in sorted(result["rows"], key=lambda row: row["steps"])]
    widths = [max(len(line[i]) for line in [header, *rows]) for i in range(len(header))]
    left = (1, len(header) - 1)

    def line(cells: list[str]) -> str:
        pairs = enumerate(zip(cells, widths, strict=True))
        return (
            "| " + " | ".join(c.ljust(w) if i in left else c.rjust(w) for i, (c, w) in pairs) + " |"
        )

    rule = "|" + "|".join("-" * (w + 1) + ("-" if i in left else ":") for i, w in enumerate(widths))
    place = hardware["gpu"] if hardware["device"] == "cuda" else hardware["cpu"]
    installed = ", ".join(f"{k} {v}" for k, v in result["versions"].items() if v != "not installed")
    return "\n".join(
        [
            f"{case['batch']}×{case['width']}×{case['side']}×{case['side']}, hidden "
            f"{case['hidden']}, {case['norm']} norm, f in {case['dtype']}, state in "
            f"{case['state_dtype']}, {case['basis']}; {result['repeats']} repeats",
            f"{place} ({hardware['device']}); {installed}; {result['date']}",
            "",
            line(header),
            rule + "|",
            *map(line, rows),
            "",
            NOTES,
        ]
    )
