"""Interrupted runs go on as if nothing had happened."""

import errno
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from nanode.training import (
    AugmentConfig,
    OptimizerConfig,
    RunRecord,
    loop,
    save_config,
    train,
)


# A look at the losses each step also logs steps that the checkpoint doesn't know.
@pytest.mark.parametrize(("stop", "log_every"), [(2, 4), (8, 1), (10, 4), (14, 1)])
def test_resuming_gives_the_same_bits(
    tmp_path, config, perceptron, interrupt, stop, log_every, losses
):
    config = replace(config, options={}, checkpoint_every=3, log_every=log_every)
    config = replace(config, augment=AugmentConfig(crop=1, cutout=2, cutmix=0.5))
    whole = train(config, tmp_path / "whole")
    interrupt(stop)
    with pytest.raises(KeyboardInterrupt):
        train(config, tmp_path / "parts")
    half = RunRecord.load(tmp_path / "parts" / "run.json")
    assert half.status == "running"
    interrupt(100)
    record = train(config, tmp_path / "parts")
    assert losses(tmp_path / "parts") == losses(tmp_path / "whole")
    assert record.curves == whole.curves
    assert record.metrics == whole.metrics
    assert record.times.starts == 2
    one, other = (load_file(tmp_path / name / "final.safetensors") for name in ("whole", "parts"))
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_resuming_a_flow_gives_the_same_bits(tmp_path, config, interrupt, losses):
    config = replace(config, optimizer=OptimizerConfig(name="adamw", lr=0.01), checkpoint_every=5)
    whole = train(config, tmp_path / "whole")
    interrupt(17)
    with pytest.raises(KeyboardInterrupt):
        train(config, tmp_path / "parts")
    interrupt(100)
    record = train(config, tmp_path / "parts")
    assert losses(tmp_path / "parts") == losses(tmp_path / "whole")
    assert (record.curves, record.metrics) == (whole.curves, whole.metrics)


def test_epochs_that_end_in_quick_succession_share_a_checkpoint(
    tmp_path, config, perceptron, interrupt, monkeypatch
):
    """The first has one, then one every so many seconds; the last has one in any case."""
    written, now = [], [0.0]
    save = loop.save_checkpoint

    def saving(folder, setup, progress, **more):
        written.append(progress.step)
        return save(folder, setup, progress, **more)

    def look(self, *, original=loop.Loop._end_epoch):
        now[0] += 8.0
        original(self)

    monkeypatch.setattr(loop, "save_checkpoint", saving)
    monkeypatch.setattr(loop.Loop, "_end_epoch", look)
    monkeypatch.setattr(loop.time, "monotonic", lambda: now[0])
    config = replace(config, options={}, epochs=6)
    train(config, tmp_path / "whole")
    steps = written[-1] // 6
    assert written == [steps, 4 * steps, 6 * steps]
    # Told to stop between two epochs it writes the one that isn't there.
    written.clear()
    asked = []
    train(config, tmp_path / "parts", stop=lambda: asked.append(1) or len(asked) > 2 * steps)
    assert written == [steps, 2 * steps]


def test_a_finished_run_is_not_repeated(tmp_path, config, perceptron, interrupt):
    config = replace(config, options={})
    record = train(config, tmp_path)
    interrupt(0)
    assert train(replace(config, device="auto", log_every=7), tmp_path) == record
    with pytest.raises(ValueError, match=r"another configuration: epochs \(2 there, 3 here\)"):
        train(replace(config, epochs=3), tmp_path)
    with pytest.raises(ValueError, match="holds a run already"):
        train(config, tmp_path, resume=False)


@pytest.mark.parametrize("stop_at", [0, 4, 10, 19])
def test_a_run_that_is_told_to_stop_goes_on_later(tmp_path, config, perceptron, losses, stop_at):
    config = replace(config, options={})
    whole = train(config, tmp_path / "whole")
    asked = []

    def stop():
        """Asked once before each epoch and after each step inside it."""
        asked.append(1)
        return len(asked) > stop_at

    half = train(config, tmp_path / "parts", stop=stop)
    assert half.status == "running"
    assert len(losses(tmp_path / "parts")) == stop_at
    assert RunRecord.load(tmp_path / "parts" / "run.json") == half
    assert train(config, tmp_path / "parts").metrics == whole.metrics
    assert losses(tmp_path / "parts") == losses(tmp_path / "whole")


