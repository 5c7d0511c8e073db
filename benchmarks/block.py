r"""The block in plain PyTorch: f, the field as a user of a general ODE solver writes it, Euler.

f runs in ``case.dtype`` by explicit casts and returns the state's dtype, so that every system
evaluates the same function, in the backward pass too (where autocast would be off).
"""

from collections.abc import Callable, Mapping
from operator import attrgetter

import numpy as np
import torch
import torch.nn.functional as F
from problem import EPS, GROUPS, ORDER, Case
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


def normalise(x: Tensor, weight: Tensor, bias: Tensor, norm: str) -> Tensor:
    if norm == "group":
        return F.group_norm(x, GROUPS, weight, bias, EPS)
    return F.batch_norm(x, None, None, weight, bias, training=True, eps=EPS)


def bottleneck(x: Tensor, weights: Mapping[str, Tensor], case: Case) -> Tensor:
    """f(x, W): state ``(batch, width, side, side)`` in and out, in the state's dtype."""
    dtype = getattr(torch, case.dtype)
    w = {name: weight.to(dtype) for name, weight in weights.items()}
    h = x.to(dtype)
    for i, padding in ((1, 0), (2, 1), (3, 0)):
        h = F.relu(normalise(h, w[f"norm{i}.weight"], w[f"norm{i}.bias"], case.norm))
        h = F.conv2d(h, w[f"conv{i}.weight"], padding=padding)
    return h.to(x.dtype)


class Parameters(nn.Module):
    """Holds the parameters of one layer, so that they are named ``conv1.weight`` and so on."""

    def __init__(self, **shapes: tuple[int, ...]):
        super().__init__()
        for name, shape in shapes.items():
            self.register_parameter(name, nn.Parameter(torch.zeros(shape)))


class Bottleneck(nn.Module):
    """The autonomous module x ↦ f(x, W); a wrapper makes its weights functions of time."""

    def __init__(self, case: Case):
        super().__init__()
        self.case = case
        shapes: dict[str, dict[str, tuple[int, ...]]] = {}
        for name, shape in {**case.moving, **case.constant}.items():
            layer, _, parameter = name.partition(".")
            shapes.setdefault(layer, {})[parameter] = shape
        for layer, layer_shapes in shapes.items():
            self.add_module(layer, Parameters(**layer_shapes))

    def forward(self, x: Tensor) -> Tensor:
        # By attribute, as layers read their weights: a wrapper may lend them without registering.
        names = (*self.case.moving, *self.case.constant)
        return bottleneck(x, {name: attrgetter(name)(self) for name in names}, self.case)


class Field(nn.Module):
    """f(t, x) for a solver that knows nothing of time-varying weights.

    W(t) = z(t) @ A is computed inside f at each evaluation, one small product a parameter.
    """

    def __init__(self, case: Case, arrays: Mapping[str, np.ndarray], dtype: torch.dtype):
        super().__init__()
        self.case = case
        self.names = [*case.moving, *case.constant]
        self.alpha = nn.ParameterList(
            nn.Parameter(torch.from_numpy(arrays[name]).to(dtype)) for name in self.names
        )
        self.register_buffer("n", torch.arange(1, ORDER + 1, dtype=dtype))
        self.register_buffer("one", torch.ones(1, dtype=dtype))
        self.evaluations = 0

    def leaves(self) -> dict[str, Tensor]:
        return dict(zip(self.names, self.alpha, strict=True))

    def counting(self, solve: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        """The same solve, which starts counting evaluations anew."""

        def counted(x: Tensor) -> Tensor:
            self.evaluations = 0
            return solve(x)

        return counted

    def forward(self, t: Tensor, x: Tensor) -> Tensor:
        self.evaluations += 1
        return self.value(t, x)

    def value(self, t: Tensor, x: Tensor) -> Tensor:
        """f, without counting."""
        angles = self.n * t
        z = torch.cat([self.one, angles.cos(), angles.sin()])
        weights = self.leaves()
        for name, shape in self.case.moving.items():
            weights[name] = (z @ weights[name]).view(shape)
        return bottleneck(x, weights, self.case)


def times_of(steps: int, x: Tensor) -> Tensor:
    """t_k = k / K beside x. In float64, rounded once: k/K in float32 would be rounded twice."""
    return (torch.arange(steps, dtype=torch.float64) / steps).to(x)


def euler(
    field: Callable[[Tensor, Tensor], Tensor],
    x: Tensor,
    times: Tensor,
    step: Callable | None = None,
) -> Tensor:
    """x ← x + f(t_k, x) / K at K times; ``step`` may wrap one step (checkpointing)."""

    def advance(t: Tensor, x: Tensor) -> Tensor:
        return x + field(t, x) / len(times)

    for t in times:
        x = advance(t, x) if step is None else step(advance, t, x)
    return x


def reference(
    case: Case, arrays: Mapping[str, np.ndarray], steps: int, device: torch.device
) -> dict[str, np.ndarray]:
    """Gradients of the Euler loop in float64, by autograd; each step's activations recomputed."""
    exact = case.with_options("float64", case.norm)
    field = Field(exact, arrays, torch.float64).to(device)
    x0 = torch.from_numpy(arrays["x0"]).to(device, torch.float64).requires_grad_()
    cotangent = torch.from_numpy(arrays["cotangent"]).to(device, torch.float64)
    recompute = lambda step, t, x: checkpoint(step, t, x, use_reentrant=False)  # noqa: E731
    y = euler(field, x0, times_of(steps, x0), recompute)
    leaves = {"x0": x0, **field.leaves()}
    gradients = torch.autograd.grad(y, list(leaves.values()), cotangent)
    return {name: g.cpu().numpy() for name, g in zip(leaves, gradients, strict=True)}
