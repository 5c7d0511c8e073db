"""figure-orthogonal: what is planned, when a run counts as collapsed, and the report."""

from dataclasses import replace

import pytest

from nanode.experiments import EXPERIMENTS, Options, reproduce
from nanode.experiments.orthogonal import about, collapsed, stumbled
from nanode.models import create
from nanode.training import Epoch, recipe

FIGURE = EXPERIMENTS["figure-orthogonal"]


def test_the_plan():
    plan = FIGURE.plan(Options(seeds=2))
    assert len(plan) == 2 * 4 * 4
    assert {run.config.data for run in plan} == {"cifar10"}
    assert {run.config.options["steps"] for run in plan} == {10}
    assert {run.config.seed for run in plan} == {0, 1}
    rates = {run.config.optimizer.lr for run in FIGURE.plan(Options(budget="full"))}
    assert rates == {0.1, 1.0, 4.0, 16.0}
    assert {run.config.epochs for run in plan} == {8}
    names = {run.config.model for run in plan}
    assert names == {
        f"chebyshev-5{a}{b}" for a in ("", "-independent") for b in ("", "-orthogonal")
    }


@pytest.mark.parametrize(
    ("budget", "said"),
    [
        ("short", "On CIFAR-10. Chebyshev weights of degree 4 at K = 10 by the recipe of Table 1"),
        ("full", "On CIFAR-10. Chebyshev weights of degree 4 at K = 10 by the recipe of Table 1"),
        ("tiny", "On digits. Chebyshev weights of degree 4 at K = 3 by the tiny recipe of Table 1"),
    ],
)
def test_the_report_says_what_was_run(budget, said):
    options = Options(budget=budget)
    text, configs = about(options), [run.config for run in FIGURE.plan(options)]
    assert text.startswith(said)
    (steps,) = {config.options["steps"] for config in configs}
    (epochs,) = {config.epochs for config in configs}
    assert f"at K = {steps} by" in text
    if "half of its epochs" in text:
        assert 2 * epochs == recipe("table1").epochs
    else:
        assert "for one epoch" in text
        assert epochs == 1
    # Nothing was learnt in so few steps, which is no collapse.
    assert ("never learn" in text) == (budget == "tiny")


def test_the_orthogonal_rows_have_as_many_weights():
    """As the paper has it, one vector a column: the same numbers move."""
    counts = [
        sum(p.numel() for p in create(name, preset="tiny").parameters())
        for name in ("chebyshev-5", "chebyshev-5-orthogonal")
    ]
    assert counts[0] == counts[1]


@pytest.mark.parametrize(
    ("accuracies", "final", "on_the_way", "for_good"),
    [
        ([0.3, 0.5, 0.7], 0.7, False, False),
        ([0.3, 0.7, 0.36], 0.36, False, False),
        ([0.3, 0.7, 0.34], 0.34, True, True),  # below half
        ([0.3, 0.7, 0.34], 0.7, True, False),  # but its averaged weights are not
        ([0.5, 0.2, 0.4], 0.45, True, False),  # and it learnt again
        ([0.1, 0.11, 0.12], 0.12, False, True),  # guessing
        ([0.3, 0.5], None, False, True),  # diverged
    ],
)
def test_collapse(write, runs, accuracies, final, on_the_way, for_good):
    curves = tuple(
        Epoch(epoch=n, step=n, train_loss=1.0, validation_accuracy=accuracy)
        for n, accuracy in enumerate(accuracies, 1)
    )
    given = {"status": "failed"} if final is None else {"validation": final}
    record = replace(write(runs[0], **given), curves=curves)
    assert (stumbled(record), collapsed(record)) == (on_the_way, for_good)


def test_from_start_to_report(tmp_path):
    options = Options(budget="tiny", seeds=1)
    only = ["*lr1/chebyshev-5/*", "*lr1/*-orthogonal/*"]
    found = list(reproduce(FIGURE, tmp_path, options, only=only, overrides={"progress": False}))
    assert len(found) == 3
    figure, page = FIGURE.report(tmp_path, tmp_path / "out", options)
    assert figure.stat().st_size > 0
    text = page.read_text(encoding="utf-8")
    for outcome in found:
        record = outcome.record
        assert record.status == "finished"
        assert f"{100 * record.metrics.test_accuracy:.2f}" in text
    assert (
        f"| 1 | constant, batch norm only | {100 * found[0].record.metrics.test_accuracy:.2f}"
        in text
    )
    assert "| 0.1 | constant, batch norm only | – | – | – |" in text
    assert "each coefficient drawn by itself" in text
    assert about(options) in text


def test_failed_runs_are_reported(tmp_path, write):
    run = FIGURE.plan(Options())[1]
    assert run.config.model == "chebyshev-5-orthogonal"
    write(run, status="failed")
    _, page = FIGURE.report(tmp_path, tmp_path / "out", Options())
    text = page.read_text(encoding="utf-8")
    assert "| 0.1 | constant, orthogonal | failed (seed 0) | 0 of 1 | 1 of 1 |" in text
    assert "| 0.1 | every run diverged: constant, orthogonal | not measured |" in text
