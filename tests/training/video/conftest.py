import numpy as np
import pytest

from nanode.data.video import VideoData
from nanode.data.video.clips import StoredClips
from nanode.training.video import AdamConfig, VideoConfig


def squares(count, length=12, size=16, seed=0):
    """Clips of a bright 4×4 square that moves by a constant step and comes in again."""
    draw = np.random.default_rng(seed)
    start = draw.integers(0, size, (count, 2))
    speed = draw.integers(-2, 3, (count, 2))
    frames = np.zeros((count, length, 1, size, size), np.uint8)
    for n in range(count):
        for t in range(length):
            y, x = start[n] + t * speed[n]
            rows, columns = ((np.arange(4) + place) % size for place in (y, x))
            frames[n, t, 0][np.ix_(rows, columns)] = 255
    return frames


@pytest.fixture
def clips(monkeypatch):
    """In place of every data set: squares, or the arrays that a test gives."""

    def use(train=None, test=None):
        data = VideoData(
            "squares",
            StoredClips("squares train", squares(40) if train is None else train),
            StoredClips("squares test", squares(6, seed=1) if test is None else test),
        )

        def load(name, *, root, device, **options):
            data.train.device = data.test.device = device
            return data

        monkeypatch.setattr("nanode.training.video.setup.load", load)
        return data

    use()
    return use


@pytest.fixture
def config(clips):
    """Twelve steps, in a second."""
    return VideoConfig(
        data="squares",
        model="svg-nanode",
        options={"width": 2, "g_dim": 8, "z_dim": 3, "rnn_size": 8},
        n_past=3,
        n_future=3,
        n_eval=8,
        batch_size=4,
        steps=12,
        calibration=2,
        test_clips=5,
        evaluate_every=6,
        point_every=4,
        device="cpu",
        progress=False,
        optimizer=AdamConfig(lr=5e-3),
    )


@pytest.fixture
def unmeasured(monkeypatch):
    """Runs begin at once, without a look at their memory."""
    monkeypatch.setattr("nanode.training.video.run.measure_video_costs", lambda setup: None)
