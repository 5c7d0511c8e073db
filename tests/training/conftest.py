import json

import pytest

from nanode.training import TrainConfig
from nanode.training.loop import Loop


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
def losses():
    """Reads the step and loss of every step that a run logged."""

    def read(folder):
        lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
        return [(line["step"], line["loss"]) for line in lines if "loss" in line]

    return read


@pytest.fixture
def interrupt(monkeypatch):
    """Have the n-th step from now fail as if the process were stopped."""
    original = Loop._step

    def after(n):
        left = [n]

        def step(self, images, labels):
            left[0] -= 1
            if left[0] < 0:
                raise KeyboardInterrupt
            return original(self, images, labels)

        monkeypatch.setattr(Loop, "_step", step)

    return after
