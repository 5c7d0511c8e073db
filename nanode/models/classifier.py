"""Image classifiers: stem, one or more flows with downsampling between, head."""

from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from torch import Tensor, nn

from nanode.bases.basis import checked_count
from nanode.block import ODEBlock
from nanode.gradients import Backprop, Backsolve, Checkpointed, Gradient, Reversal
from nanode.models.layers import NORMS, MakeNorm, basic, bottleneck
from nanode.models.rows import Setting, buckets_of, make_flow, warn_of_unused_buckets
from nanode.solvers import (
    RK4,
    Coupled,
    Euler,
    Heun,
    Leapfrog,
    Midpoint,
    ReversibleHeun,
    Stepper,
)


@dataclass(frozen=True)
class Preset:
    """The shape of a classifier: the width of each stage and the network inside its flow."""

    widths: tuple[int, ...]
    network: Callable[[int, MakeNorm], nn.Module]
    steps: int


PRESETS = {
    "paper": Preset((256,), lambda width, norm: bottleneck(width, width // 4, norm), steps=10),
    "staged": Preset((64, 128, 256), basic, steps=6),
    "tiny": Preset((16,), lambda width, norm: bottleneck(width, width // 4, norm), steps=4),
    "tiny-staged": Preset((8, 16), basic, steps=2),
}

#: Solvers by name, with the evaluations that a step takes.
SOLVERS: dict[str, tuple[Callable[[], Stepper], int]] = {
    "euler": (Euler, 1),
    "midpoint": (Midpoint, 2),
    "heun": (Heun, 2),
    "rk4": (RK4, 4),
    "leapfrog": (Leapfrog, 1),
    "reversible-heun": (ReversibleHeun, 1),
    "coupled-euler": (lambda: Coupled(Euler()), 2),
    "coupled-midpoint": (lambda: Coupled(Midpoint()), 4),
    "coupled-rk4": (lambda: Coupled(RK4()), 8),
}
GRADIENTS: dict[str, Callable[[], Gradient]] = {
    "backprop": Backprop,
    "checkpointed": Checkpointed,
    "reversal": Reversal,
    "backsolve": Backsolve,
}


class Classifier(nn.Module):
    """Images (N, C, H, W) to logits (N, classes): stem → flows with downsampling between → head.

    The stem is a 3×3 convolution at full resolution; between stages a 2×2 convolution of stride 2
    halves it; the head is norm, ReLU, mean over space and a linear layer.
    """

    def __init__(self, stem: nn.Module, stages: list[nn.Module], head: nn.Module) -> None:
        super().__init__()
        self.stem, self.stages, self.head = stem, nn.ModuleList(stages), head

    def forward(self, images: Tensor) -> Tensor:
        """Logits."""
        x = self.stem(images)
        for stage in self.stages:
            x = stage(x)
        logits: Tensor = self.head(x)
        return logits


def create(
    name: str,
    *,
    preset: str = "paper",
    channels: int = 3,
    classes: int = 10,
    steps: int | None = None,
    solver: str = "euler",
    gradient: str = "backprop",
    scale: float | None = None,
    norm: str = "batch",
    moving_norms: bool = True,
    compile: bool = False,
) -> Classifier:
    """A classifier by the name of its row, such as ``t-nanode-10``.

    ``steps`` counts evaluations of f in each flow, whatever the solver, so that rows with different
    solvers do the same work; the solver then takes steps / (evaluations a step) steps. By default
    they are the preset's, or enough for a step in each of the row's buckets. ``scale`` is the
    block's; by default 1, or the number of solver steps for the ResNet rows.

    >>> import torch
    >>> model = create("t-nanode-3", preset="tiny", channels=1)
    >>> model(torch.randn(2, 1, 8, 8)).shape
    torch.Size([2, 10])
    """
    shape = _chosen("preset", preset, PRESETS)
    make_norm = _chosen("norm", norm, NORMS)
    make_solver, cost = _chosen("solver", solver, SOLVERS)
    make_gradient = _chosen("gradient", gradient, GRADIENTS)
    checked_count("channels", channels, least=1)
    checked_count("classes", classes, least=2)
    usual = max(shape.steps, buckets_of(name) * cost)
    evaluations = checked_count("steps", usual if steps is None else steps, least=1)
    if evaluations % cost:
        raise ValueError(
            f"steps counts evaluations, and {solver} makes {cost} a step: expected a multiple of "
            f"{cost}, got {evaluations}"
        )
    if not moving_norms and name.startswith("uncon-resnet"):
        raise ValueError(
            "the layers of uncon-resnet have norms of their own: leave moving_norms out, or use "
            "con-resnet"
        )
    count = evaluations // cost
    warn_of_unused_buckets(name, count, cost)
    stages: list[nn.Module] = []
    before = shape.widths[0]
    for n, width in enumerate(shape.widths):
        setting = Setting(lambda wide: shape.network(wide, make_norm), width, count, moving_norms)
        flow = make_flow(name, setting)
        block = ODEBlock(
            flow.field,
            count,
            make_solver(),
            make_gradient(),
            scale=scale if scale is not None else float(count) if flow.residual else 1.0,
            augment=flow.augment,
            compile=compile,
        )
        layers: list[nn.Module] = [] if n == 0 else [nn.Conv2d(before, width, 2, 2, bias=False)]
        stages.append(nn.Sequential(*layers, block))
        before = width + flow.augment
    head = nn.Sequential(
        nn.BatchNorm2d(before) if norm == "batch" else make_norm(before),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(before, classes),
    )
    stem = nn.Conv2d(channels, shape.widths[0], 3, padding=1, bias=False)
    return Classifier(stem, stages, head)


def _chosen(what: str, name: str, options: dict[str, Any]) -> Any:
    """The option of that name, or an error that suggests the nearest."""
    if not isinstance(name, str) or name not in options:
        near = get_close_matches(str(name), options, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else "."
        raise ValueError(f"there is no {what} {name!r}{hint} Choices: {', '.join(options)}")
    return options[name]
