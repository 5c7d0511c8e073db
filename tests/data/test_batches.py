"""Order, exact resumption and numbers of batches."""

import json

import pytest
import torch

from nanode.data import Batches, Crop, Cutout, Flip, Images, load
from nanode.data.batches import stream

TRAIN = load("digits").train
AUGMENT = (Crop(1), Flip(), Cutout(3))


def numbered(count=100, shape=(1, 4, 4)):
    """Images that can be told apart: image i has label i."""
    images = torch.randint(
        256, (count, *shape), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )
    channels = shape[0]
    classes = tuple(str(index) for index in range(count))
    return Images(
        "numbered", images, torch.arange(count), classes, (0.4,) * channels, (0.2,) * channels
    )


def labels(batches):
    return torch.cat([y for _, y in batches]).tolist()


def same(a, b):
    return len(a) == len(b) and all(
        torch.equal(x, u) and torch.equal(y, v) for (x, y), (u, v) in zip(a, b, strict=True)
    )


# ---- order


def test_an_epoch_shows_every_image_once():
    seen = labels(Batches(numbered(), 7, drop_last=False))
    assert sorted(seen) == list(range(100))
    assert seen != sorted(seen)


def test_drop_last_leaves_out_the_rest():
    batches = Batches(numbered(), 7)
    assert len(batches) == 14
    assert [len(y) for _, y in batches] == [7] * 14
    assert [len(y) for _, y in Batches(numbered(), 30, drop_last=False)] == [30, 30, 30, 10]


def test_in_order_nothing_is_left_out():
    assert labels(Batches(numbered(), 7, shuffle=False)) == list(range(100))


def test_epochs_and_seeds_differ_and_can_be_had_again():
    batches = Batches(numbered(), 10)
    first, second = labels(batches), labels(batches)
    assert (batches.epoch, batches.position) == (2, 0)
    assert first != second
    assert labels(Batches(numbered(), 10)) == first
    assert labels(Batches(numbered(), 10, seed=1)) not in (first, second)


def test_seeds_differ_in_their_augmentation_too():
    one, two = (
        torch.cat([x for x, _ in Batches(TRAIN, 100, seed=seed, shuffle=False, augment=AUGMENT)])
        for seed in (0, 1)
    )
    assert not torch.equal(one, two)


def test_places_are_uniform():
    """Where image 0 lands over 2,000 epochs: each of 10 places within six standard deviations."""
    batches = Batches(numbered(10), 10)
    found = torch.zeros(10)
    for epoch in range(2000):
        found[int((batches.batch(epoch, 0)[1] == 0).nonzero())] += 1
    assert bool(((found - 200).abs() < 6 * (2000 * 0.1 * 0.9) ** 0.5).all())


def test_augmentation_leaves_the_order_alone():
    assert labels(Batches(TRAIN, 100)) == labels(Batches(TRAIN, 100, augment=AUGMENT))


def test_the_global_generator_is_neither_read_nor_moved():
    torch.manual_seed(0)
    before = torch.get_rng_state()
    once = list(Batches(TRAIN, 500, augment=AUGMENT))
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(1)
    assert same(once, list(Batches(TRAIN, 500, augment=AUGMENT)))


def test_a_default_device_changes_nothing():
    once = list(Batches(load("digits").hold_out().train, 500, augment=AUGMENT))
    with torch.device("meta"):
        again = list(Batches(load("digits").hold_out().train, 500, augment=AUGMENT))
    assert same(once, again)


# ---- resumption


@pytest.mark.parametrize("stop", [0, 1, 7, 13, 14, 15, 28, 31])
def test_resuming_is_exact(stop):
    def make():
        return Batches(TRAIN, 100, seed=3, augment=AUGMENT)

    def run(batches, epochs):
        while batches.epoch < epochs:
            yield from batches

    whole = list(run(make(), 3))
    batches = make()
    steps = run(batches, 3)
    before = [next(steps) for _ in range(stop)]
    saved = json.loads(json.dumps(batches.state_dict()))
    resumed = make()
    resumed.load_state_dict(saved)
    assert same(before + list(run(resumed, 3)), whole)


def test_an_epoch_ends_when_its_loop_ends():
    batches = Batches(numbered(), 50)
    places = [(batches.epoch, batches.position) for _ in batches]
    assert places == [(0, 1), (0, 2)]
    assert (batches.epoch, batches.position) == (1, 0)
    for _ in batches:
        if batches.position == len(batches):
            break
    resumed = Batches(numbered(), 50)
    resumed.load_state_dict(batches.state_dict())
    assert list(resumed) == []  # what follows an epoch is due, its batches are not
    assert (resumed.epoch, resumed.position) == (2, 0)


def test_a_broken_off_loop_goes_on():
    batches = Batches(numbered(), 10)
    seen = []
    for _, y in batches:
        seen += y.tolist()
        if batches.position == 4:
            break
    assert seen + labels(batches) == labels(Batches(numbered(), 10))


def test_a_step_does_not_depend_on_those_before():
    batches = Batches(TRAIN, 100, augment=AUGMENT)
    epochs = [list(batches), list(batches)]
    alone = [Batches(TRAIN, 100, augment=AUGMENT).batch(epoch, 5) for epoch in (0, 1)]
    assert same(alone, [epoch[5] for epoch in epochs])


