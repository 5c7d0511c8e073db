"""Image metrics against their definitions in numpy and scipy."""

import sys

import numpy as np
import pytest
import torch
from scipy import ndimage

from nanode.training.video.metrics import (
    HIGHEST_PSNR,
    by_time,
    openstl_mse,
    openstl_ssim,
    psnr,
    ssim,
)


@pytest.fixture
def images():
    draw = np.random.default_rng(0)
    truth = ndimage.gaussian_filter(draw.random((3, 1, 32, 32)), (0, 0, 2, 2))
    made = np.clip(truth + 0.05 * draw.standard_normal(truth.shape), 0, 1)
    return made, truth


def torched(arrays):
    return [torch.from_numpy(array).float() for array in arrays]


def similarity(x, y, mean, reach, unbiased=1.0):
    """SSIM with a window, as Wang et al. (2004) define it, at every place."""
    c1, c2 = (0.01 * reach) ** 2, (0.03 * reach) ** 2
    mx, my = mean(x), mean(y)
    vx, vy = (unbiased * (mean(v * v) - m * m) for v, m in ((x, mx), (y, my)))
    both = unbiased * (mean(x * y) - mx * my)
    return (2 * mx * my + c1) * (2 * both + c2) / ((mx**2 + my**2 + c1) * (vx + vy + c2))


def test_psnr(images):
    expected = [-10 * np.log10(((a - b) ** 2).mean()) for a, b in zip(*images, strict=True)]
    assert psnr(*torched(images)).tolist() == pytest.approx(expected, rel=1e-5)
    same = torch.rand(2, 1, 32, 32)
    assert psnr(same, same).tolist() == [HIGHEST_PSNR] * 2


def test_ssim_has_a_gaussian_window_of_11(images):
    def mean(v):
        return ndimage.gaussian_filter(v, 1.5, radius=5, mode="mirror")

    expected = [
        similarity(a[0], b[0], mean, reach=1.0).mean() for a, b in zip(*images, strict=True)
    ]
    assert ssim(*torched(images)).tolist() == pytest.approx(expected, rel=1e-4)
    assert ssim(torched(images)[0][:1], torched(images)[0][:1]).item() == pytest.approx(1)


def test_openstl(images):
    def mean(v):
        return ndimage.uniform_filter(v, 7)

    made, truth = torched(images)
    expected = [
        similarity(a[0], b[0], mean, reach=2.0, unbiased=49 / 48)[3:-3, 3:-3].mean()
        for a, b in zip(*images, strict=True)
    ]
    assert openstl_ssim(made, truth).tolist() == pytest.approx(expected, rel=1e-5)
    error = ((images[0] - images[1]) ** 2).sum(axis=(1, 2, 3))
    assert openstl_mse(made, truth).tolist() == pytest.approx(error.tolist(), rel=1e-5)
    # Two black frames with 5 white pixels in one of them: five.
    black = torch.zeros(1, 1, 8, 8)
    spots = black.clone()
    spots[0, 0, 0, :5] = 1
    assert openstl_mse(black, spots).item() == 5


def test_frames_keep_their_places(images):
    made, truth = torch.rand(2, 3, 1, 16, 16), torch.rand(2, 3, 1, 16, 16)
    found = by_time(psnr, made, truth)
    assert found.shape == (2, 3)
    assert found[1, 2] == psnr(made[1, 2][None], truth[1, 2][None])


@pytest.mark.parametrize("metric", [psnr, ssim])
def test_without_torchmetrics(metric, monkeypatch):
    monkeypatch.setitem(sys.modules, "torchmetrics.functional.image", None)
    with pytest.raises(ImportError, match=r"pip install nanode\[train\]"):
        metric(torch.zeros(1, 1, 16, 16), torch.zeros(1, 1, 16, 16))
