"""One block through every system: time, peak memory, gradient error, side by side.

    python benchmarks/compare.py --preset tiny
    python benchmarks/compare.py --preset gpu --device cuda --json results.json

Each system runs in a process of its own on the same inputs and coefficients. A system that isn't
installed, or fails, is a row that says why. K counts evaluations of f in the forward pass.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

import floor
import problem
import table

# Named here again because a module of a system that isn't installed can't be imported.
NANODE = (
    "nanode-backprop",
    "nanode-checkpointed",
    "nanode-coupled-reversal",
    "nanode-backprop-compiled",
    "nanode-checkpointed-compiled",
    "nanode-coupled-reversal-compiled",
    "nanode-backsolve",
)
TORCH = (
    "torch-loop",
    "torch-loop-compiled",
    "torch-loop-captured",
    "torchdiffeq-odeint",
    "torchdiffeq-adjoint",
    "torchode-autodiff",
    "torchode-backsolve",
    "torchdyn-autograd",
    "torchdyn-adjoint",
)
JAX = ("diffrax-checkpoint", "diffrax-backsolve")
SYSTEMS = NANODE + TORCH + JAX
REFERENCE = "reference"


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--preset", choices=tuple(problem.PRESETS), default="cpu")
    parser.add_argument("--norm", choices=("group", "batch"), default="group")
    parser.add_argument(
        "--dtype",
        choices=("float32", "bfloat16", "float64"),
        help="of f; the state is float32, or float64 with it (default: the preset's)",
    )
    parser.add_argument("--steps", type=int, nargs="+", default=[10, 30, 100], metavar="K")
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=SYSTEMS, metavar="NAME")
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--timeout", type=float, default=900, help="seconds per system")
    parser.add_argument("--json", type=Path, metavar="PATH")
    parser.add_argument("--system", choices=(*SYSTEMS, REFERENCE), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if min(options.steps) < 1 or options.repeats < 1:
        parser.error("--steps and --repeats must be positive")
    # Ascending: XLA's high-water mark belongs to the process, so a smaller solve must come first.
    options.steps = sorted(set(options.steps))
    return options


def emit(**row: object) -> None:
    print(json.dumps(row), flush=True)


def write_reference(options: argparse.Namespace, case: problem.Case) -> None:
    import torch
    from block import reference
    from measure_torch import copy_bandwidth, product_rate

    arrays = problem.load(options.folder)
    device = torch.device(options.device)
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    cuda = device.type == "cuda"
    bandwidth = copy_bandwidth(arrays["x0"].nbytes) if cuda else None
    rate = product_rate(getattr(torch, case.dtype)) if cuda else None
    emit(gpu=gpu, threads=torch.get_num_threads(), bandwidth=bandwidth, rate=rate)
    for steps in options.steps:
        gradients = reference(case, arrays, steps, device)
        problem.save(options.folder, gradients, f"reference-{steps}")


def run_torch(options: argparse.Namespace, case: problem.Case, steps: int) -> dict[str, Any]:
    import torch
    from measure_torch import TorchSolve, measure_torch

    # TF32 would make "float32" another dtype, and only in some systems.
    torch.backends.cudnn.allow_tf32 = False
    torch.manual_seed(options.seed)
    device, dtype = torch.device(options.device), getattr(torch, case.state_dtype)
    arrays = problem.load(options.folder)
    if options.system in NANODE:
        import nanode_systems

        solve = nanode_systems.build(options.system, case, arrays, steps, device)
    else:
        import peers_torch
        from block import Field

        field = Field(case, arrays, dtype).to(device)
        forward = field.counting(peers_torch.SYSTEMS[options.system](field, steps))
        solve = TorchSolve(forward, field.leaves(), lambda: field.evaluations)
    row, gradients = measure_torch(solve, arrays, dtype, device, options.repeats)
    if options.system in NANODE and nanode_systems.coupled(options.system):
        del solve
        exact, row["reference"] = nanode_systems.own_reference(
            options.system, case, arrays, steps, device
        )
    else:
        exact, row["reference"] = problem.load(options.folder, f"reference-{steps}"), "Euler"
    return row | problem.gradient_errors(case, gradients, exact)


def run_jax(options: argparse.Namespace, case: problem.Case, steps: int) -> dict[str, Any]:
    import jax

    if case.dtype == "float32":
        jax.config.update("jax_default_matmul_precision", "highest")  # no TF32
    jax.config.update("jax_enable_x64", case.dtype == "float64")
    import peers_jax

    kind = jax.devices()[0].platform
    if kind != {"cuda": "gpu"}.get(options.device, options.device):
        raise RuntimeError(f"JAX runs on {kind} here, not on {options.device}")
    arrays = problem.load(options.folder)
    row, gradients = peers_jax.measure(options.system, case, arrays, steps, options.repeats)
    exact = problem.load(options.folder, f"reference-{steps}")
    return {**row, "reference": "Euler"} | problem.gradient_errors(case, gradients, exact)


def work(options: argparse.Namespace, case: problem.Case) -> None:
    """One system, one JSON line for each K. A failure at one K leaves the others standing."""
    run = run_jax if options.system in JAX else run_torch
    for steps in options.steps:
        key = {"system": options.system, "steps": steps}
        try:
            emit(**key, status="ok", **run(options, case, steps))
        except ImportError as error:
            emit(**key, status="not installed", reason=str(error))
        except Exception as error:
            traceback.print_exc()
            emit(**key, status="failed", reason=f"{type(error).__name__}: {error}")


def launch(options: argparse.Namespace, system: str, folder: Path) -> tuple[list[dict], str]:
    """The JSON lines of one system's process, and why it ended early if it did."""
    command = [sys.executable, str(Path(__file__).resolve()), "--system", system]
    command += ["--folder", str(folder), "--steps", *map(str, options.steps)]
    for name in ("device", "preset", "norm", "repeats", "seed", "dtype"):
        value = getattr(options, name)
        command += [f"--{name}", str(value)] if value is not None else []
    root = Path(__file__).resolve().parent.parent
    paths = [str(root), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        "JAX_PLATFORMS": options.device,
    }
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=options.timeout
        )
        output, errors, code = done.stdout, done.stderr, done.returncode
        reason = f"process ended with {code}: {(errors.strip().splitlines() or ['no message'])[-1]}"
    except subprocess.TimeoutExpired as expired:
        output, errors = (_text(stream) for stream in (expired.stdout, expired.stderr))
        code, reason = 1, f"not done after {options.timeout:g} s"
    rows = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    if code or any(row.get("status") == "failed" for row in rows):
        print(errors, file=sys.stderr)
    return rows, reason if code else ""


