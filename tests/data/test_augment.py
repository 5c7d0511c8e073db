"""Augmentations of a batch against loops over images and pixels; bytes, so equality is exact."""

import numpy as np
import pytest
import torch

from nanode.data import Crop, Cutout, Flip

SHAPE = (3, 9, 7)
BATCH = 40
MEAN = torch.tensor([100, 110, 120], dtype=torch.uint8)[:, None, None]


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def batch():
    return torch.randint(1, 256, (BATCH, *SHAPE), dtype=torch.uint8, generator=generator(1))


@pytest.mark.parametrize(("mode", "pad"), [("zero", "constant"), ("reflect", "reflect")])
@pytest.mark.parametrize("padding", [1, 4, 6])
def test_crop_is_a_window_of_the_padded_image(mode, pad, padding):
    crop, images = Crop(padding, mode), batch()
    drawn = crop.draw(BATCH, SHAPE, generator())
    result = crop.apply(images, drawn, MEAN)
    for image, (row, column), cropped in zip(images.numpy(), drawn.tolist(), result, strict=True):
        wide = np.pad(image, [(0, 0), (padding, padding), (padding, padding)], mode=pad)
        assert np.array_equal(cropped, wide[:, row : row + 9, column : column + 7])
    assert result.dtype == torch.uint8


def test_every_shift_is_drawn():
    drawn = Crop(2).draw(2000, SHAPE, generator())
    assert len(drawn.unique(dim=0)) == 25
    assert (int(drawn.min()), int(drawn.max())) == (0, 4)


def test_flip_mirrors_half_of_the_images():
    images = batch()
    drawn = Flip().draw(BATCH, SHAPE, generator())
    result = Flip().apply(images, drawn, MEAN)
    for image, (mirror,), flipped in zip(images.numpy(), drawn.tolist(), result, strict=True):
        assert np.array_equal(flipped, image[:, :, ::-1] if mirror else image)
    # Six standard deviations of 10,000 throws of a coin.
    assert abs(float(Flip().draw(10_000, SHAPE, generator()).float().mean()) - 0.5) < 0.03


@pytest.mark.parametrize("size", [1, 2, 5, 8, 30])
def test_cutout_blanks_a_square_with_the_mean(size):
    cutout, images = Cutout(size), batch()
    drawn = cutout.draw(BATCH, SHAPE, generator())
    result = cutout.apply(images, drawn, MEAN)
    for image, (row, column), cut in zip(images.clone(), drawn.tolist(), result, strict=True):
        top, left = row - size // 2, column - size // 2
        rows, columns = slice(max(top, 0), top + size), slice(max(left, 0), left + size)
        image[:, rows, columns] = MEAN
        assert torch.equal(cut, image)
    assert result.dtype == torch.uint8


def test_cutout_may_lie_around_any_pixel():
    assert len(Cutout(3).draw(3000, SHAPE, generator()).unique(dim=0)) == 9 * 7


@pytest.mark.parametrize("augmentation", [Crop(2), Crop(2, "reflect"), Flip(), Cutout(4)])
def test_nothing_is_changed_in_place(augmentation):
    images = batch()
    augmentation.apply(images, augmentation.draw(BATCH, SHAPE, generator()), MEAN)
    assert torch.equal(images, batch())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Crop(0), "padding must be a whole number of at least 1, got 0"),
        (lambda: Crop(1, "edge"), "mode must be one of zero, reflect; got 'edge'"),
        (lambda: Cutout(0), "size must be a whole number of at least 1, got 0"),
        (lambda: Crop(7).check(SHAPE), "below the image's side, 7 pixels, got 7"),
    ],
)
def test_bad_values_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
