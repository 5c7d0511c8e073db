"""``python -m nanode.experiments``."""

import json
import os
import signal
import subprocess
import sys

import pytest
import torch

from nanode.experiments import EXPERIMENTS, Options
from nanode.experiments.__main__ import main
from nanode.experiments.execution import check_figures
from nanode.training.loop import Loop

ARGUMENTS = ["table1", "--budget", "tiny", "--only", "table1/digits/shared/auto/seed0"]


def test_carries_out_lists_and_reports(tmp_path, capsys):
    root = ["--root", str(tmp_path)]
    assert main([*ARGUMENTS, *root, "--list"]) == 0
    assert capsys.readouterr().out == "open      table1/digits/shared/auto/seed0\n"
    changes = ["--set", "progress=false", "--set", "batch_size=64"]  # each of them counts
    assert main([*ARGUMENTS, *root, *changes, "--prune"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    found = json.loads(line)
    assert found["name"] == "table1/digits/shared/auto/seed0"
    assert found["status"] == "finished"
    record = json.loads((tmp_path / found["name"] / "run.json").read_text(encoding="utf-8"))
    assert record["config"]["batch_size"] == 64
    assert record["metrics"]["test_accuracy"] == found["test_accuracy"]
    # Done, so that nothing is printed; without the override it is another run.
    assert main([*ARGUMENTS, *root, "--set", "batch_size=64"]) == 0
    assert capsys.readouterr().out == ""
    assert main([*ARGUMENTS, *root, "--set", "batch_size=64", "--list"]) == 0
    assert capsys.readouterr().out == "done      table1/digits/shared/auto/seed0\n"
    assert main([*ARGUMENTS, *root]) == 2
    assert "batch_size (64 there, 128 here)" in capsys.readouterr().err
    assert main([*ARGUMENTS, *root, "--report", str(tmp_path / "out")]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'out' / 'table1.md'}\n"


def test_a_pattern_that_matches_nothing_is_mentioned(tmp_path, capsys):
    assert main([*ARGUMENTS[:-1], "shared/auto", "--root", str(tmp_path), "--list"]) == 0
    assert "no run planned so far matches shared/auto" in capsys.readouterr().err


def test_an_experiment_without_runs_says_how_it_is_measured(tmp_path, capsys):
    here = ["memory", "--budget", "tiny", "--root", str(tmp_path)]
    assert main(here) == 0
    assert "--report FOLDER makes its page" in capsys.readouterr().err
    assert main([*here, "--report", str(tmp_path / "out")]) == 0
    told = capsys.readouterr()
    assert "--report" not in told.err
    assert told.out == f"{tmp_path / 'out' / 'memory.md'}\n"


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_a_report_that_draws_asks_for_matplotlib_first(tmp_path, capsys, monkeypatch, name):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    options, needed = Options(budget="tiny", measure=False), False
    try:
        EXPERIMENTS[name].report(tmp_path / "runs", tmp_path / "out", options)
    except ImportError:
        needed = True
    if not needed:
        check_figures(EXPERIMENTS[name])
        return
    root = tmp_path / "new"
    assert main([name, "--budget", "tiny", "--root", str(root), "--report", str(root)]) == 2
    assert "error: figures need matplotlib: pip install" in capsys.readouterr().err
    assert not root.exists()


def test_the_end_of_a_pipe_is_no_error(tmp_path):
    """As of ``… --list | head -1``: whoever reads has gone."""
    there, here = os.pipe()
    os.close(there)
    listing = ["-m", "nanode.experiments", "table1", "--root", str(tmp_path), "--list"]
    command = [sys.executable, *listing]
    done = subprocess.run(command, stdout=here, stderr=subprocess.PIPE, check=False)
    os.close(here)
    assert (done.returncode, done.stderr) == (141, b"")


def test_an_interrupt_is_no_crash(tmp_path, capsys, monkeypatch):
    def stopped(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("nanode.experiments.execution.train", stopped)
    assert main([*ARGUMENTS, "--root", str(tmp_path)]) == 130
    assert "the same command goes on" in capsys.readouterr().err


def test_a_signal_lets_the_step_end_and_writes_a_checkpoint(tmp_path, capsys, monkeypatch):
    original, count = Loop._step, [0]

    def step(self, images, labels):
        count[0] += 1
        if count[0] == 3:
            signal.raise_signal(signal.SIGTERM)
        return original(self, images, labels)

    monkeypatch.setattr(Loop, "_step", step)
    run = [*ARGUMENTS, "--root", str(tmp_path), "--set", "progress=false"]
    assert main(run) == 130
    assert count[0] == 3
    assert main(run) == 0
    assert count[0] == 10  # ten steps in all, none made twice


def test_results_travel_in_an_archive(tmp_path, capsys, steps):
    path = tmp_path / "some.tar.gz"
    archive = ["--archive", str(path), "--archive-checkpoints"]
    quick = ["--set", "progress=false"]
    there, here, third = (["--root", str(tmp_path / name)] for name in ("there", "here", "third"))
    # Interrupted after its first checkpoint, the run comes back in a file of its own …
    steps.fail_at = 8
    settings = [*quick, "checkpoint_every=5"]
    assert main([*ARGUMENTS, *there, *settings, *archive]) == 130
    other = tmp_path / "some-unfinished.tar.gz"
    assert path.exists()
    assert other.exists()
    # … and goes on from there: what is to be written anew is unpacked first.
    assert main([*ARGUMENTS, *here, *settings, *archive]) == 0
    assert json.loads(capsys.readouterr().out)["status"] == "finished"
    assert steps.count == 8 + (10 - 5)  # ten steps in all, the first five made there
    assert not other.exists()
    assert main([*ARGUMENTS, *third, *quick, "--restore", str(path), "--list"]) == 0
    assert capsys.readouterr().out == "done      table1/digits/shared/auto/seed0\n"
    assert main([*ARGUMENTS, *here, *archive[2:]]) == 2
    assert "--archive FILE.tar.gz" in capsys.readouterr().err
    assert main([*ARGUMENTS, *here, "--archive", str(tmp_path / "none/some.tar.gz")]) == 2
    assert "folder doesn't exist" in capsys.readouterr().err


def test_runs_that_break_off_are_an_error_and_what_is_over_is_archived(
    tmp_path, capsys, monkeypatch
):
    def no_memory(*arguments, **options):
        raise torch.OutOfMemoryError("no memory left")

    monkeypatch.setattr("nanode.experiments.execution.train", no_memory)
    path = tmp_path / "some.tar.gz"
    assert main([*ARGUMENTS, "--root", str(tmp_path / "root"), "--archive", str(path)]) == 1
    assert "seed0 (OutOfMemoryError: no memory left)" in capsys.readouterr().err
    assert path.exists()


@pytest.mark.parametrize("option", ["--root", "--report", "--archive"])
def test_an_empty_path_is_not_the_current_folder(tmp_path, option, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        main([*ARGUMENTS, "--root", str(tmp_path), "--list", option, ""])
    expected = f"argument {option}: it is empty; name a path (. is the current folder)\n"
    assert capsys.readouterr().err.endswith(expected)


@pytest.mark.parametrize("wrong", [["--set", "epochs"], ["--budget", "long"], ["--minutes", "x"]])
def test_wrong_arguments(tmp_path, wrong, capsys):
    with pytest.raises(SystemExit):
        main([*ARGUMENTS, "--root", str(tmp_path), *wrong])
    assert wrong[1] in capsys.readouterr().err
