"""Image classifiers: stem, one or more flows with downsampling between, head."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

from nanode.models.flows import Flows
from nanode.models.layers import NORMS, MakeNorm, basic, bottleneck
from nanode.values import check_choice, checked_count


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
    solvers do the same work (but for the one before the first step that leapfrog and
    reversible-heun make); the solver then takes steps / (evaluations a step) steps. By default
    they are the preset's, or enough for a step in each of the row's buckets. ``scale`` is the
    block's; by default 1, or the number of solver steps for the ResNet rows.

    >>> import torch
    >>> model = create("t-nanode-3", preset="tiny", channels=1)
    >>> model(torch.randn(2, 1, 8, 8)).shape
    torch.Size([2, 10])
    """
    check_choice("preset", preset, PRESETS)
    check_choice("norm", norm, NORMS)
    shape, make_norm = PRESETS[preset], NORMS[norm]
    checked_count("channels", channels, least=1)
    checked_count("classes", classes, least=2)
    flows = Flows(name, steps, shape.steps, solver, gradient, scale, moving_norms, compile)
    stages: list[nn.Module] = []
    before = shape.widths[0]
    for n, width in enumerate(shape.widths):
        block = flows.block(lambda wide: shape.network(wide, make_norm), width)
        layers: list[nn.Module] = [] if n == 0 else [nn.Conv2d(before, width, 2, 2, bias=False)]
        stages.append(nn.Sequential(*layers, block))
        before = width + block.augment
    head = nn.Sequential(
        nn.BatchNorm2d(before) if norm == "batch" else make_norm(before),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(before, classes),
    )
    stem = nn.Conv2d(channels, shape.widths[0], 3, padding=1, bias=False)
    return Classifier(stem, stages, head)
