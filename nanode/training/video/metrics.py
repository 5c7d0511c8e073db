"""How alike two images are: PSNR and SSIM by torchmetrics, and OpenSTL's MSE and SSIM."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

#: In place of the infinite ratio of two equal images.
HIGHEST_PSNR = 100.0


def psnr(made: Tensor, truth: Tensor) -> Tensor:
    """The peak signal-to-noise ratio of each image (N, C, H, W) in dB, for values in [0, 1]."""
    found: Tensor = _torchmetrics().peak_signal_noise_ratio(
        made, truth, data_range=1.0, reduction="none", dim=(1, 2, 3)
    )
    return found.clamp(max=HIGHEST_PSNR)


def ssim(made: Tensor, truth: Tensor) -> Tensor:
    """The structural similarity of each image: an 11×11 Gaussian window of σ = 1.5.

    A mean over all pixels, with images mirrored at their borders. The public code of SVG and SRVP
    takes the mean over windows that lie inside, which is less where borders are black.
    """
    found: Tensor = _torchmetrics().structural_similarity_index_measure(
        made, truth, gaussian_kernel=True, sigma=1.5, data_range=1.0, reduction="none"
    )
    return found.reshape(len(made))


def openstl_mse(made: Tensor, truth: Tensor) -> Tensor:
    """Squared error of each image, summed over pixels and channels."""
    return (made - truth).square().sum(dim=(1, 2, 3))


def openstl_ssim(made: Tensor, truth: Tensor) -> Tensor:
    """The structural similarity of each image as OpenSTL's tables have it.

    That is scikit-image's default for floating-point images: a uniform 7×7 window, unbiased
    variances, a data range of 2, and windows that lie inside the image only.
    """
    size, reach = 7, 2.0
    c1, c2 = (0.01 * reach) ** 2, (0.03 * reach) ** 2
    x, y = made.double(), truth.double()
    unbiased = size**2 / (size**2 - 1)

    def mean(values: Tensor) -> Tensor:
        return F.avg_pool2d(values, size, stride=1)

    mx, my = mean(x), mean(y)
    vx, vy = (unbiased * (mean(v * v) - m * m) for v, m in ((x, mx), (y, my)))
    both = unbiased * (mean(x * y) - mx * my)
    score = (2 * mx * my + c1) * (2 * both + c2) / ((mx * mx + my * my + c1) * (vx + vy + c2))
    return score.mean(dim=(1, 2, 3))


def _torchmetrics() -> Any:
    """Its metrics of images, or an error that says how to get them."""
    try:
        return import_module("torchmetrics.functional.image")
    except ImportError as why:
        message = f"PSNR and SSIM need torchmetrics: pip install nanode[train] ({why})"
        raise ImportError(message) from why


def by_time(metric: Callable[[Tensor, Tensor], Tensor], made: Tensor, truth: Tensor) -> Tensor:
    """A metric of each frame of clips (N, T, C, H, W), as (N, T).

    One time after the other: the metrics keep several copies of what they are given.
    """
    pairs = zip(made.unbind(1), truth.unbind(1), strict=True)
    return torch.stack([metric(a.float(), b.float()) for a, b in pairs], dim=1)
