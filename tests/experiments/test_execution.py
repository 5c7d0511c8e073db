"""Planned runs over several calls: what is skipped, resumed, refused and survived."""

import shutil
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from threading import Event

import pytest
import torch

import nanode.training.run
from nanode.data import DataError
from nanode.experiments import Options, Planned, execution, reproduce
from nanode.experiments.execution import BrokenOff, matches, until
from nanode.experiments.measurements import MEASUREMENTS, measured
from nanode.training import OptimizerConfig, RunRecord, train
from nanode.training.locks import locked
from tests.experiments.runs import execute, outcomes

pytestmark = pytest.mark.usefixtures("perceptron")


def test_runs_once(tmp_path, runs, steps):
    records = execute(runs, tmp_path)
    assert [record.seed for record in records] == [0, 1, 2]
    assert {record.status for record in records} == {"finished"}
    assert steps.count == 3 * 20
    assert execute(runs, tmp_path) == records
    assert steps.count == 3 * 20
    assert [outcome.new for outcome in outcomes(runs, tmp_path)] == [False] * 3


def test_another_configuration_is_refused_before_anything_is_trained(tmp_path, runs, steps):
    train(runs[2].config, tmp_path / runs[2].name)
    runs[2] = replace(runs[2], config=replace(runs[2].config, epochs=3))
    before = steps.count
    with pytest.raises(ValueError, match=r"some/seed2 belongs to.*: epochs \(2 there, 3 here\)"):
        execute(runs, tmp_path)
    assert steps.count == before
    assert not (tmp_path / runs[0].name).exists()


def test_what_changes_no_result_may_differ(tmp_path, runs, steps):
    execute(runs[:1], tmp_path)
    (record,) = execute(runs[:1], tmp_path, overrides={"log_every": 3})
    assert record.status == "finished"
    assert steps.count == 20


def test_overrides_reach_the_run(tmp_path, runs):
    (record,) = execute(runs[:1], tmp_path, overrides={"epochs": 1, "optimizer.lr": 0.03})
    assert (record.config.epochs, record.config.optimizer.lr) == (1, 0.03)
    with pytest.raises(ValueError, match="unknown key 'epoch'"):
        execute(runs, tmp_path, overrides={"epoch": 1})


def test_a_keyboard_interrupt_leaves_a_state_to_go_on_from(tmp_path, runs, steps):
    whole = execute(runs[:2], tmp_path / "whole")
    steps.count, steps.fail_at = 0, 35  # inside the second epoch of the second run
    with pytest.raises(KeyboardInterrupt):
        execute(runs[:2], tmp_path / "parts")
    assert RunRecord.load(tmp_path / "parts/some/seed1/run.json").status == "running"
    parts = execute(runs[:2], tmp_path / "parts")
    assert [record.metrics for record in parts] == [record.metrics for record in whole]
    assert [record.times.starts for record in parts] == [1, 2]
    # The five steps after the last checkpoint are made again, nothing else.
    assert steps.count == 35 + 5 + 5


def test_the_deadline_stops_inside_an_epoch_and_is_kept(tmp_path, runs, steps):
    """Time is counted in steps here: the deadline comes after 25 of them."""
    whole = execute(runs[:2], tmp_path / "whole")
    steps.count = 0
    found = list(outcomes(runs, tmp_path / "parts", stop=lambda: steps.count >= 25))
    assert [outcome.planned.name for outcome in found] == ["some/seed0"]
    assert steps.count == 25
    assert (tmp_path / "parts/some/seed1/checkpoints/step-00000005").is_dir()
    assert not (tmp_path / "parts/some/seed2").exists()
    found = execute(runs[:2], tmp_path / "parts")
    assert steps.count == 40
    assert [record.metrics for record in found] == [record.metrics for record in whole]


def test_runs_that_are_over_count_after_the_deadline_too(tmp_path, runs):
    execute(runs[1:2], tmp_path)
    found = list(outcomes(runs, tmp_path, stop=lambda: True))
    assert [(outcome.planned.name, outcome.new) for outcome in found] == [("some/seed1", False)]


def test_minutes(tmp_path, runs, steps, monkeypatch):
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    stop = until(0.5)
    now[0] = 129.9
    assert not stop()
    now[0] = 130.0
    assert stop()
    with pytest.raises(ValueError, match="minutes must be above 0, got 0"):
        until(0)
    monkeypatch.undo()
    assert execute(runs, tmp_path, stop=until(1e-9)) == []
    assert steps.count == 0


