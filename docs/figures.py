"""The pictures of the documentation, each from a computation made here (``make figures``)."""

import json
from pathlib import Path

import matplotlib
import numpy as np
import torch
from torch import nn

import nanode

matplotlib.use("Agg")
import matplotlib.pyplot as plt

FOLDER = Path(__file__).parent / "images"


def amplification(stepper: nanode.solvers.Stepper, mu: torch.Tensor) -> torch.Tensor:
    """The spectral radius of one step of width 1 on dx/dt = μx, for every μ at once."""

    def f(j: int, x: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        return (mu * x[0],)

    states = len(stepper.start(f, (torch.ones_like(mu),)))
    columns = []
    for n in range(states):
        carry = tuple(
            (torch.ones_like(mu) if m == n else torch.zeros_like(mu),) for m in range(states)
        )
        columns.append(torch.stack([part for (part,) in stepper.step(f, 1.0, carry)], dim=-1))
    return torch.linalg.eigvals(torch.stack(columns, dim=-1)).abs().amax(-1)


def stability() -> None:
    """Where a coupled method amplifies, over h·μ and the coupling."""
    methods = [nanode.Euler(), nanode.Midpoint(), nanode.RK4()]
    figure, axes = plt.subplots(2, 3, figsize=(11, 6.8), sharey=True, layout="constrained")
    weak = np.geomspace(1e-3, 1, 160)
    for row, (direction, label) in enumerate([(-1.0, "h|μ|, μ < 0"), (1j, "h|μ|, μ imaginary")]):
        reach = np.geomspace(1e-3, 3, 200)
        mu = torch.tensor(direction * reach, dtype=torch.complex128)
        for axis, method in zip(axes[row], methods, strict=True):
            radius = np.stack(
                [
                    amplification(nanode.Coupled(method, coupling=max(1 - w, 1e-9)), mu).numpy()
                    for w in weak
                ]
            )
            shown = axis.pcolormesh(
                reach, weak, radius - 1, cmap="coolwarm", shading="auto", vmin=-0.1, vmax=0.1
            )
            axis.contour(reach, weak, radius, levels=[1 + 1e-9], colors="black", linewidths=1)
            if row == 0:
                axis.plot(weak, weak, "--", color="black", linewidth=0.8)
                axis.set_title(f"Coupled({method!r})")
            axis.set_xscale("log")
            axis.set_yscale("log")
            axis.set_xlabel(label)
        axes[row, 0].set_ylabel("1 − λ")
    figure.colorbar(shown, ax=axes, label="spectral radius − 1", extend="both")
    figure.savefig(FOLDER / "stability.png", dpi=130)
    plt.close(figure)


def unit_field(width: int = 32) -> nn.Module:
    """tanh(Wx) with ‖W‖₂ = 1."""
    torch.manual_seed(0)
    linear = nn.Linear(width, width)
    with torch.no_grad():
        linear.weight /= torch.linalg.matrix_norm(linear.weight, 2)
    return nn.Sequential(linear, nn.Tanh())


def drift(steps: int, length: float = 1.0, precision: str = "fp32", **coupling: float) -> float:
    """The relative error of x₀ after solving and undoing, for coupled Euler."""
    field = nanode.Autonomous(unit_field())
    solver = nanode.Coupled(nanode.Euler(), **coupling)
    block = nanode.ODEBlock(field, steps, solver, interval=(0.0, length))
    x = torch.randn(64, 32, generator=torch.Generator().manual_seed(1))
    if precision == "fp64":
        return nanode.reversal_drift(block.double(), x.double())
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "bf16 f"):
        return nanode.reversal_drift(block, x)


def drifts() -> dict[str, list[float]]:
    """Reversal drift against K, the coupling and the length of the interval."""
    figure, axes = plt.subplots(1, 3, figsize=(13, 3.8), sharey=True)
    counts = [5, 10, 20, 40, 80, 160, 320, 640]
    found: dict[str, list[float]] = {"steps": counts}
    for c in (0.5, 1.0, 2.0, 4.0, 8.0):
        found[f"c = {c:g}"] = [drift(k, damping=c) for k in counts]
    for coupling in (0.9, 0.99):
        found[f"λ = {coupling}"] = [drift(k, coupling=coupling) for k in counts]
    for name, values in list(found.items())[1:]:
        axes[0].loglog(counts, values, "--" if "λ" in name else "-", marker=".", label=name)
    axes[0].set_xlabel("steps K (fp32, length 1)")
    lengths = [0.25, 0.5, 1, 2, 4, 8, 16]
    for c in (1.0, 2.0, 4.0, 8.0):
        values = [drift(100, length=length, damping=c) for length in lengths]
        found[f"length, c = {c:g}"] = values
        axes[1].loglog(lengths, values, marker=".", label=f"c = {c:g}")
    found["lengths"] = lengths
    axes[1].set_xlabel("length of the interval (fp32, K = 100)")
    for precision in ("fp64", "fp32", "bf16 f"):
        found[precision] = [drift(k, precision=precision) for k in counts]
        axes[2].loglog(counts, found[precision], marker=".", label=precision)
    axes[2].set_xlabel("steps K (default coupling, length 1)")
    axes[0].set_ylabel("‖x − x₀‖ / ‖x₀‖ after undoing the solve")
    for axis in axes:
        axis.legend(fontsize=8)
        axis.grid(alpha=0.3)
    axes[0].set_ylim(1e-16, 10)
    figure.tight_layout()
    figure.savefig(FOLDER / "drift.png", dpi=130)
    plt.close(figure)
    return found


def main() -> None:
    """Draw all of them, and print the drifts."""
    FOLDER.mkdir(exist_ok=True)
    torch.set_num_threads(1)
    stability()
    print(json.dumps(drifts(), indent=1))


if __name__ == "__main__":
    main()