def test_what_was_being_written_when_a_process_was_killed_is_removed(
    tmp_path, config, perceptron, interrupt
):
    config, folder = replace(config, options={}), tmp_path / "run"
    interrupt(12)
    with pytest.raises(KeyboardInterrupt):
        train(config, folder)
    (folder / ".run.json.99.half").write_text("{")
    interrupt(100)
    train(config, folder)
    assert not list(folder.rglob(".*"))


def without_batches(state, weights):
    del state["batches"]


def with_another_entry(state, weights):
    state["progress"]["more"] = 1


def without_an_average(state, weights):
    del weights[next(name for name in weights if name.startswith("average/"))]


@pytest.mark.parametrize("damage", [without_batches, with_another_entry, without_an_average])
def test_a_damaged_checkpoint_is_named_and_the_record_stays(
    tmp_path, config, perceptron, interrupt, damage
):
    config = replace(config, options={}, checkpoint_every=3)
    interrupt(5)
    with pytest.raises(KeyboardInterrupt):
        train(config, tmp_path)
    folder, record = tmp_path / "checkpoints/step-00000003", tmp_path / "run.json"
    state = torch.load(folder / "state.pt", weights_only=True)
    weights = load_file(folder / "weights.safetensors")
    damage(state, weights)
    torch.save(state, folder / "state.pt")
    save_file(weights, folder / "weights.safetensors")
    interrupt(100)
    before = record.read_bytes()
    with pytest.raises(ValueError, match=f"{folder} can't be read .*; delete it to start over"):
        train(config, tmp_path)
    assert record.read_bytes() == before
    shutil.rmtree(folder)
    assert train(config, tmp_path).status == "finished"


# ---- what else a folder may hold


def test_what_is_not_a_checkpoint_stays(tmp_path, config, perceptron):
    other = tmp_path / "checkpoints" / "mine" / "weights.pt"
    other.parent.mkdir(parents=True)
    other.write_text("mine")
    train(replace(config, options={}, epochs=1), tmp_path)
    assert other.read_text(encoding="utf-8") == "mine"
    assert len(list((tmp_path / "checkpoints").glob("step-*"))) == 1


def test_checkpoints_without_a_record_are_refused(tmp_path, config, perceptron, interrupt):
    """They would stand in the way of the new run's, or be taken for them."""
    config = replace(config, options={}, checkpoint_every=3)
    interrupt(5)
    with pytest.raises(KeyboardInterrupt):
        train(config, tmp_path)
    (tmp_path / "run.json").unlink()
    interrupt(100)
    with pytest.raises(ValueError, match=r"holds checkpoints but no run\.json"):
        train(replace(config, seed=1), tmp_path)
    assert not (tmp_path / "run.json").exists()


def test_a_configuration_that_was_there_is_kept_or_refused(tmp_path, config, perceptron):
    config, path = replace(config, options={}, epochs=1), tmp_path / "config.yaml"
    save_config(config, path)
    text = "# mine\n" + path.read_text(encoding="utf-8")
    path.write_text(text)
    for other in (replace(config, seed=1), replace(config, epochs=3)):
        with pytest.raises(ValueError, match="is not this run's"):
            train(other, tmp_path)
    assert train(config, tmp_path).status == "finished"
    assert path.read_text(encoding="utf-8") == text
    path = tmp_path / "other" / "config.yaml"
    path.parent.mkdir()
    path.write_text("name: somebody's\n")
    with pytest.raises(ValueError, match="is not this run's"):
        train(config, path.parent)


def test_a_full_disk_is_named_as_one(tmp_path, config, perceptron, monkeypatch):
    """Also where the larger half of a checkpoint still found room."""
    write = Path.write_bytes

    def full(path, data):
        if path.name == "state.pt":
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(path, data)

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match=r"No space left on device: .*step-00000010"):
        train(replace(config, options={}), tmp_path)


def test_a_finished_run_is_read_where_nothing_can_be_written(
    tmp_path, config, perceptron, monkeypatch
):
    def refuse(folder):
        raise ValueError("no permission")

    config = replace(config, options={}, epochs=1)
    record = train(config, tmp_path)
    monkeypatch.setattr("nanode.training.locks.check_writable", refuse)
    assert train(config, tmp_path).metrics == record.metrics
    with pytest.raises(ValueError, match="no permission"):
        train(config, tmp_path / "new")