def _text(stream: bytes | str | None) -> str:
    """A timed-out process gives its output back as bytes even in text mode."""
    return stream.decode() if isinstance(stream, bytes) else stream or ""


def compare(options: argparse.Namespace, case: problem.Case) -> dict[str, Any]:
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="nanode-benchmark-") as name:
        folder = Path(name)
        problem.save(folder, problem.draw(case, options.seed))
        print("float64 reference", file=sys.stderr, flush=True)
        about, reason = launch(options, REFERENCE, folder)
        if reason:
            raise SystemExit(f"the float64 reference could not be computed: {reason}")
        for system in options.systems:
            print(system, file=sys.stderr, flush=True)
            found, reason = launch(options, system, folder)
            done = {row["steps"]: row for row in found}
            for steps in options.steps:
                lost = {"status": "failed", "reason": reason or "no result"}
                rows.append(done.get(steps, {"system": system, "steps": steps, **lost}))
    if about[0]["bandwidth"]:
        for row in rows:
            add_floor(row, case, about[0]["bandwidth"], about[0]["rate"])
    return table.record(options.device, case, options.repeats, options.seed, about[0], rows)


def add_floor(row: dict[str, Any], case: problem.Case, bandwidth: float, rate: float) -> None:
    """The least time of nanode's rows: of memory traffic or of arithmetic, whichever is longer."""
    names = {"backprop": "Backprop", "checkpointed": "Checkpointed", "coupled": "Reversal"}
    gradient = names.get(row["system"].split("-")[1])
    if row["status"] == "ok" and row["system"] in NANODE and gradient and case.norm == "batch":
        row["floor_bytes"] = floor.traffic(case, gradient, row["steps"])
        row["floor_operations"] = floor.operations(case, gradient, row["steps"])
        seconds = row["floor_bytes"] / bandwidth, row["floor_operations"] / rate
        row["floor_ms"] = 1e3 * max(seconds)
        row["floor_ratio"] = row["total_ms"] / row["floor_ms"]


def main() -> None:
    options = arguments()
    case = problem.PRESETS[options.preset].with_options(options.dtype, options.norm)
    if options.system == REFERENCE:
        write_reference(options, case)
    elif options.system:
        work(options, case)
    else:
        result = compare(options, case)
        print(table.render(result))
        if options.json:
            options.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
