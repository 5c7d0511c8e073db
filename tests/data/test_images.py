"""The type that holds images, held-out splits, and statistics of channels."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nanode.data import Images, channel_statistics, load
from nanode.data.strata import stratified


def images(count=4, **changes):
    parts = {
        "name": "some",
        "images": torch.zeros(count, 1, 2, 2, dtype=torch.uint8),
        "labels": torch.zeros(count, dtype=torch.int64),
        "classes": ("a", "b"),
        "mean": (0.5,),
        "std": (0.5,),
    }
    return Images(**parts | changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"images": torch.zeros(4, 1, 2, 2)}, "expected images as bytes"),
        ({"images": torch.zeros(4, 2, 2, dtype=torch.uint8)}, r"shape \(4, 2, 2\)"),
        ({"labels": torch.zeros(3, dtype=torch.int64)}, "expected 4 labels"),
        ({"labels": torch.zeros(4)}, "float32"),
        ({"labels": torch.tensor([0, 1, 2, 0])}, "expected labels from 0 to 1, got 2"),
        ({"labels": torch.tensor([0, 1, -1, 0])}, "got -1"),
        ({"mean": (0.5, 0.5)}, "for each of 1 channels"),
        ({"std": (0.0,)}, "expected std above 0"),
    ],
)
def test_bad_parts_are_refused(changes, message):
    with pytest.raises(ValueError, match=f"some: .*{message}"):
        images(**changes)


def test_to_a_device_keeps_everything():
    data = load("digits").hold_out(100)
    moved = data.to("cpu")
    assert torch.equal(moved.train.images, data.train.images)
    assert moved.validation is not None
    assert moved.test.device == torch.device("cpu")


@pytest.mark.parametrize("count", [0.1, 0, 1437])
def test_what_is_held_out_is_a_number_of_images(count):
    with pytest.raises(ValueError, match=f"between 1 and 1436 of 1437 images, got {count}"):
        load("digits").hold_out(count)


def test_hold_out_parts_the_training_images():
    data = load("digits")
    held = data.hold_out()
    assert len(held.validation) == 143
    assert len(held.train) == 1437 - 143
    assert held.validation.name == "digits validation"
    assert held.test is data.test
    both = torch.cat([held.train.images, held.validation.images]).flatten(1).tolist()
    assert sorted(both) == sorted(data.train.images.flatten(1).tolist())
    share = torch.bincount(data.train.labels) * 143 / 1437
    assert bool(((torch.bincount(held.validation.labels) - share).abs() < 1).all())


def test_hold_out_depends_on_the_seed_alone():
    data = load("digits")
    once, again, other = (data.hold_out(100, seed).validation.images for seed in (1, 1, 2))
    assert torch.equal(once, again)
    assert not torch.equal(once, other)


def test_held_out_images_never_change():
    """Noted when the rule was written: a choice made on these images must stay a choice on them."""
    assert stratified(torch.arange(20) % 2, 6, seed=0).tolist() == [0, 1, 2, 11, 18, 19]
    assert stratified(torch.arange(20) % 2, 6, seed=1).tolist() == [0, 3, 8, 9, 10, 17]


@pytest.mark.parametrize("count", [0, -1, 1437, 5000])
def test_hold_out_of_an_impossible_count(count):
    with pytest.raises(ValueError, match="between 1 and 1436 of 1437 images"):
        load("digits").hold_out(count)


def test_hold_out_twice_is_refused():
    with pytest.raises(ValueError, match="already holds out 143 images"):
        load("digits").hold_out().hold_out()


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(0, 5), min_size=2, max_size=80), st.data())
def test_every_class_gives_its_share(labels, data):
    count = data.draw(st.integers(1, len(labels) - 1))
    seed = data.draw(st.integers(0, 9))
    chosen = stratified(torch.tensor(labels), count, seed).tolist()
    assert len(chosen) == len(set(chosen)) == count
    assert chosen == sorted(chosen)
    for label in set(labels):
        share = count * labels.count(label) / len(labels)
        assert abs(sum(labels[index] == label for index in chosen) - share) < 1


def test_statistics_are_those_of_the_pixels():
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (50, 3, 7, 5), generator=generator, dtype=torch.uint8)
    mean, std = channel_statistics(pixels)
    exact = pixels.double().transpose(0, 1).flatten(1) / 255
    # Only rounding in float64 apart.
    assert mean == pytest.approx(exact.mean(1).tolist(), rel=1e-13)
    assert std == pytest.approx(exact.std(1, correction=0).tolist(), rel=1e-13)
