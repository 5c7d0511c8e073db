"""The VGG encoder and decoder of SVG, and the runs of convolutions that a flow can replace.

A layer is a 3×3 convolution with bias, a norm and a leaky ReLU. Stage n works on ``width · 2ⁿ``
channels: its first layer changes the number of channels, and in the decoder its last. The others
preserve it and are one *run*, as ordinary layers or as a flow whose field they are.
"""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nanode.doubles import widened

#: Layers in each stage of the encoder of the public SVG; the decoder mirrors them.
VGG_64 = (2, 2, 3, 3)
#: Each stage but the first halves the resolution, and so does the head.
REDUCTION = 2 ** len(VGG_64)
SLOPE = 0.2

#: Makes the run of so many layers on so many channels.
MakeRun = Callable[[int, int], nn.Module]


def layer(
    inputs: int, outputs: int, norm: Callable[[int], nn.Module] = nn.BatchNorm2d
) -> list[nn.Module]:
    """Convolution, norm, leaky ReLU."""
    convolution = nn.Conv2d(inputs, outputs, 3, padding=1)
    # In place of the norm's output, which nothing else reads.
    return [convolution, norm(outputs), nn.LeakyReLU(SLOPE, inplace=True)]


class Encoder(nn.Module):
    """Frames (N, C, size, size) to features (N, features) in (-1, 1), and each stage's output."""

    def __init__(
        self,
        channels: int,
        width: int,
        features: int,
        size: int,
        layers: Sequence[int],
        make_run: MakeRun,
    ) -> None:
        super().__init__()
        stages, before = [], channels
        for wide, count in zip(_widths(width), layers, strict=True):
            stages.append(nn.Sequential(*layer(before, wide), make_run(wide, count - 1)))
            before = wide
        self.stages = nn.ModuleList(stages)
        self.head = nn.Sequential(
            nn.Conv2d(before, features, size // REDUCTION), nn.BatchNorm2d(features), nn.Tanh()
        )

    def forward(self, frames: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Features, and the skips from the highest resolution to the lowest."""
        x, skips = frames, []
        for n, stage in enumerate(self.stages):
            x = stage(F.max_pool2d(x, 2) if n else x)
            skips.append(x)
        features: Tensor = self.head(F.max_pool2d(x, 2))
        return features.flatten(1), skips


class Decoder(nn.Module):
    """Features (N, features) and skips to frames (N, C, size, size) in (0, 1)."""

    def __init__(
        self,
        channels: int,
        width: int,
        features: int,
        size: int,
        layers: Sequence[int],
        make_run: MakeRun,
    ) -> None:
        super().__init__()
        widths = _widths(width)
        self.root = nn.Sequential(
            nn.ConvTranspose2d(features, widths[-1], size // REDUCTION),
            nn.BatchNorm2d(widths[-1]),
            nn.LeakyReLU(SLOPE, inplace=True),
        )
        stages = []
        for n in reversed(range(len(widths))):
            parts = layer(2 * widths[n], widths[n])
            if layers[n] > 2:
                parts.append(make_run(widths[n], layers[n] - 2))
            parts += (
                layer(widths[n], widths[n - 1])
                if n
                else [nn.ConvTranspose2d(width, channels, 3, padding=1)]
            )
            stages.append(nn.Sequential(*parts))
        self.stages = nn.ModuleList(stages)

    def forward(self, features: Tensor, skips: Sequence[Tensor]) -> Tensor:
        """Frames; ``skips`` as the encoder returns them."""
        x = self.root(features[:, :, None, None])
        for stage, skip in zip(self.stages, reversed(skips), strict=True):
            x = stage(torch.cat([F.interpolate(x, scale_factor=2.0), skip.to(x.dtype)], dim=1))
        # Half precision is too coarse for pixels near 1.
        return torch.sigmoid(widened(x))


def _widths(width: int) -> list[int]:
    return [width * 2**n for n in range(len(VGG_64))]
