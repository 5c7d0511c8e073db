"""Enlarging digits."""

import numpy as np
import pytest
import torch

from nanode.data import load
from nanode.data.video.resize import enlarged


def by_interpolation(image, side):
    """Rows, then columns, through NumPy's linear interpolation between pixel centres."""
    n = len(image)
    places = (np.arange(side) + 0.5) * n / side - 0.5
    rows = np.stack([np.interp(places, np.arange(n), row) for row in image.astype(float)])
    return np.stack([np.interp(places, np.arange(n), column) for column in rows.T]).T


@pytest.mark.parametrize(("n", "side"), [(8, 32), (8, 28), (28, 32), (3, 7)])
def test_it_is_linear_between_pixel_centres(n, side):
    images = np.random.default_rng(0).integers(0, 256, (20, n, n), dtype=np.uint8)
    expected = np.stack([by_interpolation(image, side) for image in images])
    # Rounded half up; the sum only guards exact halves against the last bit of a double.
    expected = np.floor(expected + 0.5 + 1e-9)
    assert (enlarged(torch.from_numpy(images), side).numpy() == expected).all()


def test_pillow_agrees_to_a_level():
    image = pytest.importorskip("PIL.Image")
    images = torch.randint(0, 256, (20, 28, 28), dtype=torch.uint8)
    expected = [
        np.asarray(image.fromarray(one.numpy()).resize((32, 32), image.Resampling.BILINEAR))
        for one in images
    ]
    difference = enlarged(images, 32).int() - torch.from_numpy(np.stack(expected)).int()
    assert int(difference.abs().max()) <= 1


def test_the_same_side_changes_nothing():
    images = load("digits").test.images[:, 0]
    assert torch.equal(enlarged(images, 8), images)


def test_many_images_are_done_in_parts(monkeypatch):
    images = torch.randint(0, 256, (10, 8, 8), dtype=torch.uint8)
    whole = enlarged(images, 32)
    monkeypatch.setattr("nanode.data.video.resize.CHUNK", 3)
    assert torch.equal(enlarged(images, 32), whole)


def test_making_smaller_is_refused():
    with pytest.raises(ValueError, match="at least 40 pixels, got 32"):
        enlarged(torch.zeros(1, 40, 40, dtype=torch.uint8), 32)
