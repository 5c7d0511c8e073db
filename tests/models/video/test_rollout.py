"""Generation against the published loop, and what it must not depend on."""

import pytest
import torch

from nanode.models.video import roll_out
from tests.models.video.published import Published


@pytest.mark.parametrize("skip", ["original", "last", "every"])
@pytest.mark.parametrize("n_past", [1, 2, 4])
@pytest.mark.parametrize("guided", [False, True])
def test_generation_is_the_published_loop(tiny, clips, skip, n_past, guided):
    model = tiny(skip=skip)
    frames, noise = clips(2, 7)
    given = frames if guided else frames[:, :n_past]
    made = roll_out(model, given, n_past, 7, noise[:, None], guided)
    expected = Published(model, skip, n_past).generate(frames, 7, noise, guided)
    assert made.shape == (2, 1, 7, 1, 16, 16)
    assert torch.allclose(made[:, 0], expected, atol=1e-12)
    assert torch.equal(made[:, 0, :n_past], frames[:, :n_past])


def test_samples_and_clips_do_not_meet(tiny, clips):
    model = tiny()
    frames, _ = clips(3, 5)
    noise = torch.randn(3, 4, 5, 3, dtype=torch.float64)
    together = roll_out(model, frames, 3, 6, noise)
    alone = roll_out(model, frames[1:2], 3, 6, noise[1:2, 2:3])
    assert torch.allclose(together[1:2, 2:3], alone, atol=1e-12)
    assert not torch.allclose(together[1, 2], together[1, 3], atol=1e-6)
    assert torch.equal(together, roll_out(model, frames, 3, 6, noise))


def test_only_given_frames_are_looked_at(tiny, clips):
    model = tiny()
    frames, noise = clips(2, 6)
    spoilt = frames.clone()
    spoilt[:, 3:] = float("nan")
    one, other = (roll_out(model, x, 3, 6, noise[:, None]) for x in (frames, spoilt))
    assert torch.equal(one, other)


@pytest.mark.parametrize(
    ("times", "n_past", "length", "noise", "guided", "message"),
    [
        (2, 3, 6, (2, 1, 5, 3), False, "at least 3 frames a clip, got 2"),
        (5, 3, 6, (2, 1, 5, 3), True, "at least 6 frames a clip, got 5"),
        (5, 3, 3, (2, 1, 2, 3), False, "length must be above n_past = 3, got 3"),
        (5, 3, 6, (2, 1, 6, 3), False, "noise must be"),
    ],
)
def test_bad_input(tiny, clips, times, n_past, length, noise, guided, message):
    frames, _ = clips(2, times)
    with pytest.raises(ValueError, match=message):
        roll_out(tiny(), frames, n_past, length, torch.zeros(noise).double(), guided)