def test_a_run_that_diverges_fails_alone(tmp_path, runs, steps):
    runs[0] = replace(runs[0], config=replace(runs[0].config, optimizer=OptimizerConfig(lr=1e30)))
    records = execute(runs[:2], tmp_path)
    assert [record.status for record in records] == ["failed", "finished"]
    assert "at step" in records[0].message
    before = steps.count
    assert execute(runs[:2], tmp_path) == records
    assert steps.count == before


@pytest.mark.parametrize("kind", [RuntimeError, Exception])  # the latter is Triton's
def test_a_run_that_breaks_off_does_not_stop_the_others(tmp_path, runs, steps, capsys, kind):
    class NoMemory(kind):
        pass

    steps.fail_at, steps.error = 3, NoMemory("no memory left")
    found = []
    with pytest.raises(RuntimeError, match=r"broke off.*some/seed0 \(NoMemory: no memory left\)"):
        found += (outcome.planned.name for outcome in outcomes(runs, tmp_path))
    assert "NoMemory" in capsys.readouterr().err
    statuses = [RunRecord.load(tmp_path / run.name / "run.json").status for run in runs]
    assert statuses == ["running", "finished", "finished"]
    assert [record.status for record in execute(runs, tmp_path)] == ["finished"] * 3


def test_a_checkpoint_that_cannot_be_read_stops_its_own_run_alone(tmp_path, runs, steps, capsys):
    list(outcomes(runs[:1], tmp_path, stop=lambda: steps.count >= 5))
    folder = tmp_path / runs[0].name
    (folder / "checkpoints/step-00000005/state.pt").write_bytes(b"")
    before = contents(folder)
    found = []
    with pytest.raises(BrokenOff, match=r"some/seed0 \(.*step-00000005 can't be read .*delete it"):
        found += (outcome.planned.name for outcome in outcomes(runs, tmp_path))
    assert found == ["some/seed1", "some/seed2"]
    assert contents(folder) == before
    assert "Traceback" not in capsys.readouterr().err
    shutil.rmtree(folder / "checkpoints/step-00000005")
    assert [record.status for record in execute(runs, tmp_path)] == ["finished"] * 3


def test_a_missing_extra_stops_all_at_once(tmp_path, runs, monkeypatch, capsys):
    tried = []

    def missing(config, folder, stop):
        tried.append(config.seed)
        raise ImportError("training needs Fabric: pip install nanode[train]")

    monkeypatch.setattr("nanode.experiments.execution.train", missing)
    with pytest.raises(ImportError, match=r"pip install nanode\[train\]"):
        execute(runs, tmp_path)
    assert tried == [0]
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("models", [("auto",) * 3, ("auto", "anode", "auto")], ids=["one", "two"])
def test_after_two_models_in_a_row_the_rest_is_not_tried(tmp_path, runs, monkeypatch, models):
    """One that is too large for a device says nothing of the next."""
    tried = []
    runs = [
        replace(run, config=replace(run.config, model=model))
        for run, model in zip(runs, models, strict=True)
    ]

    def no_memory(config, folder, stop):
        tried.append(config.seed)
        raise torch.OutOfMemoryError("no memory left")

    monkeypatch.setattr("nanode.experiments.execution.train", no_memory)
    all_tried = len(set(models)) == 1
    with pytest.raises(BrokenOff, match=r"seed0.*seed1 \(OutOfMemoryError") as error:
        execute(runs, tmp_path)
    assert ("the rest was not tried" in str(error.value)) != all_tried
    assert tried == ([0, 1, 2] if all_tried else [0, 1])


def test_a_run_that_breaks_off_is_not_tried_again_nor_keeps_others_from_being_planned(
    tmp_path, runs, monkeypatch
):
    tried = []

    def sometimes(config, folder, stop):
        tried.append(config.seed)
        if config.seed == 0:
            raise RuntimeError("no memory left")
        return train(config, folder)

    class Growing:
        """The last run is planned once the second is there."""

        def plan(self, options, root=None):
            known = root is not None and (root / runs[1].name / "run.json").exists()
            return runs if known else runs[:2]

    monkeypatch.setattr("nanode.experiments.execution.train", sometimes)
    found = []
    with pytest.raises(BrokenOff, match=r"some/seed0 \(RuntimeError"):
        found += (o.planned.name for o in reproduce(Growing(), tmp_path, Options()))
    assert tried == [0, 1, 2]
    assert (tmp_path / runs[2].name / "run.json").exists()


