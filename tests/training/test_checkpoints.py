"""Files are there whole or not at all, and hold what was put in."""

import os
from dataclasses import replace

import pytest
import torch
from torch import nn

from nanode.training.checkpoints import (
    last_checkpoint,
    load_checkpoint,
    load_weights,
    save_checkpoint,
    save_weights,
    weights_notes,
)
from nanode.training.files import check_writable, write_atomically, write_text


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "run.json"
    write_text(path, "old")

    def write(half):
        half.write_text("ne")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_atomically(path, write)
    assert path.read_text() == "old"
    assert names(tmp_path) == ["run.json"]


def test_the_new_file_comes_in_one_move(tmp_path, monkeypatch):
    path = tmp_path / "run.json"
    write_text(path, "old")

    def killed(half, whole):
        assert half.read_text() == "new"  # complete before it is moved
        raise KeyboardInterrupt

    monkeypatch.setattr("os.replace", killed)
    with pytest.raises(KeyboardInterrupt):
        write_text(path, "new")
    assert path.read_text() == "old"
    assert names(tmp_path) == ["run.json"]


def test_a_failed_write_of_a_folder_leaves_nothing(tmp_path):
    def write(half):
        half.mkdir()
        (half / "part").write_text("x")
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space"):
        write_atomically(tmp_path / "step", write)
    assert names(tmp_path) == []


def test_an_unwritable_folder(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"the folder .*run can't be made: .*file is a file"):
        check_writable(tmp_path / "file" / "run")
    check_writable(tmp_path / "a" / "b")
    assert names(tmp_path) == ["file"]  # nothing is made by looking


def test_no_permission(tmp_path, monkeypatch):
    monkeypatch.setattr("os.access", lambda *_: False)  # root may write everywhere
    with pytest.raises(ValueError, match="no permission to write the folder"):
        check_writable(tmp_path / "run")


def test_weights_with_notes(tmp_path):
    path = tmp_path / "final.safetensors"
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    model.append(model[0])  # tied
    save_weights(path, model.state_dict(), classes=10, accuracy=0.5)
    other = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Linear(2, 2))
    load_weights(path, other)
    assert torch.equal(other[2].weight, model[0].weight)
    assert weights_notes(path) == {"classes": 10, "accuracy": 0.5}
    with pytest.raises(ValueError, match="don't fit the model"):
        load_weights(path, nn.Linear(3, 3))
    path.write_bytes(b"half")
    with pytest.raises(ValueError, match="can't be read"):
        weights_notes(path)


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o027, 0o640)])
def test_weights_may_be_read_by_whom_the_umask_says(tmp_path, config, mask, mode):
    before = os.umask(mask)
    try:
        save_weights(tmp_path / "final.safetensors", {"weight": torch.ones(2)})
        saved(tmp_path, config)
    finally:
        os.umask(before)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {path.stat().st_mode & 0o777 for path in files} == {mode}


def saved(folder, config, step=3):
    model = nn.Linear(2, 2)
    state = {"config": config.as_dict(), "random": {"cpu": torch.arange(5)}}
    return model, save_checkpoint(folder, step, model, {"weight": model.weight}, state)


def test_the_last_one_is_kept(tmp_path, config):
    assert last_checkpoint(tmp_path) is None
    saved(tmp_path, config, 3)
    _, path = saved(tmp_path, config, 12)
    assert last_checkpoint(tmp_path) == path
    assert names(tmp_path / "checkpoints") == ["step-00000012"]


def test_a_checkpoint_holds_what_was_put_in(tmp_path, config):
    model, path = saved(tmp_path, config)
    other = nn.Linear(2, 2)
    average, state = load_checkpoint(path, other, config)
    assert torch.equal(other.weight, model.weight)
    assert torch.equal(average["weight"], model.weight)
    assert torch.equal(state["random"]["cpu"], torch.arange(5))


def test_refuses_another_configuration(tmp_path, config):
    _, path = saved(tmp_path, config)
    with pytest.raises(ValueError, match=r"another configuration: seed \(0 there, 7 here\)"):
        load_checkpoint(path, nn.Linear(2, 2), replace(config, seed=7))
    with pytest.raises(ValueError, match="is of another model"):
        load_checkpoint(path, nn.Linear(2, 3), config)


def test_refuses_a_damaged_one(tmp_path, config):
    _, path = saved(tmp_path, config)
    (path / "state.pt").write_bytes(b"half")
    with pytest.raises(ValueError, match=r"can't be read.*delete it to start over"):
        load_checkpoint(path, nn.Linear(2, 2), config)
