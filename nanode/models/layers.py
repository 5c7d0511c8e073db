"""The networks inside the flows, pre-activation: norm, ReLU, convolution, and again."""

from collections.abc import Callable

from torch import nn

from nanode.fields import BatchNorm

#: Makes a norm for so many features.
MakeNorm = Callable[[int], nn.Module]


def group_norm(features: int) -> nn.Module:
    """Group norm, eight features or more to a group."""
    most = max(1, min(32, features // 8))
    groups = next(count for count in range(most, 0, -1) if features % count == 0)
    return nn.GroupNorm(groups, features)


NORMS: dict[str, MakeNorm] = {"batch": BatchNorm, "group": group_norm}


def bottleneck(width: int, hidden: int, norm: MakeNorm) -> nn.Sequential:
    """width → hidden → hidden → width by 1×1, 3×3 and 1×1 convolutions without bias.

    At 256 and 64 it has the 69,632 weights of the paper's tables.
    """
    return nn.Sequential(
        *_layer(width, hidden, 1, norm),
        *_layer(hidden, hidden, 3, norm),
        *_layer(hidden, width, 1, norm),
    )


def basic(width: int, norm: MakeNorm) -> nn.Sequential:
    """width → width → width by two 3×3 convolutions without bias."""
    return nn.Sequential(*_layer(width, width, 3, norm), *_layer(width, width, 3, norm))


def _layer(inputs: int, outputs: int, size: int, norm: MakeNorm) -> list[nn.Module]:
    convolution = nn.Conv2d(inputs, outputs, size, padding=size // 2, bias=False)
    return [norm(inputs), nn.ReLU(), convolution]
