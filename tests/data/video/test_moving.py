"""Digits that move: against a slow reference, by their statistics, and reproducible."""

import numpy as np
import pytest
import torch
from scipy import stats

from nanode.data.video import Deterministic, Stochastic
from tests.data.video import reference

UNLIKELY = 1e-3
LAWS = [Stochastic, Deterministic]
SLOW = {
    Stochastic: (reference.stochastic_path, reference.stochastic_frames),
    Deterministic: (reference.deterministic_path, reference.deterministic_frames),
}


def clips(law, digits=2, seed=0, images=50, device="cpu", name="moving train"):
    """Bright random images, of the digit's own side, so that nothing is enlarged."""
    generator = np.random.default_rng(1)
    pixels = generator.integers(0, 256, (images, law.side, law.side), dtype=np.uint8)
    stills = torch.from_numpy(pixels)
    return law(name, stills, count=1000, digits=digits, seed=seed, device=device), pixels


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize(("digits", "seed"), [(2, 0), (1, 7), (3, 1)])
def test_the_slow_reference_agrees(law, digits, seed):
    moving, pixels = clips(law, digits, seed)
    path_of, frames_of = SLOW[law]
    indices, length = torch.tensor([0, 1, 2, 3, 999, 2**40, 4, 5, 6, 7]), 60
    which, corners = moving.paths(indices, length)
    frames = moving.frames(indices, length)
    assert frames.shape == (10, length, 1, 64, 64)
    for row, index in enumerate(indices.tolist()):
        paths = [
            path_of(reference.Draws(seed, "moving train", index, digit), len(pixels), length)
            for digit in range(digits)
        ]
        for digit, (expected, places) in enumerate(paths):
            assert int(which[row, digit]) == expected
            assert corners[row, :, digit].tolist() == [list(place) for place in places]
        # Float32 against float64, after one product.
        expected = frames_of(paths, pixels)
        assert np.abs(frames[row, :, 0].numpy() - expected).max() < 1e-6
    assert frames.dtype == torch.float32
    assert float(frames.max()) <= 1


@pytest.mark.parametrize("law", LAWS)
def test_overlaps_are_seen_and_clipped(law):
    moving, _ = clips(law, digits=3)
    white = law("white", torch.full((1, law.side, law.side), 200, dtype=torch.uint8), count=1)
    values = white.frames(torch.arange(50), 10).unique().tolist()
    # Float32 rounds 200/255.
    bright = [0, 200 / 255, 1] if law is Stochastic else [0, 200 / 255]
    assert values == pytest.approx(bright, abs=1e-7)
    assert float(moving.frames(torch.arange(50), 10).min()) == 0


# ---- statistics of the stochastic law


@pytest.fixture(scope="module")
def far():
    """Corners of many sequences over many frames, (sequences, frames, 2)."""
    return clips(Stochastic, digits=1)[0].paths(torch.arange(3000), 60)[1][:, :, 0]


def test_digits_stay_inside(far):
    assert int(far.min()) == 0
    assert int(far.max()) == 31


def test_starts_and_first_speeds_are_uniform(far):
    for axis in (0, 1):
        assert stats.chisquare(torch.bincount(far[:, 0, axis])).pvalue > UNLIKELY
        # From the middle no border is reached in one frame.
        middle = far[(far[:, 0] >= 4).all(1) & (far[:, 0] <= 27).all(1)]
        speeds = (middle[:, 1] - middle[:, 0])[:, axis]
        assert stats.chisquare(torch.bincount(speeds + 4, minlength=9)).pvalue > UNLIKELY


def test_speeds_are_at_most_four(far):
    assert int((far[:, 1:] - far[:, :-1]).abs().max()) == 4


def bounces(far, axis):
    """Speeds (along, across) before and after each bounce of one axis only, and the border.

    A window of four frames: free flight, flight, bounce, flight. Across, all of it is far enough
    from the borders that nothing else happens.
    """
    windows = far.unfold(1, 4, 1).flatten(0, 1)  # (·, 2, 4)
    along, across = windows[:, axis], windows[:, 1 - axis]
    calm = (across >= 4).all(1) & (across <= 27).all(1)
    inside = (along[:, :2] > 0).all(1) & (along[:, :2] < 31).all(1)
    speed = along[:, 1] - along[:, 0]
    low, high = along[:, 1] + speed < 0, along[:, 1] + speed > 31
    chosen = calm & inside & (low | high)
    windows, low = windows[chosen], low[chosen]
    assert len(windows) > 1000
    along, across = windows[:, axis], windows[:, 1 - axis]
    return low, along, across


@pytest.mark.parametrize("axis", [0, 1])
def test_a_bounce_ends_on_the_border_with_new_speeds(far, axis):
    low, along, _ = bounces(far, axis)
    assert torch.equal(along[:, 2], torch.where(low, 0, 31))
    after = along[:, 3] - along[:, 2]
    for border, sign in ((low, 1), (~low, -1)):
        away = sign * after[border]
        assert int(away.min()) == 1  # never back
        assert stats.chisquare(torch.bincount(away - 1)).pvalue > UNLIKELY