def test_nothing_of_a_run_is_alive_when_the_next_one_begins(tmp_path, runs, steps, monkeypatch):
    """Finished, diverged, broken off and measured, with every model in a cycle of references."""
    models, alive = [], []

    def prepare(config):
        alive.append([model() is not None for model in models])
        setup = original(config)
        setup.model.cycle = [setup.model]
        models.append(weakref.ref(setup.model))
        return setup

    def look(folder):
        alive.append([model() is not None for model in models])
        return {}

    original = nanode.training.run.prepare
    monkeypatch.setattr("nanode.training.run.prepare", prepare)
    monkeypatch.setitem(MEASUREMENTS, "look", look)
    diverging = replace(runs[0].config, optimizer=OptimizerConfig(lr=1e30))
    runs = [Planned("diverging", diverging), *runs, Planned("last", replace(diverging, seed=3))]
    runs[2] = replace(runs[2], measure="look")
    steps.fail_at, steps.error = 35, torch.OutOfMemoryError  # an instance would keep its traceback
    with pytest.raises(BrokenOff, match=r"some/seed[012] \(OutOfMemoryError"):
        execute(runs, tmp_path)
    assert len(models) == 5
    assert not any(flag for flags in alive for flag in flags)


def test_weights_without_a_record_are_removed(tmp_path, runs, steps):
    """What another run left must not count as a checkpoint of this one."""
    folder = tmp_path / runs[0].name
    list(outcomes(runs[:1], tmp_path, stop=lambda: steps.count >= 5))
    (folder / "run.json").unlink()
    left = folder / "checkpoints/step-00000005"
    (left / "of the other run").touch()
    (folder / "film.gif").touch()
    list(outcomes(runs[:1], tmp_path, stop=lambda: steps.count >= 5 + 5))
    assert sorted(path.name for path in left.iterdir()) == ["state.pt", "weights.safetensors"]
    assert not (folder / "film.gif").exists()


def test_a_record_without_its_checkpoint_is_not_gone_on_with(tmp_path, runs, steps, monkeypatch):
    """The run begins anew: it is of the commit that trains it."""
    for commit, stop in (("old", 15), ("new", 1000)):
        monkeypatch.setattr(
            "nanode.training.environment.commit", lambda commit=commit: (commit, False)
        )
        found = list(outcomes(runs[:1], tmp_path, stop=lambda stop=stop: steps.count >= stop))
        shutil.rmtree(tmp_path / runs[0].name / "checkpoints")
    (outcome,) = found
    assert (outcome.record.commit, outcome.record.times.starts) == ("new", 1)
    assert steps.count == 15 + 20


def test_a_run_that_cannot_be_measured_any_more_is_repeated(tmp_path, runs, steps, monkeypatch):
    monkeypatch.setitem(MEASUREMENTS, "look", lambda folder: {"found": 1})
    execute(runs[:1], tmp_path, prune=True)
    run = replace(runs[0], measure="look")
    (record,) = execute([run], tmp_path, prune=True)
    assert record.status == "finished"
    assert (tmp_path / run.name / "look.json").exists()
    assert steps.count == 2 * 20


def test_pruned_runs_are_still_over(tmp_path, runs, steps):
    (record,) = execute(runs[:1], tmp_path, prune=True)
    left = sorted(path.name for path in (tmp_path / runs[0].name).iterdir())
    assert left == ["config.yaml", "log.jsonl", "run.json"]
    assert execute(runs[:1], tmp_path) == [record]
    assert steps.count == 20


def test_a_run_is_over_once_it_is_measured(tmp_path, runs, monkeypatch):
    asked = []

    def look(folder):
        asked.append(folder)
        if len(asked) == 1:
            raise KeyboardInterrupt
        assert (folder / "final.safetensors").exists()
        return {"found": 1}

    monkeypatch.setitem(MEASUREMENTS, "look", look)
    run = replace(runs[0], measure="look")
    with pytest.raises(KeyboardInterrupt):
        execute([run], tmp_path, prune=True)
    execute([run], tmp_path, prune=True)
    execute([run], tmp_path, prune=True)
    assert len(asked) == 2
    assert (tmp_path / run.name / "look.json").read_text(encoding="utf-8") == '{\n  "found": 1\n}\n'


