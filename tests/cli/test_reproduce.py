"""Experiments through the command line, with one of two short runs."""

import signal
import sys
from dataclasses import dataclass, replace

import pytest

from nanode.experiments import EXPERIMENTS, Planned, execution
from nanode.training import RunRecord, load_config


@dataclass
class Pair:
    """Two seeds and a page with their accuracies."""

    config: object
    summary: str = "two seeds"
    draws: bool = False

    def plan(self, options, root=None):
        seeds = range(options.seeds)
        return [Planned(f"pair/seed{n}", replace(self.config, seed=n)) for n in seeds]

    def report(self, root, out, options):
        out.mkdir(exist_ok=True)
        page, lines = out / "pair.md", []
        for run in self.plan(options):
            if (root / run.name / "run.json").exists():
                record = RunRecord.load(root / run.name / "run.json")
                lines.append(f"{run.name} is {record.status}")
        page.write_text("\n".join(lines) or "nothing yet")
        return [page, out / "pair.png"]


@pytest.fixture
def give(nanode, quick, tmp_path, monkeypatch):
    monkeypatch.setitem(EXPERIMENTS, "pair", Pair(load_config(quick)))
    folders = ("--root", tmp_path / "runs", "--out", tmp_path / "results")

    def call(*tokens):
        return nanode("reproduce", "pair", *folders, "--seeds", 2, *tokens)

    return call


def test_runs_then_reports_and_repeats_nothing(give, tmp_path):
    status, out, _ = give()
    assert status == 0
    accuracy = RunRecord.load(tmp_path / "runs/pair/seed1/run.json").metrics.test_accuracy
    (line,) = (line for line in out.splitlines() if line.startswith("pair/seed1  finished"))
    assert line.endswith(f"test {accuracy:.2%}")
    assert "pair/seed0 is finished\npair/seed1 is finished" in out
    assert out.splitlines()[-2:] == [
        str(tmp_path / "results" / "pair.md"),
        str(tmp_path / "results" / "pair.png"),
    ]
    status, again, _ = give()
    assert status == 0
    assert "finished after" not in again
    assert "pair/seed1 is finished" in again


def test_only_a_report(give, tmp_path):
    status, out, _ = give("--report-only")
    assert status == 0
    assert "nothing yet" in out
    assert "Runs still to come: 2" in out
    assert not (tmp_path / "runs" / "pair").exists()


def test_a_report_on_runs_by_other_settings(give, tmp_path):
    assert give()[0] == 0
    record = tmp_path / "runs/pair/seed0/run.json"
    record.write_text(record.read_text(encoding="utf-8").replace('"epochs": 1,', '"epochs": 2,'))
    assert give("--report-only").status == 0
    status, _, err = give()
    assert status == 1
    assert "belongs to another configuration" in err


@pytest.mark.parametrize("name", ["memory", "table2"])
def test_only_a_report_measures_nothing(nanode, tmp_path, name):
    folders = ("--root", tmp_path / "runs", "--out", tmp_path / "results")
    tokens = ("reproduce", name, "--budget", "tiny", "--report-only", *folders)
    assert nanode(*tokens).status == 0
    assert (tmp_path / "results" / f"{name}.md").exists()
    assert not [path for path in (tmp_path / "runs").rglob("*") if path.is_file()]


def test_stopped_by_the_clock(give):
    status, out, _ = give("--minutes", "1e-9")
    assert status == 0
    assert "nothing yet" in out
    assert "Runs still to come: 2" in out


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (("--seeds", "0"), "seeds must be a whole number of at least 1, got 0"),
        (("--data", "cifar"), "Did you mean 'cifar10'?"),
        (("--budget", "fulll"), "Did you mean 'full'?"),
        (("--minutes", "0"), "minutes must be above 0, got 0.0"),
    ],
)
def test_bad_input(nanode, tmp_path, tokens, message):
    folders = ("--root", tmp_path / "runs", "--out", tmp_path / "results")
    status, out, err = nanode("reproduce", "table1", *folders, *tokens)
    assert status in (1, 2)
    assert message in err
    assert out == ""
    assert list(tmp_path.iterdir()) == []


def test_an_empty_path_is_not_the_current_folder(nanode, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tokens = ("reproduce", "table1", "--budget", "tiny", "--minutes", "1e-9")
    status, _, err = nanode(*tokens, "--root", "")
    assert (status, err) == (1, "nanode: --root is empty; name a path (. is the current folder)\n")
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_experiment(nanode):
    status, _, err = nanode("reproduce", "tabel1")
    assert status == 1
    assert "Did you mean 'table1'?" in err


def test_all_are_listed(nanode):
    status, out, _ = nanode("reproduce")
    assert status == 0
    shown = {line.split(maxsplit=1)[0]: line.split(maxsplit=1)[1] for line in out.splitlines()}
    assert shown == {name: experiment.summary for name, experiment in EXPERIMENTS.items()}


def test_what_breaks_off_is_reported_all_the_same(give, tmp_path, monkeypatch):
    original = execution.train

    def train(config, folder, **options):
        if config.seed == 0:
            raise RuntimeError("too little memory")
        return original(config, folder, **options)

    monkeypatch.setattr(execution, "train", train)
    status, out, err = give()
    assert status == 1
    assert "pair/seed1 is finished" in out
    assert "Runs still to come: 1." in out
    assert "these runs broke off" in err
    assert "too little memory" in err


def test_an_interrupt_is_reported_all_the_same(give, tmp_path, monkeypatch):
    original = execution.train

    def train(config, folder, **options):
        signal.raise_signal(signal.SIGTERM)
        return original(config, folder, **options)

    monkeypatch.setattr(execution, "train", train)
    status, out, err = give()
    assert status == 130
    assert err.endswith("nanode: interrupted; the same command goes on from here\n")
    assert "pair/seed0 is running" in out


def test_reports_are_beside_the_runs_by_default(nanode, tmp_path):
    """Not where a checkout has its own."""
    root, few = tmp_path / "runs", ("--budget", "tiny", "--minutes", "1e-9")
    assert nanode("reproduce", "figure-order-test", *few, "--root", root).status == 0
    assert (root / "report" / "figure-order-test.md").exists()


def test_a_figure_that_cannot_be_drawn_is_refused_first(nanode, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    root = ("--budget", "tiny", "--root", tmp_path / "runs")
    status, out, err = nanode("reproduce", "figure-order-test", *root)
    assert (status, out) == (1, "")
    assert err == "nanode: figures need matplotlib: pip install nanode[plots]\n"
    assert list(tmp_path.iterdir()) == []
    assert nanode("reproduce", "table1", *root, "--minutes", "1e-9").status == 0


def test_a_report_that_cannot_be_written_is_refused_first(give, tmp_path):
    (tmp_path / "results").write_text("a file")
    status, out, err = give()
    assert (status, out) == (1, "")
    assert "can't be made" in err
