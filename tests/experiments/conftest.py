from dataclasses import replace

import pytest

from nanode.experiments import Planned
from nanode.training import Metrics, RunRecord, TrainConfig
from nanode.training.loop import Loop


@pytest.fixture
def config():
    """A run of two epochs of ten steps."""
    return TrainConfig(
        data="digits",
        model="auto",
        preset="tiny",
        epochs=2,
        batch_size=128,
        calibration=2,
        device="cpu",
        progress=False,
    )


@pytest.fixture
def runs(config):
    """Three runs that differ in their seed."""
    return [Planned(f"some/seed{seed}", replace(config, seed=seed)) for seed in range(3)]


@pytest.fixture
def steps(monkeypatch):
    """Counts training steps; ``steps.fail_at`` makes a step raise."""
    original = Loop._step

    class Steps:
        count, fail_at, error = 0, None, KeyboardInterrupt

    def step(self, images, labels):
        if Steps.count == Steps.fail_at:
            Steps.fail_at = None
            raise Steps.error
        Steps.count += 1
        return original(self, images, labels)

    monkeypatch.setattr(Loop, "_step", step)
    return Steps


@pytest.fixture
def write(tmp_path):
    """Write the record of a run that is over, as if it had been trained."""

    def write(run, validation=0.5, test=0.5, status="finished"):
        metrics = Metrics(validation_accuracy=validation, test_accuracy=test)
        record = RunRecord(
            config=run.config,
            seed=run.config.seed,
            started="2026-01-01T00:00:00+00:00",
            status=status,
            metrics=metrics if status == "finished" else None,
            message="it diverged" if status == "failed" else None,
        )
        folder = tmp_path / run.name
        folder.mkdir(parents=True, exist_ok=True)
        record.save(folder / "run.json")
        return record

    return write
