"""Weights and checkpoints hold what was put in."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from nanode.training.checkpoints import (
    Unreadable,
    last_checkpoint,
    load_checkpoint,
    load_weights,
    save_checkpoint,
    save_weights,
    weights_notes,
)
from nanode.training.progress import Progress


def names(folder):
    return sorted(path.name for path in folder.iterdir())


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


def test_the_same_weights_make_the_same_file(tmp_path):
    """In other processes too, where hashes and so the order of sets and maps differ."""
    code = (
        "import sys, torch; from pathlib import Path; "
        "from nanode.training.checkpoints import save_weights; "
        "save_weights(Path(sys.argv[1]), {'w': torch.ones(2)}, channels=1, classes=2, epoch=3, a=4)"
    )
    for n in range(3):
        subprocess.run([sys.executable, "-c", code, str(tmp_path / f"{n}")], check=True)
    assert len({(tmp_path / f"{n}").read_bytes() for n in range(3)}) == 1


def test_weights_in_any_memory_format_are_saved(tmp_path):
    path = tmp_path / "final.safetensors"
    weight = torch.randn(4, 3, 3, 3).to(memory_format=torch.channels_last)
    save_weights(path, {"weight": weight, "transposed": torch.ones(2, 3).T})
    assert torch.equal(load_file(path)["weight"], weight)


def test_weights_without_notes_are_refused(tmp_path):
    path = tmp_path / "final.safetensors"
    save_file({"weight": torch.ones(1)}, path)
    with pytest.raises(ValueError, match=r"final\.safetensors lacks the notes that training"):
        weights_notes(path)
    save_file({"weight": torch.ones(1)}, path, metadata={"notes": "x"})
    with pytest.raises(ValueError, match=r"final\.safetensors can't be read"):
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


def setup_of(config, model):
    fabric = SimpleNamespace(device=torch.device("cpu"))
    optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
    return SimpleNamespace(config=config, model=model, fabric=fabric, optimizer=optimizer)


def saved(folder, config, step=3):
    setup = setup_of(config, nn.Linear(2, 2))
    setup.model(torch.ones(1, 2)).sum().backward()
    setup.optimizer.step()
    average = {"weight": setup.model.weight}
    return setup, save_checkpoint(folder, setup, Progress(step=step), average, batches=[1, 2])


def test_the_last_one_is_kept(tmp_path, config):
    assert last_checkpoint(tmp_path) is None
    saved(tmp_path, config, 3)
    _, path = saved(tmp_path, config, 12)
    assert last_checkpoint(tmp_path) == path
    assert names(tmp_path / "checkpoints") == ["step-00000012"]


def test_the_last_one_counts_in_whatever_order_a_folder_lists_them(tmp_path):
    for step in torch.randperm(39).tolist():
        (tmp_path / "checkpoints" / f"step-{step:08d}").mkdir(parents=True)
    assert last_checkpoint(tmp_path).name == "step-00000038"


def test_one_that_is_there_already_stays(tmp_path, config):
    _, path = saved(tmp_path, config, 3)
    before = (path / "state.pt").read_bytes()
    setup = setup_of(config, nn.Linear(2, 2))
    assert save_checkpoint(tmp_path, setup, Progress(step=3), {}, batches=[7]) == path
    assert (path / "state.pt").read_bytes() == before


def test_what_a_killed_process_has_left_half_written_goes(tmp_path, config):
    half = tmp_path / "checkpoints" / ".step-00000002.123.half"
    half.mkdir(parents=True)
    (half / "weights.safetensors").write_bytes(b"half")
    _, path = saved(tmp_path, config)
    assert list(path.parent.iterdir()) == [path]


def test_a_checkpoint_holds_what_was_put_in(tmp_path, config):
    setup, _ = saved(tmp_path, config)
    drawn = torch.rand(3)
    other = setup_of(config, nn.Linear(2, 2))
    average, state = load_checkpoint(tmp_path, other)
    assert torch.equal(torch.rand(3), drawn)
    assert torch.equal(other.model.weight, setup.model.weight)
    assert torch.equal(average["weight"], setup.model.weight)
    assert (state["batches"], state["progress"]["step"]) == ([1, 2], 3)
    one, two = (s.optimizer.state_dict()["state"][0]["momentum_buffer"] for s in (setup, other))
    assert torch.equal(one, two)


def test_refuses_another_model(tmp_path, config):
    assert load_checkpoint(tmp_path, None) is None
    saved(tmp_path, config)
    with pytest.raises(ValueError, match="is of another model"):
        load_checkpoint(tmp_path, setup_of(config, nn.Linear(2, 3)))


@pytest.mark.parametrize(("content", "why"), [(b"half", r"\(\w+: .*"), (b"", r"\(EOFError\b.*")])
def test_refuses_a_damaged_one(tmp_path, config, content, why):
    _, path = saved(tmp_path, config)
    (path / "state.pt").write_bytes(content)
    with pytest.raises(Unreadable, match=f"can't be read (?s:{why})delete it to start over"):
        load_checkpoint(tmp_path, setup_of(config, nn.Linear(2, 2)))


@pytest.mark.parametrize(
    "why",
    [OSError(5, "Input/output error"), RuntimeError("CUDA error: device-side assert")],
    ids=str,
)
def test_what_the_disk_or_the_device_does_is_not_the_checkpoints_fault(
    tmp_path, config, monkeypatch, why
):
    saved(tmp_path, config)

    def fails(*_, **__):
        raise why

    monkeypatch.setattr("torch.load", fails)
    with pytest.raises(type(why)) as error:
        load_checkpoint(tmp_path, setup_of(config, nn.Linear(2, 2)))
    assert error.value is why


@pytest.mark.parametrize("lost", ["optimizer", "random"])
def test_refuses_one_that_lacks_something(tmp_path, config, lost):
    _, path = saved(tmp_path, config)
    state = torch.load(path / "state.pt", weights_only=True)
    del state[lost]
    torch.save(state, path / "state.pt")
    with pytest.raises(Unreadable, match=f"step-00000003 can't be read .*'{lost}'.*delete it"):
        load_checkpoint(tmp_path, setup_of(config, nn.Linear(2, 2)))


def test_refuses_one_without_some_weights(tmp_path, config):
    _, path = saved(tmp_path, config)
    save_file({"weight": torch.ones(2, 2)}, path / "weights.safetensors")
    with pytest.raises(Unreadable, match=r"step-00000003 is of another model(?s:.*)delete it to"):
        load_checkpoint(tmp_path, setup_of(config, nn.Linear(2, 2)))


def test_no_memory_is_no_fault_of_the_checkpoint(tmp_path, config, monkeypatch):
    def full(*arguments, **options):
        raise torch.OutOfMemoryError("no memory left")

    saved(tmp_path, config)
    setup = setup_of(config, nn.Linear(2, 2))
    monkeypatch.setattr(setup.optimizer, "load_state_dict", full)
    with pytest.raises(torch.OutOfMemoryError):
        load_checkpoint(tmp_path, setup)


def test_a_copy_beside_the_checkpoints_is_none(tmp_path, config):
    _, path = saved(tmp_path, config)
    other = path.with_name("step-backup")
    other.mkdir()
    assert last_checkpoint(tmp_path) == path
    saved(tmp_path, config, 5)
    assert names(path.parent) == ["step-00000005", "step-backup"]