@pytest.mark.parametrize("axis", [0, 1])
def test_a_bounce_draws_the_other_speed_too(far, axis):
    """A speed across of -4 or 4 would often leave the calm band, so the band's middle is taken."""
    _, _, across = bounces(far, axis)
    middle = (across[:, 2] >= 8) & (across[:, 2] <= 23)
    before = (across[:, 2] - across[:, 1])[middle]
    after = (across[:, 3] - across[:, 2])[middle]
    assert stats.chisquare(torch.bincount(after + 4, minlength=9)).pvalue > UNLIKELY
    table = torch.bincount(9 * (before + 4) + after + 4, minlength=81).reshape(9, 9)
    assert stats.chi2_contingency(table + 1).pvalue > UNLIKELY  # knows nothing of the old speed


# ---- the deterministic law


def test_deterministic_digits_go_straight_at_one_speed():
    """Over five frames without a border, 0.5 · 36 = 18 pixels, two roundings each way."""
    _, corners = clips(Deterministic, digits=1)[0].paths(torch.arange(2000), 6)
    corners = corners[:, :, 0].double()
    free = ((corners > 0) & (corners < 35)).all(2).all(1)
    steps = corners[free].diff(dim=1)
    straight = (steps.diff(dim=1).abs() <= 1).all(2).all(1)
    assert bool(straight.all())
    way = (corners[free, -1] - corners[free, 0]).norm(dim=1)
    assert len(way) > 500
    assert float((way - 18).abs().max()) < 2**0.5
    assert float(way.mean()) == pytest.approx(18, abs=0.1)


def test_deterministic_digits_reach_both_borders():
    _, corners = clips(Deterministic)[0].paths(torch.arange(500), 40)
    assert (int(corners.min()), int(corners.max())) == (0, 36)


# ---- reproducible


@pytest.mark.parametrize("law", LAWS)
def test_a_sequence_is_the_same_in_any_batch(law):
    moving, _ = clips(law)
    indices = torch.arange(12)
    whole = moving.frames(indices, 20)
    order = torch.randperm(12)
    assert torch.equal(moving.frames(order, 20), whole[order])
    for parts in (indices.split(5), indices.split(1)):
        assert torch.equal(torch.cat([moving.frames(part, 20) for part in parts]), whole)
    assert torch.equal(moving.frames(indices, 7), whole[:, :7])
    assert torch.equal(moving.frames(indices, 1), whole[:, :1])
    assert torch.equal(clips(law)[0].frames(indices, 20), whole)


@pytest.mark.parametrize("law", LAWS)
def test_another_seed_name_or_index_is_another_sequence(law):
    moving, _ = clips(law)
    one = moving.frames(torch.arange(5), 5)
    others = [
        moving.frames(torch.arange(5, 10), 5),
        clips(law, seed=1)[0].frames(torch.arange(5), 5),
        clips(law, name="moving test")[0].frames(torch.arange(5), 5),
    ]
    assert all((one != other).flatten(1).any(1).all() for other in others)


def test_more_digits_leave_the_first_ones_as_they_were():
    two, three = (clips(Stochastic, digits)[0].paths(torch.arange(5), 20) for digits in (2, 3))
    assert torch.equal(three[0][:, :2], two[0])
    assert torch.equal(three[1][:, :, :2], two[1])


def test_torch_s_generator_is_left_alone():
    before = torch.get_rng_state()
    clips(Stochastic)[0].frames(torch.arange(3), 3)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("law", LAWS)
def test_settings_of_torch_are_not_seen(law):
    expected = clips(law)[0].frames(torch.arange(3), 3)
    torch.set_default_dtype(torch.float64)
    torch.set_float32_matmul_precision("medium")
    try:
        assert torch.equal(clips(law)[0].frames(torch.arange(3), 3), expected)
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_float32_matmul_precision("highest")


def test_no_sequences_are_no_frames():
    none = torch.zeros(0, dtype=torch.int64)
    assert clips(Stochastic)[0].frames(none, 5).shape == (0, 5, 1, 64, 64)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"digits": 0}, "digits must be a whole number of at least 1, got 0"),
        ({"digits": "two"}, "digits must be .*'two'"),
        ({"digits": True}, "digits must be .*True"),
        ({"count": 0}, "count must be a whole number of at least 1, got 0"),
        ({"seed": "x"}, "seed must be a whole number of at least 0, got 'x'"),
    ],
)
def test_bad_options(option, message):
    options = {"count": 1, **option}
    with pytest.raises(ValueError, match=message):
        Stochastic("bad", torch.zeros(1, 8, 8, dtype=torch.uint8), **options)


# ---- on a GPU


@pytest.mark.gpu
@pytest.mark.parametrize("law", LAWS)
def test_a_gpu_makes_the_same_bits_and_waits_for_nothing(law):
    indices = torch.arange(200)
    expected = clips(law, digits=3)[0].frames(indices, 30)
    moving, there = clips(law, digits=3, device="cuda")[0], indices.cuda()
    moving.frames(there, 1)  # tables are sent once
    torch.cuda.set_sync_debug_mode("error")
    try:
        found = [moving.frames(where, 30) for where in (there, indices)]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for frames in found:
        assert frames.device.type == "cuda"
        assert torch.equal(frames.cpu(), expected)