def test_nothing_is_measured_once_time_is_up(tmp_path, runs, steps, monkeypatch):
    """The weights stay, though all others are pruned, and the next call measures them."""
    events = []

    class One:
        """A run with a measurement."""

        def plan(self, options, root=None):
            return [replace(runs[0], measure="look")]

    def look(folder):
        events.append("measured")
        return {}

    monkeypatch.setitem(MEASUREMENTS, "look", look)
    call = partial(reproduce, One(), tmp_path, Options(), prune=True)
    assert not list(
        call(asked=lambda: "trained" in events, trained=lambda: events.append("trained"))
    )
    assert events == ["trained"]
    assert (tmp_path / runs[0].name / "final.safetensors").exists()
    assert [outcome.new for outcome in call()] == [True]
    assert events == ["trained", "measured"]
    assert not (tmp_path / runs[0].name / "final.safetensors").exists()
    assert steps.count == 20


def test_a_run_made_again_is_measured_again(tmp_path, runs, monkeypatch):
    found = iter([1, 2])
    monkeypatch.setitem(MEASUREMENTS, "look", lambda folder: {"found": next(found)})
    run = replace(runs[0], measure="look")
    execute([run], tmp_path, prune=True)
    (tmp_path / run.name / "run.json").unlink()
    execute([run], tmp_path, prune=True)
    assert measured("look", tmp_path / run.name) == {"found": 2}


@contextmanager
def held(folder):
    """Another process has the folder; a thread stands for it."""
    taken, given_back = Event(), Event()

    def hold():
        with locked(folder):
            taken.set()
            given_back.wait()

    with ThreadPoolExecutor() as pool:
        pool.submit(hold)
        assert taken.wait(timeout=60)
        try:
            yield
        finally:
            given_back.set()


def contents(folder):
    return {path: path.is_file() and path.read_bytes() for path in folder.rglob("*")}


@pytest.mark.parametrize("cut", ["nothing", "checkpoints"])
def test_a_run_that_another_process_is_at_is_passed_over(tmp_path, runs, steps, capsys, cut):
    """Also before its first checkpoint, when its record alone would be cleared away."""
    list(outcomes(runs[:1], tmp_path, stop=lambda: steps.count >= 5))
    folder = tmp_path / runs[0].name
    shutil.rmtree(folder / cut, ignore_errors=True)
    with held(folder):
        before = contents(folder)
        found = list(outcomes(runs, tmp_path, prune=True))
        assert contents(folder) == before
    assert [outcome.planned.name for outcome in found] == ["some/seed1", "some/seed2"]
    assert "passed over: the run in" in capsys.readouterr().err
    assert [record.status for record in execute(runs, tmp_path)] == ["finished"] * 3


def test_a_run_that_another_process_ended_meanwhile_is_not_repeated(tmp_path, runs, steps):
    """Though its weights were removed: it was still open when the call began."""
    found = outcomes(runs[:2], tmp_path, prune=True)
    next(found)
    execute(runs[1:2], tmp_path, prune=True)
    before = steps.count
    assert [(outcome.planned.name, outcome.new) for outcome in found] == [("some/seed1", False)]
    assert steps.count == before


def test_a_run_is_held_while_it_is_measured(tmp_path, runs, monkeypatch):
    def look(folder):
        assert (folder / ".lock").exists()
        return {}

    monkeypatch.setitem(MEASUREMENTS, "look", look)
    execute([replace(runs[0], measure="look")], tmp_path)
    assert not (tmp_path / runs[0].name / ".lock").exists()


def test_plans_that_grow_are_carried_out_to_the_end(tmp_path, runs):
    class Growing:
        """The second run is planned once the first is there."""

        def plan(self, options, root=None):
            known = root is not None and (root / runs[0].name / "run.json").exists()
            return runs[:2] if known else runs[:1]

    names = [o.planned.name for o in reproduce(Growing(), tmp_path, Options())]
    assert names == ["some/seed0", "some/seed1"]
    assert [o.new for o in reproduce(Growing(), tmp_path, Options(), only=["*/seed1"])] == [False]


def test_data_that_cannot_be_had_show_before_anything_is_trained(
    tmp_path, runs, steps, monkeypatch
):
    def load_data(config):
        if config.data == "cifar100":
            raise DataError("cifar-100-binary.tar.gz is not there")

    monkeypatch.setattr(execution, "load_data", load_data)
    last = replace(runs[1], config=replace(runs[1].config, data="cifar100"))
    with pytest.raises(DataError, match="is not there"):
        execute([runs[0], last], tmp_path)
    assert steps.count == 0
    assert not list(tmp_path.iterdir())


def test_patterns():
    assert matches("table1/cifar10/shared/auto/seed0", ["*/shared/*"])
    assert not matches("table1/cifar10/shared/auto/seed0", ["table1/*/seed1", "x"])
    assert matches("anything", [])
