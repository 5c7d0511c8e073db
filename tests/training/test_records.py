"""The layout of ``run.json``."""

import json
import math
from dataclasses import replace

import pytest

from nanode.training import Epoch, Metrics, RunRecord, Times
from nanode.training.environment import commit, versions

KEYS = [
    "config",
    "status",
    "message",
    "seed",
    "commit",
    "modified",
    "versions",
    "hardware",
    "flows",
    "started",
    "ended",
    "curves",
    "metrics",
    "times",
    "costs",
    "format",
]


@pytest.fixture
def record(config):
    return RunRecord(config=config, seed=0, started="2026-01-01T00:00:00+00:00")


def test_the_keys_of_the_file(tmp_path, record):
    record.save(tmp_path / "run.json")
    assert list(json.loads((tmp_path / "run.json").read_text(encoding="utf-8"))) == KEYS


def test_round_trip(tmp_path, record):
    full = replace(
        record,
        status="finished",
        curves=(Epoch(epoch=1, step=10, train_loss=2.0, validation_accuracy=0.1),),
        metrics=Metrics(test_accuracy=0.5, test_loss=1.0),
        times=Times(total=3.0, starts=2),
        versions=versions(),
    )
    full.save(tmp_path / "run.json")
    assert RunRecord.load(tmp_path / "run.json") == full


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"status": "done"}, "running, finished, failed; got 'done'"),
        ({"status": "finished"}, "metrics must be there"),
        ({"status": "failed"}, "message must say why"),
        ({"format": 2}, "format must be 1, got 2"),
        ({"seed": 3}, "seed must be config.seed, 0; got 3"),
    ],
)
def test_refuses(record, changes, message):
    with pytest.raises(ValueError, match=message):
        replace(record, **changes)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"stats": 1}, "run.json: unknown key 'stats'.*'status'"),
        ({"curves": [{"epoch": 1}]}, "the key 'curves.step' is missing"),
        ({"metrics": {"test_accuracy": 93.2}}, "test_accuracy.*at most 1, got 93.2"),
        ({"times": {"total": "long"}}, "times.total must be a number, got 'long'"),
        ({"config": {"data": "digits"}}, "the key 'config.model' is missing"),
    ],
)
def test_a_file_that_was_tampered_with(tmp_path, record, change, message):
    path = tmp_path / "run.json"
    record.save(path)
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | change))
    with pytest.raises(ValueError, match=message):
        RunRecord.load(path)


def test_a_file_that_is_no_record(tmp_path):
    with pytest.raises(ValueError, match="can't read the run record"):
        RunRecord.load(tmp_path / "run.json")
    (tmp_path / "run.json").write_text('{"status": "fin')
    with pytest.raises(ValueError, match="can't read the run record"):
        RunRecord.load(tmp_path / "run.json")


def test_no_number_that_json_does_not_know(tmp_path, record):
    record.save(tmp_path / "run.json")
    broken = replace(record, times=Times(total=math.nan))
    with pytest.raises(ValueError, match="JSON"):
        broken.save(tmp_path / "run.json")
    assert RunRecord.load(tmp_path / "run.json") == record


def test_the_commit_is_one_or_none(monkeypatch):
    monkeypatch.delenv("NANODE_COMMIT", raising=False)
    found, modified = commit()
    assert (found is None) == (modified is None)
    assert found is None or len(found) == 40


def test_a_copy_without_its_repository_is_told_its_commit(monkeypatch):
    def no_git(*arguments, **options):
        raise FileNotFoundError("git")

    monkeypatch.setattr("nanode.training.environment.subprocess.run", no_git)
    monkeypatch.delenv("NANODE_COMMIT", raising=False)
    assert commit() == (None, None)
    monkeypatch.setenv("NANODE_COMMIT", "0123abc")
    assert commit() == ("0123abc", None)
