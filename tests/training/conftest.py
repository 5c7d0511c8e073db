import json
import math

import pytest

from nanode.training import TrainConfig
from nanode.training.loop import Loop
from nanode.training.video.loop import VideoLoop


@pytest.fixture
def config():
    """A run of two epochs of ten steps, far below a second."""
    return TrainConfig(
        data="digits",
        model="t-nanode-2",
        preset="tiny",
        options={"steps": 2},
        epochs=2,
        batch_size=128,
        calibration=2,
        device="cpu",
        progress=False,
    )


@pytest.fixture
def lines():
    """Reads what a run logged."""

    def read(folder):
        return [
            json.loads(line)
            for line in (folder / "log.jsonl").read_text(encoding="utf-8").splitlines()
        ]

    return read


@pytest.fixture
def losses(lines):
    """Reads the step and loss of every step that a run logged."""

    def read(folder):
        return [(line["step"], line["loss"]) for line in lines(folder) if "loss" in line]

    return read


@pytest.fixture
def interrupt(monkeypatch):
    """Have the n-th step from now, of either loop, fail as if the process were stopped."""
    left = [math.inf]

    def counted(original):
        def step(*given):
            left[0] -= 1
            if left[0] < 0:
                raise KeyboardInterrupt
            return original(*given)

        return step

    for loop in (Loop, VideoLoop):
        monkeypatch.setattr(loop, "_step", counted(loop._step))

    def after(n):
        left[0] = n

    return after
