"""Training and measuring through the command line, on real digits."""

import errno
import json
import os
import signal
from dataclasses import replace

import pytest

from nanode import data
from nanode.cli.train import _placed
from nanode.training import RunRecord, load_config
from nanode.training.config import differences
from nanode.training.journal import Journal
from nanode.training.loop import Loop
from nanode.training.video import VideoConfig


@pytest.fixture
def trained(train):
    answer = train()
    assert answer.status == 0, answer.err
    return answer


def test_what_a_run_says_and_leaves(trained, quick, run_folder):
    record = RunRecord.load(run_folder / "run.json")
    assert record.status == "finished"
    assert record.config == load_config(quick)
    test, validation = record.metrics.test_accuracy, record.metrics.validation_accuracy
    assert f"test        {test:.2%}" in trained.out
    assert f"validation  {validation:.2%}" in trained.out
    assert str(run_folder / "run.json") in trained.out


@pytest.mark.parametrize("split", ["test", "validation"])
def test_evaluating_gives_the_recorded_numbers(trained, nanode, run_folder, split):
    metrics = json.loads((run_folder / "run.json").read_text(encoding="utf-8"))["metrics"]
    status, out, _ = nanode("evaluate", run_folder, "--split", split)
    assert status == 0
    measured, recorded = out.splitlines()
    assert measured.split() == [
        split,
        f"{metrics[f'{split}_accuracy']:.2%}",
        "loss",
        f"{metrics[f'{split}_loss']:.4f}",
    ]
    assert recorded.split() == ["run.json", f"{metrics[f'{split}_accuracy']:.2%}"]


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("compile", "none", "true or false, got 'none'"),
        ("moving_norms", "7", "true or false, got 7"),
        ("scale", "true", "a finite number, got True"),
        ("steps", "2.5", "a whole number of at least 1, got 2.5"),
    ],
)
def test_options_of_another_kind_are_refused(train, run_folder, option, value, expected):
    status, _, err = train(f"--options.{option}", value)
    assert status == 1
    assert f"options.{option} must be {expected}" in err
    assert not run_folder.exists()


def test_a_full_disk_is_named(train, run_folder, monkeypatch):
    def full(self, step, **values):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "write", full)
        status, _, err = train()
    assert status == 1
    assert f"No space left on device: '{run_folder}'; make room, and give the same" in err
    assert train().status == 0


def test_a_data_root_is_the_same_from_any_folder(train, run_folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert train("--data-root", "sets").status == 0
    assert RunRecord.load(run_folder / "run.json").config.data_root == str(tmp_path / "sets")


def test_a_cache_is_the_same_from_any_folder(nanode, tmp_path, monkeypatch):
    """And changes nothing that it would take another run for."""
    monkeypatch.chdir(tmp_path)
    placed = _placed(VideoConfig(data="bair", model="svg", steps=1, data_options={"cache": "c"}))
    assert placed.data_options == {"cache": str(tmp_path / "c")}
    other = replace(placed, data_options={"cache": "elsewhere"})
    assert not differences(placed.as_dict(), other.as_dict())


def test_a_run_that_was_moved_names_its_data(train, nanode, run_folder, tmp_path, monkeypatch):
    asked = []

    def load(name, root, progress):
        asked.append(root)
        return data.load(name)

    monkeypatch.setattr("nanode.training.setup.load", load)
    assert train("--data-root", tmp_path / "first").status == 0
    assert nanode("evaluate", run_folder).status == 0
    assert nanode("evaluate", run_folder, "--data-root", tmp_path / "other").status == 0
    assert asked == [str(tmp_path / name) for name in ("first", "first", "other")]


def test_an_interrupt_leaves_a_checkpoint_at_the_step(train, monkeypatch):
    original, count = Loop._step, []

    def step(self, images, labels):
        count.append(1)
        if len(count) == 3:
            signal.raise_signal(signal.SIGINT)
        return original(self, images, labels)

    monkeypatch.setattr(Loop, "_step", step)
    status, out, err = train()
    assert (status, out) == (130, "")
    assert err.endswith("nanode: interrupted; the same command goes on from here\n")
    assert len(count) == 3
    assert train().status == 0
    assert len(count) == 10  # ten steps in all, none made twice


def test_a_finished_run_is_not_repeated(trained, train, run_folder):
    before = (run_folder / "run.json").stat().st_mtime_ns
    again = train()
    assert again == trained
    assert (run_folder / "run.json").stat().st_mtime_ns == before


def test_a_folder_that_is_taken(trained, train):
    status, _, err = train("--no-resume")
    assert status == 1
    assert "holds a run already" in err
    status, _, err = train("--seed", 5)
    assert status == 1
    assert "belongs to another configuration: seed (0 there, 5 here)" in err


# ---- bad input: one line, and nothing is written


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (("--data", "cifar11"), "Did you mean 'cifar10'?"),
        (("--preset", "stagd"), "Did you mean 'staged'?"),
        (("--model", "t-nanode-D"), "D in 't-nanode-D' stands for a number; give one, such as"),
        (("--augment.crop", "9"), "expected padding (crop) below the image's side, 8 pixels"),
        (("--augment.cutout", "8"), "expected cutout below the image's side, 8 pixels, got 8"),
        (("--epochs", "0"), "epochs must be a whole number of at least 1, got 0"),
    ],
)
def test_bad_input(train, run_folder, tokens, message):
    status, out, err = train(*tokens)
    assert (status, out) == (1, "")
    assert message in err
    assert err.startswith("nanode: ")
    assert err.count("\n") == 1
    assert not run_folder.parent.exists()


