"""The pictures of docs/stability.md and their numbers (``python docs/stability_figures.py``)."""

import json
import math
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

import nanode
from nanode.analysis import (
    Equation,
    ImplicitMidpoint,
    Steps,
    chebyshev_figure,
    gradient_norms,
    jacobian_spectrum,
    sensitivity,
    sensitivity_values,
    state_transition,
    transition_values,
)

FOLDER = Path(__file__).parent / "images"
SIZE, STEPS, LENGTH = 32, 1000, 50.0


class Matrix(nn.Module):
    """x ↦ Ax or tanh(Ax), A as it is or made skew-symmetric, of the same size either way."""

    def __init__(self, skew: bool, bend: bool) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.randn(SIZE, SIZE, dtype=torch.float64) / SIZE**0.5)
        self.skew, self.bend = skew, bend

    def forward(self, x: Tensor) -> Tensor:
        """The field at x."""
        a = (self.a - self.a.T) / 2**0.5 if self.skew else self.a
        y = x @ a.T
        return y.tanh() if self.bend else y


def field(skew: bool, bend: bool) -> nanode.TimeVarying:
    """Independent Gaussian entries that move as waves of order 2, variance 1/n at all times."""
    torch.manual_seed(1)
    basis = nanode.Trigonometric(2, frequency=2 * math.pi / LENGTH, interval=(0.0, LENGTH))
    return nanode.TimeVarying(Matrix(skew, bend), basis, start=nanode.Independent())


def gradients() -> dict[str, float]:
    """Gradient norms over 1,000 steps; returns how much each grew."""
    cases: list[tuple[str, bool, nanode.solvers.Stepper]] = [
        ("skew, implicit midpoint", True, ImplicitMidpoint()),
        ("skew, RK4", True, nanode.RK4()),
        ("skew, Euler", True, nanode.Euler()),
        ("random, RK4", False, nanode.RK4()),
        ("random, Euler", False, nanode.Euler()),
    ]
    x = torch.randn(16, SIZE, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    figure = Figure(figsize=(11, 4), layout="constrained")
    found = {}
    for ax, bend in zip(figure.subplots(1, 2), (False, True), strict=True):
        name = "dx/dt = tanh(W(t) x)" if bend else "dx/dt = W(t) x"
        for label, skew, solver in cases:
            block = nanode.ODEBlock(field(skew, bend), STEPS, solver)
            norms = gradient_norms(block, x)
            found[f"{name}, {label}"] = norms.growth
            style = "--" if "Euler" in label else ":" if "RK4" in label and skew else "-"
            color = "C0" if skew else "C1"
            norms.plot(ax, f"{label}: ×{norms.growth:.3g}", linestyle=style, color=color)
            if label == cases[0][0]:
                found[f"{name}, {label}, largest change"] = float((norms.norms - 1).abs().max())
        ax.set_title(f"{name}, {STEPS} steps back from t = {LENGTH:g}")
        ax.set_ylabel("‖∂L/∂x(t)‖")
    figure.savefig(FOLDER / "gradient-norms.png", dpi=130)
    return found


def estimates() -> dict[str, float]:
    """The largest relative error of the randomised estimates where exact values are known.

    By default settings, six values; of a network, and of Gaussian matrices, the hardest case.
    """
    torch.manual_seed(0)
    n = 400
    module = nn.Sequential(nn.Linear(n, n), nn.Tanh(), nn.Linear(n, n)).double()
    moving = nanode.TimeVarying(module, nanode.Legendre(degree=1), start=nanode.Noisy(1.0))
    block = nanode.ODEBlock(moving, steps=5, scale=2.0)
    x = torch.randn(n, dtype=torch.float64)
    of = Steps()
    exact = state_transition(block, x, at=[1.0], of=of).singular_values.values[-1:, :6]
    found = {"Φ": _error(transition_values(block, x, of=of).values, exact)}
    dense, thin = jacobian_spectrum(block, x, of=of), jacobian_spectrum(block, x, count=6, of=of)
    found["J"] = _error(thin.singular_values, dense.singular_values[:, :6])
    found["μ₂"] = _error(thin.logarithmic_norm, dense.logarithmic_norm)
    narrow = nn.Sequential(nn.Linear(20, 10), nn.Tanh(), nn.Linear(10, 20)).double()
    small = nanode.TimeVarying(narrow, nanode.Chebyshev(degree=2), start=nanode.Noisy(0.7))
    block, x = nanode.ODEBlock(small, steps=6), x.view(20, 20)
    exact = sensitivity(block, x, at=[1.0], of=of, limit=10**6).singular_values.values[-1:, :6]
    found["S"] = _error(sensitivity_values(block, x, of=of).values, exact)
    for n, seed in ((500, 0), (500, 1), (500, 2), (1000, 0), (1000, 1), (2000, 0), (2000, 1)):
        torch.manual_seed(seed)
        layer = nn.Linear(n, n, bias=False).double()
        nn.init.normal_(layer.weight, std=n**-0.5)
        block, x = nanode.ODEBlock(nanode.Autonomous(layer), steps=2), torch.zeros(n).double()
        w = layer.weight.detach()
        euler = torch.linalg.matrix_power(torch.eye(n) + w / 2, 2)
        for count in (1, 3, 6):
            exact = torch.linalg.svdvals(euler)[None, :count]
            phi = _error(transition_values(block, x, count=count, of=of).values, exact)
            thin = jacobian_spectrum(block, x, count=count, points=1, of=of)
            j = _error(thin.singular_values, torch.linalg.svdvals(w)[None, :count])
            mu = _error(thin.logarithmic_norm, torch.linalg.eigvalsh((w + w.T) / 2)[-1:])
            for name, error in (("Φ", phi), ("J", j), ("μ₂", mu)):
                key = f"{name}, Gaussian"
                found[key] = max(found.get(key, 0.0), error)
    return found


def _error(found: Tensor, exact: Tensor) -> float:
    return float((found / exact - 1).abs().max())


def orthogonality() -> float:
    """How far Φ is from orthogonal for skew weights, by the equation, RK4 on 4,000 steps."""
    block = nanode.ODEBlock(field(skew=True, bend=False), 10)
    x = torch.zeros(SIZE, dtype=torch.float64)
    found = state_transition(block, x, of=Equation(steps=4000)).matrices
    return float((found.mT @ found - torch.eye(SIZE)).abs().max())


def main() -> None:
    """Draw all of them, and print the numbers."""
    FOLDER.mkdir(exist_ok=True)
    torch.set_num_threads(1)
    numbers = {
        "gradients": gradients(),
        "estimates": estimates(),
        "orthogonality": orthogonality(),
    }
    figure = chebyshev_figure()
    figure.figure().savefig(FOLDER / "random-weights.png", dpi=110)
    for name, weights in figure.by_basis.items():
        numbers[name] = {
            "swing": weights.swing,
            "condition": float(weights.condition.median()),
            "worst": weights.worst,
            "basis": dict(zip(figure.functions, figure.conditions[name], strict=True)),
        }
    print(json.dumps(numbers, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()
