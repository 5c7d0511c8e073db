r"""The problem every system solves: sizes, coefficients, inputs. NumPy only.

.. math:: x'(t) = f(x, W(t)), \quad t \in [0, 1], \qquad
    W(t) = a_0 + \sum_{n=1}^{10} a_n \cos nt + \sum_{n=1}^{10} b_n \sin nt

f is the pre-activation bottleneck (norm, ReLU, 1×1; norm, ReLU, 3×3; norm, ReLU, 1×1). The three
convolutions move with t, the affine maps of the norms don't. No deep-learning library is imported
here, so that a JAX process never loads PyTorch and the other way round.
"""

from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

ORDER = 10
COEFFICIENTS = 2 * ORDER + 1
GROUPS = 8
EPS = 1e-5


@dataclass(frozen=True)
class Case:
    """One size of the problem; ``dtype`` is that of f, the state is never below float32."""

    batch: int
    width: int
    hidden: int
    side: int
    dtype: str = "float32"
    norm: str = "group"

    @property
    def state_dtype(self) -> str:
        return "float64" if self.dtype == "float64" else "float32"

    @property
    def state_shape(self) -> tuple[int, int, int, int]:
        return (self.batch, self.width, self.side, self.side)

    @property
    def moving(self) -> dict[str, tuple[int, int, int, int]]:
        """Name → shape of each convolution kernel; its coefficients are ``(21, numel)``."""
        return {
            "conv1.weight": (self.hidden, self.width, 1, 1),
            "conv2.weight": (self.hidden, self.hidden, 3, 3),
            "conv3.weight": (self.width, self.hidden, 1, 1),
        }

    @property
    def constant(self) -> dict[str, tuple[int]]:
        """Name → shape of each parameter that doesn't depend on t."""
        channels = {"norm1": self.width, "norm2": self.hidden, "norm3": self.hidden}
        return {f"{n}.{p}": (c,) for n, c in channels.items() for p in ("weight", "bias")}

    def with_options(self, dtype: str | None, norm: str) -> "Case":
        return replace(self, dtype=dtype or self.dtype, norm=norm)


PRESETS = {
    "tiny": Case(batch=2, width=16, hidden=8, side=8),
    "cpu": Case(batch=8, width=256, hidden=64, side=8),
    "gpu": Case(batch=128, width=256, hidden=64, side=32, dtype="bfloat16"),
}


def draw(case: Case, seed: int) -> dict[str, np.ndarray]:
    """Seeded parameters, input and cotangent, all exactly representable in float32.

    At every t the 21 functions have squared norm 1 + 10, so coefficients of variance
    2 / (11 · fan_in) give W(t) the He scale all along the interval. The cotangent is random: a loss
    like ``y.sum()`` hides errors that cancel over the components.
    """
    rng = np.random.default_rng(seed)
    arrays = {}
    for name, shape in case.moving.items():
        fan_in = int(np.prod(shape[1:]))
        alpha = rng.standard_normal((COEFFICIENTS, int(np.prod(shape))), dtype=np.float32)
        arrays[name] = alpha * np.float32((2 / ((1 + ORDER) * fan_in)) ** 0.5)
    for name, shape in case.constant.items():
        start = np.float32(1 if name.endswith("weight") else 0)
        arrays[name] = start + np.float32(0.1) * rng.standard_normal(shape, dtype=np.float32)
    arrays["x0"] = rng.standard_normal(case.state_shape, dtype=np.float32)
    arrays["cotangent"] = rng.standard_normal(case.state_shape, dtype=np.float32)
    return arrays


def save(folder: Path, arrays: dict[str, np.ndarray], name: str = "data") -> None:
    np.savez(folder / f"{name}.npz", **arrays)


def load(folder: Path, name: str = "data") -> dict[str, np.ndarray]:
    with np.load(folder / f"{name}.npz") as stored:
        return dict(stored)


def gradient_errors(
    case: Case, gradients: dict[str, np.ndarray], reference: dict[str, np.ndarray]
) -> dict[str, float]:
    """‖g − g_ref‖ / ‖g_ref‖ for the input, the coefficients and the affine maps of the norms."""
    groups = {"x0": ["x0"], "coefficients": list(case.moving), "affine": list(case.constant)}
    errors = {}
    for group, names in groups.items():
        exact = np.concatenate([reference[n].ravel() for n in names]).astype(np.float64)
        given = np.concatenate([np.asarray(gradients[n]).ravel() for n in names])
        errors[f"error_{group}"] = float(np.linalg.norm(given - exact) / np.linalg.norm(exact))
    return errors


def describe(case: Case) -> dict[str, object]:
    return {
        **asdict(case),
        "state_dtype": case.state_dtype,
        "basis": f"trigonometric order {ORDER}, base frequency 1",
        "groups": GROUPS if case.norm == "group" else None,
    }
