"""Boxes of other images, against a loop over pixels."""

import pytest
import torch

from nanode.data.mixing import cutmix


def generator(seed):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("seed", range(20))
def test_pixels_are_the_image_or_the_one_before(seed):
    images = torch.arange(5 * 2 * 6 * 8.0).reshape(5, 2, 6, 8)
    before = images.clone()
    mixed = cutmix(images, torch.arange(5), generator(seed))
    assert torch.equal(images, before)
    swapped = mixed.images != images
    # One box for all images and channels ...
    assert (swapped == swapped[0, 0]).all()
    rows, columns = swapped[0, 0].any(1), swapped[0, 0].any(0)
    assert torch.equal(swapped[0, 0], rows[:, None] & columns)
    for side in (rows, columns):
        assert int(side.sum()) == 0 or int(side.nonzero().max() - side.nonzero().min()) + 1 == int(
            side.sum()
        )
    # ... which shows the image before.
    for n in range(5):
        assert torch.equal(mixed.images[n][swapped[n]], images[n - 1][swapped[n]])
    assert mixed.labels.tolist() == [0, 1, 2, 3, 4]
    assert mixed.others.tolist() == [4, 0, 1, 2, 3]
    assert mixed.share == swapped[0, 0].double().mean().item()


def test_boxes_are_of_all_sizes():
    """Uncut, the area is uniform; cut at the border it is smaller, never larger."""
    images, labels = torch.zeros(2, 1, 32, 32), torch.zeros(2)
    shares = [cutmix(images, labels, generator(seed)).share for seed in range(2000)]
    # A box of side s·L around a uniform centre keeps s - s²/4 of a side; squared, with s² uniform,
    # that is 1/2 - 2/5 · 1/2 + ... : E[(s - s²/4)²] = 1/2 - 1/5 + 1/48.
    expected = 1 / 2 - 1 / 5 + 1 / 48
    assert abs(sum(shares) / 2000 - expected) < 6 * 0.25 / 2000**0.5
    assert min(shares) < 0.02
    assert max(shares) > 0.85


def test_the_layout_is_kept():
    images = torch.rand(4, 3, 8, 8).contiguous(memory_format=torch.channels_last)
    mixed = cutmix(images, torch.arange(4), generator(0)).images
    assert mixed.is_contiguous(memory_format=torch.channels_last)