@pytest.mark.parametrize("option", ["--out", "--config"])
def test_an_empty_path_is_not_the_current_folder(
    nanode, quick, run_folder, option, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    before = list(tmp_path.rglob("*"))
    given = {"--config": quick, "--out": run_folder} | {option: ""}
    tokens = [token for pair in given.items() for token in pair]
    expected = f"nanode: {option} is empty; name a path (. is the current folder)\n"
    assert nanode("train", "image", *tokens) == (1, "", expected)
    assert list(tmp_path.rglob("*")) == before


def test_a_wrong_key_in_the_file(train, quick, run_folder):
    quick.write_text(quick.read_text(encoding="utf-8") + "epoch: 3\n")
    status, _, err = train()
    assert status == 1
    assert err == f"nanode: {quick}: unknown key 'epoch'. Did you mean 'epochs'?\n"
    assert not run_folder.parent.exists()


def test_a_model_is_checked_before_data_are_fetched(train, monkeypatch):
    def offline(*arguments, **options):
        raise AssertionError("the network was asked")

    monkeypatch.setattr("urllib.request.urlopen", offline)
    status, _, err = train("--data", "cifar10", "--model", "aut")
    assert status == 1
    assert "got 'aut'. Did you mean 'auto'?" in err


def test_a_rate_that_diverges(train, nanode, run_folder):
    status, out, err = train("--optimizer.lr", "1e30")
    assert (status, out) == (1, "")
    assert err.startswith("nanode: the training loss became nan at step")
    assert "lower optimizer.lr" in err
    assert err.count("\n") == 1
    assert json.loads((run_folder / "run.json").read_text(encoding="utf-8"))["status"] == "failed"
    status, _, err = nanode("evaluate", run_folder)
    assert status == 1
    assert "is failed, expected a finished one" in err


@pytest.mark.skipif(
    getattr(os, "geteuid", lambda: 1)() == 0, reason="root may read and write everything"
)
def test_folders_without_permission(train, run_folder, tmp_path):
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    status, _, err = train("--data", "cifar10", "--data-root", closed / "data")
    assert status == 1
    assert "no permission for" in err
    assert not run_folder.parent.exists()
    status, _, err = train(out=closed / "run")
    assert status == 1
    assert "no permission to write the folder" in err


def test_a_file_where_a_folder_should_be(train, quick):
    status, _, err = train(out=quick / "run")
    assert status == 1
    assert f"{quick} is a file" in err
    status, _, err = train(out=quick)
    assert status == 1
    assert f"{quick} is a file" in err


def test_evaluating_what_is_no_run(nanode, tmp_path):
    status, _, err = nanode("evaluate", tmp_path)
    assert status == 1
    assert "can't read the run record" in err
