"""``python -m nanode.experiments``."""

import json

import pytest

from nanode.experiments.__main__ import main

ARGUMENTS = ["table1", "--budget", "tiny", "--only", "table1/digits/shared/auto/seed0"]


def test_carries_out_lists_and_reports(tmp_path, capsys):
    root = ["--root", str(tmp_path)]
    assert main([*ARGUMENTS, *root, "--list"]) == 0
    assert capsys.readouterr().out == "open      table1/digits/shared/auto/seed0\n"
    assert main([*ARGUMENTS, *root, "--set", "progress=false", "batch_size=64", "--prune"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    found = json.loads(line)
    assert found["name"] == "table1/digits/shared/auto/seed0"
    assert found["status"] == "finished"
    record = json.loads((tmp_path / found["name"] / "run.json").read_text())
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


def test_an_interrupt_is_no_crash(tmp_path, capsys, monkeypatch):
    def stopped(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("nanode.experiments.execution.train", stopped)
    assert main([*ARGUMENTS, "--root", str(tmp_path)]) == 130
    assert "goes on from the last checkpoint" in capsys.readouterr().err


@pytest.mark.parametrize("wrong", [["--set", "epochs"], ["--budget", "long"], ["--minutes", "x"]])
def test_wrong_arguments(tmp_path, wrong, capsys):
    with pytest.raises(SystemExit):
        main([*ARGUMENTS, "--root", str(tmp_path), *wrong])
    assert wrong[1] in capsys.readouterr().err