def test_a_loop_whose_batches_were_moved_to_another_epoch_ends():
    batches = Batches(numbered(), 10)
    loop = iter(batches)
    next(loop)
    batches.load_state_dict(batches.state_dict() | {"epoch": 5, "position": 2})
    assert list(loop) == []
    assert (batches.epoch, batches.position) == (5, 2)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"batch_size": 99}, "batch_size = 100, these have 99"),
        ({"seed": 1}, "seed = 0, these have 1"),
        ({"shuffle": False}, "shuffle"),
        ({"drop_last": False}, "drop_last"),
        ({"augment": [Crop(2)]}, "augment"),
        ({"data": load("digits").hold_out(500, seed=2).train}, "labels"),
        ({"data": load("digits").test}, "data = digits train, these have digits test"),
    ],
)
def test_a_state_of_other_batches_is_refused(change, name):
    state = Batches(TRAIN, 100).state_dict()
    other = Batches(**{"data": TRAIN, "batch_size": 100} | change)
    with pytest.raises(ValueError, match=name):
        other.load_state_dict(state)


def test_a_place_that_does_not_exist_is_refused():
    batches = Batches(TRAIN, 100)
    with pytest.raises(ValueError, match="expected position 0 to 14, got 15"):
        batches.load_state_dict(batches.state_dict() | {"position": 15})
    with pytest.raises(ValueError, match="expected a step from 0 to 13, got 14"):
        batches.batch(0, 14)


# ---- numbers


@pytest.mark.parametrize("channels_last", [False, True])
def test_normalised_as_the_formula_says(channels_last):
    data = numbered(shape=(3, 4, 5))
    x, y = Batches(data, 10, channels_last=channels_last).batch(0, 0)
    exact = (data.images[y].double() / 255 - 0.4) / 0.2
    # Values up to 3, a few roundings of 6e-8 each.
    assert torch.allclose(x.double(), exact, rtol=0, atol=1e-6)
    assert x.is_contiguous(memory_format=torch.channels_last) == channels_last


def test_low_precision_is_rounded_once():
    full = Batches(TRAIN, 100, augment=AUGMENT).batch(0, 0)[0]
    low = Batches(TRAIN, 100, augment=AUGMENT, dtype=torch.bfloat16).batch(0, 0)[0]
    assert torch.equal(low, full.bfloat16())


def test_the_training_set_comes_out_with_mean_0_and_variance_1():
    x = torch.cat([x for x, _ in Batches(TRAIN, 100, drop_last=False)]).double()
    assert abs(float(x.mean())) < 1e-6
    assert abs(float(x.var(correction=0)) - 1) < 1e-6


def test_augmentations_are_applied_in_order():
    data = numbered(shape=(3, 6, 6))
    mean = torch.full((3, 1, 1), 102, dtype=torch.uint8)  # 0.4 of 255
    batches = Batches(data, 10, augment=AUGMENT)
    x, y = batches.batch(2, 4)
    _, drawn = batches._draw(2)
    images = data.images[y]
    for augmentation, numbers in zip(AUGMENT, drawn, strict=True):
        images = augmentation.apply(images, numbers[40:50], mean)
    exact = (images.double() / 255 - 0.4) / 0.2
    assert torch.allclose(x.double(), exact, rtol=0, atol=1e-6)


def test_each_augmentation_draws_anew_in_each_epoch():
    batches = Batches(TRAIN, 100, augment=(Flip(), Flip()))
    (first, second), (later, latest) = (batches._draw(epoch)[1] for epoch in (0, 1))
    assert not torch.equal(first, second)
    assert not torch.equal(first, later)
    assert not torch.equal(second, latest)


def test_order_and_augmentations_have_streams_of_their_own(monkeypatch):
    made = []
    monkeypatch.setattr(
        "nanode.data.batches.stream", lambda *given: made.append(stream(*given)) or made[-1]
    )
    Batches(TRAIN, 100, augment=AUGMENT).batch(0, 0)
    assert len({generator.initial_seed() for generator in made}) == 1 + len(AUGMENT)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch_size": 0}, "batch_size must be a whole number of at least 1, got 0"),
        ({"batch_size": 1438}, "digits train has 1,437 images, fewer than a batch of 1,438"),
        ({"dtype": torch.uint8}, "floating-point dtype, got torch.uint8"),
        ({"augment": [Crop(8)]}, "below the image's side, 8 pixels"),
        ({"augment": [Flip]}, "expected augmentations, such as Flip.., got <class"),
        ({"data": load("digits")}, "images of one split, such as data.train, got ImageData"),
    ],
)
def test_bad_values_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        Batches(**{"data": TRAIN, "batch_size": 100} | change)


def test_a_small_set_makes_one_small_batch_where_that_is_allowed():
    assert [len(y) for _, y in Batches(numbered(3), 10, drop_last=False)] == [3]
    with pytest.raises(ValueError, match="has 0 images"):
        Batches(numbered(3).take(torch.arange(0)), 10, drop_last=False)


@pytest.mark.gpu
def test_a_gpu_gives_the_same_bits():
    settings = {"augment": AUGMENT, "seed": 5, "drop_last": False}
    for dtype in (torch.float32, torch.bfloat16):
        here = list(Batches(TRAIN, 100, dtype=dtype, **settings))
        there = list(Batches(TRAIN.to("cuda"), 100, dtype=dtype, **settings))
        assert same(here, [(x.cpu(), y.cpu()) for x, y in there])
