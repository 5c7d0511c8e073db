"""Interrupted video runs go on as if nothing had happened."""

import time
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from nanode.training.video import VideoRecord, train_video
from nanode.training.video.setup import VideoSetup

pytestmark = pytest.mark.usefixtures("unmeasured")


def timeless(points):
    return [replace(point, seconds=0.0) for point in points]


@pytest.mark.parametrize(("stop", "every"), [(2, 3), (8, 5), (11, None)])
def test_resuming_gives_the_same_bits(tmp_path, config, interrupt, lines, stop, every):
    config = replace(config, checkpoint_every=every)
    whole = train_video(config, tmp_path / "whole")
    interrupt(stop)
    with pytest.raises(KeyboardInterrupt):
        train_video(config, tmp_path / "parts")
    assert VideoRecord.load(tmp_path / "parts" / "run.json").status == "running"
    interrupt(100)
    record = train_video(config, tmp_path / "parts")
    assert lines(tmp_path / "parts") == lines(tmp_path / "whole")
    assert timeless(record.curves) == timeless(whole.curves)
    assert timeless(record.tests) == timeless(whole.tests)
    assert record.metrics.test == whole.metrics.test
    assert record.times.starts == 2
    one, other = (load_file(tmp_path / name / "final.safetensors") for name in ("whole", "parts"))
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_asked_to_stop(tmp_path, config, lines):
    asked = iter([False] * 5 + [True])
    record = train_video(config, tmp_path / "parts", stop=lambda: next(asked))
    assert record.status == "running"
    assert len(lines(tmp_path / "parts")) == 5
    record = train_video(config, tmp_path / "parts")
    whole = train_video(config, tmp_path / "whole")
    assert record.status == "finished"
    assert lines(tmp_path / "parts") == lines(tmp_path / "whole")
    assert timeless(record.curves) == timeless(whole.curves)


def test_time_goes_on_where_it_was(tmp_path, config, interrupt):
    config = replace(config, checkpoint_every=4)
    interrupt(6)
    with pytest.raises(KeyboardInterrupt):
        train_video(config, tmp_path)
    before = VideoRecord.load(tmp_path / "run.json").curves[-1]
    interrupt(100)
    record = train_video(config, tmp_path)
    assert record.curves[0] == before
    assert record.curves[1].seconds > before.seconds


def test_warming_up_again_is_no_training(tmp_path, config, monkeypatch):
    """The first step of a setup makes what the others use, once a start."""
    asked = iter([False] * 5 + [True])
    train_video(config, tmp_path, stop=lambda: next(asked))
    step, waits = VideoSetup.step, iter([2.0])

    def slow_at_first(setup, frames):
        time.sleep(next(waits, 0.0))
        return step(setup, frames)

    monkeypatch.setattr(VideoSetup, "step", slow_at_first)
    record = train_video(config, tmp_path)
    assert record.times.first_steps > 2.0
    assert record.curves[-1].seconds < record.times.first_steps + record.times.steps - 2.0


def test_a_finished_run_is_not_repeated(tmp_path, config, interrupt):
    record = train_video(config, tmp_path)
    interrupt(0)
    assert train_video(replace(config, data_root="elsewhere", progress=True), tmp_path) == record
    # The lowest point of a curve is reported, and points are means over so many steps.
    with pytest.raises(ValueError, match="another configuration: point_every"):
        train_video(replace(config, point_every=7), tmp_path)
    with pytest.raises(ValueError, match=r"another configuration: beta \(0.0001 there, 0.1 here\)"):
        train_video(replace(config, beta=0.1), tmp_path)
    with pytest.raises(ValueError, match="holds a run already"):
        train_video(config, tmp_path, resume=False)


def test_a_damaged_checkpoint_is_named(tmp_path, config, interrupt):
    interrupt(5)
    with pytest.raises(KeyboardInterrupt):
        train_video(replace(config, checkpoint_every=4), tmp_path)
    interrupt(100)
    path = tmp_path / "checkpoints/step-00000004"
    state = torch.load(path / "state.pt", weights_only=True)
    del state["progress"]["curves"]
    torch.save(state, path / "state.pt")
    with pytest.raises(ValueError, match=f"{path} can't be read .*'curves'.*delete it to start"):
        train_video(config, tmp_path)
