"""The plan of Table 1: its rows, its choices and what they decide."""

from collections import Counter
from dataclasses import replace

import pytest

from nanode.experiments import EXPERIMENTS, Options
from nanode.experiments.plan import standing
from nanode.experiments.selection import Candidate
from nanode.experiments.table1_runs import (
    DEEP,
    OTHERS,
    PAPER,
    RATES,
    Grid,
    candidates,
    choice,
    own,
    rechosen,
    scales_of,
)

TABLE1 = EXPERIMENTS["table1"]


def test_the_shared_column():
    runs = [run for run in TABLE1.plan(Options()) if "/shared/" in run.name]
    assert len({run.name for run in runs}) == len(runs)
    seeds = Counter((run.config.data, run.config.model) for run in runs)
    for data in ("cifar10", "cifar100"):
        assert {model: seeds[data, model] for model in PAPER} == dict.fromkeys(PAPER, 3)
        assert {seeds[data, model] for model in (*OTHERS, DEEP)} == {1}
    # One recipe: all that differs is what a row is, and what its depth needs.
    same = [
        replace(run.config, model="m", data="d", seed=0, options={}, compile=True, profile=False)
        for run in runs
    ]
    assert all(config == same[0] for config in same)
    steps = {run.config.model: run.config.options["steps"] for run in runs}
    assert steps.pop(DEEP) == 100
    assert set(steps.values()) == {10}
    assert all(run.config.test for run in runs)
    assert all(run.config.epochs >= 16 for run in runs)
    assert all(run.config.validation is None for run in runs)  # a tenth: 5,000 images


def test_rows_come_seed_by_seed():
    names = [run.name for run in TABLE1.plan(Options(data=("cifar10",), seeds=2))]
    assert names[: 2 * len(PAPER)] == [
        f"table1/cifar10/shared/{model}/seed{seed}" for seed in (0, 1) for model in PAPER
    ]


def test_full_plans_all_that_short_does():
    short, full = (
        {run.name: run.config for run in TABLE1.plan(Options(budget=budget))}
        for budget in ("short", "full")
    )
    assert all(full[name] == config for name, config in short.items())
    assert len(full) > len(short)


# ---- choices


@pytest.fixture
def options():
    return Options(budget="full", seeds=2)


def decide(options, root, write, model, accuracies, other=0.0, grid=None):
    """Write all candidates of a row: validation accuracies by rate, and one of scale 3.

    Test accuracies would choose the opposite.
    """
    found = candidates(model, options, root, grid)
    for lr in RATES:
        write(found[Candidate(lr)], validation=accuracies[lr], test=1 - accuracies[lr])
    scaled = {c: run for c, run in candidates(model, options, root, grid).items() if c.scale}
    assert len(scaled) == len(scales_of(model)) - 1  # the row's own was there already
    for candidate, run in scaled.items():
        accuracy = other if candidate.scale == 3 else 0.0
        write(run, validation=accuracy, test=1 - accuracy)


def test_candidates_never_see_test_images(options):
    found = [run for run in TABLE1.plan(options) if "/select" in run.name]
    assert found
    assert not any(run.config.test for run in found)
    assert all(run.config.validation is None for run in found)  # a tenth: 5,000 images
    anew = {model for model, _ in rechosen(options)}
    assert {run.config.data for run in found if run.config.model not in anew} == {"cifar10"}
    # The shared run is a candidate, too: it isn't trained twice.
    tried = candidates("auto", options, None)
    assert list(tried) == [Candidate(lr) for lr in RATES]
    assert tried[Candidate(0.1)].name == "table1/cifar10/shared/auto/seed0"


def test_validation_chooses(options, tmp_path, write):
    accuracies = {0.1: 0.5, 0.4: 0.8, 1.0: 0.7, 2.5: 0.3}
    assert max(accuracies, key=lambda lr: 1 - accuracies[lr]) == 2.5  # what test would choose
    decide(options, tmp_path, write, "auto", accuracies)
    assert choice("auto", options, tmp_path) == Candidate(lr=0.4)
    own = [run for run in TABLE1.plan(options, tmp_path) if "/own/auto/" in run.name]
    assert [run.name for run in own] == [
        f"table1/{data}/own/auto/lr0.4/seed{seed}" for seed in (0, 1) for data in options.sets
    ]
    assert {(run.config.optimizer.lr, run.config.test) for run in own} == {(0.4, True)}
    assert all("scale" not in run.config.options for run in own)


def test_scales_go_up_to_whole_steps(options, tmp_path, write):
    for model, steps in (("b-nanode-10", 10), (DEEP, 100)):
        decide(options, tmp_path, write, model, {0.1: 0.5, 0.4: 0.6, 1.0: 0.7, 2.5: 0.3})
        tried = candidates(model, options, tmp_path)
        found = [run.config for c, run in tried.items() if c.scale]
        largest = max(found, key=lambda config: config.options["scale"])
        assert largest.options["scale"] == largest.options["steps"] == steps


def test_the_scale_is_chosen_at_the_best_rate(options, tmp_path, write):
    accuracies = {0.1: 0.5, 0.4: 0.6, 1.0: 0.7, 2.5: 0.3}
    decide(options, tmp_path, write, "t-nanode-10", accuracies, other=0.75)
    assert choice("t-nanode-10", options, tmp_path) == Candidate(lr=1.0, scale=3.0)
    plan = TABLE1.plan(options, tmp_path)
    own = [run for run in plan if "/own/t-nanode-10/" in run.name]
    long = [run for run in plan if "/long/t-nanode-10/" in run.name]
    assert len(long) == 2
    for run in (*own, *long):
        assert (run.config.optimizer.lr, run.config.options["scale"]) == (1.0, 3.0)
    assert {run.config.epochs for run in long} == {45}
    assert {run.config.validation for run in long} == {0}  # nothing is left to choose


@pytest.mark.parametrize(("recipe", "epochs"), [("table1", 16), ("table1-long", 45)])
def test_two_rows_are_chosen_anew_on_the_other_data_set(options, tmp_path, write, recipe, epochs):
    """Their longer runs stand in a column of their own, beside those of CIFAR-10's choice."""

    def lines(word):
        (page,) = TABLE1.report(tmp_path, tmp_path, options)
        text = page.read_text(encoding="utf-8")
        return [line for line in text.splitlines() if word in line]

    grid = Grid("cifar100", recipe)
    here, there = Candidate(lr=1.0, scale=3.0), Candidate(lr=0.4, scale=3.0)
    best_here = {0.1: 0.5, 0.4: 0.6, 1.0: 0.7, 2.5: 0.3}
    decide(options, tmp_path, write, "t-nanode-10", best_here, other=0.75)
    (long,) = (r for r in TABLE1.plan(options, tmp_path) if "/cifar100/long/t-" in r.name)
    assert long.name.endswith(f"{here}/seed0")
    write(long, test=0.5)
    assert not lines("cifar100/long/t-nanode-10")  # nothing more to come, so far as is known
    write(candidates("t-nanode-10", options, tmp_path, grid)[Candidate(0.4)])
    (row,) = [line for line in lines("| t-nanode-10 | 66.49") if "50.00 (seed 0)" in line]
    assert row.endswith("| 50.00 (seed 0) |")  # a choice that is open has no column yet
    best_there = {0.1: 0.5, 0.4: 0.7, 1.0: 0.6, 2.5: 0.3}
    decide(options, tmp_path, write, "t-nanode-10", best_there, other=0.75, grid=grid)
    tried = candidates("t-nanode-10", options, tmp_path, grid).values()
    assert {(run.config.data, run.config.epochs) for run in tried} == {("cifar100", epochs)}
    assert choice("t-nanode-10", options, tmp_path) == here
    assert choice("t-nanode-10", options, tmp_path, grid) == there
    plan = [run for run in TABLE1.plan(options, tmp_path) if "/long/t-" in run.name]
    assert {run.name for run in plan} == {
        f"table1/cifar10/long/t-nanode-10/{here}/seed0",
        f"table1/cifar100/long/t-nanode-10/{here}/seed0",
        f"table1/cifar100/long/t-nanode-10/{there}/seed0",
    }
    assert {(run.config.epochs, run.config.validation) for run in plan} == {(45, 0)}
    (run,) = (run for run in plan if f"{there}" in run.name)
    assert (run.config.optimizer.lr, run.config.options["scale"]) == (0.4, 3.0)
    write(run, test=0.6875)
    (row,) = lines("| t-nanode-10 | 66.49")
    assert row.endswith("| 50.00 (seed 0) | 68.75 (seed 0) |")
    assert lines("t-nanode-10, CIFAR-100, longer run") == [
        "| t-nanode-10, CIFAR-100, longer run, per cent | ≥ 68.5 | 50.00 (seed 0) | "
        "**did not hold** |"
    ]
    text = f"the same, chosen there in {epochs} epochs"
    assert lines(text) == [f"| {text} | ≥ 68.5 | 68.75 (seed 0) | held |"]
    (chosen,) = lines(f"| t-nanode-10, CIFAR-100 ({epochs} epochs) | ")
    assert chosen.endswith(f"| {there} |")
    # Where the choice is the other data set's, too, it is one run.
    decide(options, tmp_path, write, "t-nanode-10", best_here, other=0.75, grid=grid)
    (row,) = lines("| t-nanode-10 | 66.49")
    assert row.endswith("| 50.00 (seed 0) | 50.00 (seed 0); the same run |")
    # Where only the main data set is meant there is nothing to choose anew.
    alone = TABLE1.plan(replace(options, data=("cifar10",)), tmp_path)
    assert not any("cifar100" in run.name for run in alone)
    (page,) = TABLE1.report(tmp_path, tmp_path, replace(options, data=("cifar10",)))
    assert "chosen there" not in page.read_text(encoding="utf-8")


def test_another_choice_does_not_meet_the_runs_of_the_first(options, tmp_path, write):
    """While a choice is open, the best candidate so far is shown, and said to be."""

    def row():
        (page,) = TABLE1.report(tmp_path, tmp_path, options)
        return next(
            line
            for line in page.read_text(encoding="utf-8").splitlines()
            if line.startswith("| t-nan")
        )

    first = Candidate(lr=1.0, scale=3.0)
    accuracies = {0.1: 0.5, 0.4: 0.6, 1.0: 0.7, 2.5: 0.3}
    decide(options, tmp_path, write, "t-nanode-10", accuracies, other=0.75)
    for run in TABLE1.plan(options, tmp_path):
        if f"/{first}/" in run.name:
            write(run, test=0.8125)
    assert row().count("81.25 ") == 3  # own best, constant memory, longer run
    found, wider = candidates("t-nanode-10", options, tmp_path), Candidate(lr=1.0, scale=10.0)
    last = found[wider]
    (tmp_path / last.name / "run.json").unlink()
    assert row().count("81.25 (seed 0); choice still open") == 2
    assert row().count("81.25 ± 0.00 (seeds 0, 1); choice still open") == 1
    # Also while a rate is missing, without which no scale is a candidate.
    rate = found[Candidate(2.5)]
    record = (tmp_path / rate.name / "run.json").rename(tmp_path / "away.json")
    assert row().count("81.25 (seed 0); choice still open") == 2
    record.rename(tmp_path / rate.name / "run.json")
    write(last, validation=0.9)
    assert choice("t-nanode-10", options, tmp_path) == wider
    assert "81.25" not in row()
    plan = {run.name for run in TABLE1.plan(options, tmp_path)}
    assert f"table1/cifar10/own/t-nanode-10/{wider}/seed0" in plan
    assert not any(f"/{first}/" in name for name in plan)


def test_what_was_chosen_before_is_named(options, tmp_path, write):
    """A scale was added after the choice without it had been tested."""
    rates = {0.1: 0.5, 0.4: 0.6, 1.0: 0.7, 2.5: 0.3}
    decide(options, tmp_path, write, "b-nanode-10", rates, other=0.75)
    (first,) = (
        run
        for run in TABLE1.plan(options, tmp_path)
        if "10/own/b-nanode-10/lr1-scale3/seed0" in run.name
    )
    write(first, test=0.8125)
    write(candidates("b-nanode-10", options, tmp_path)[Candidate(1.0, 10.0)], validation=0.9)
    (page,) = TABLE1.report(tmp_path, tmp_path, options)
    text = page.read_text(encoding="utf-8")
    assert "had been tested: b-nanode-10 on CIFAR-10 at lr1-scale3: 81.25 (seed 0)\n" in text
    assert text.count("81.25") == 1


def test_constant_memory_stands_beside_the_untied_resnet(options, tmp_path, write):
    """The network that is so lean isn't the one in the column of own bests."""
    rates = {0.1: 0.5, 0.4: 0.6, 1.0: 0.7, 2.5: 0.3}
    for model in ("t-nanode-10", "uncon-resnet"):
        decide(options, tmp_path, write, model, rates)
    tests = {"own/t-": 0.875, "own/uncon-resnet": 0.8125, "constant-memory/": 0.75}
    for run in TABLE1.plan(options, tmp_path):
        for part, accuracy in tests.items():
            if f"cifar10/{part}" in run.name and run.config.seed == 0:
                write(run, test=accuracy)
    (page,) = TABLE1.report(tmp_path, tmp_path, options)
    lines = page.read_text(encoding="utf-8").splitlines()
    (row,) = (line for line in lines if line.startswith("| uncon-resnet | 86.72 |"))
    assert row.endswith("| 81.25 (seed 0) | 81.25 (seed 0); as own best |")
    judged = [line for line in lines if "T-NANODE-10 outperforms the unconstrained" in line]
    assert judged[0].endswith("for it (+6.25, one seed) | against it (-6.25, one seed) |")


def test_the_shared_recipe_is_no_ones_best_too_early(options, tmp_path, write):
    def row():
        (page,) = TABLE1.report(tmp_path, tmp_path, options)
        (found,) = (
            line
            for line in page.read_text(encoding="utf-8").splitlines()
            if line.startswith("| auto | 8")
        )
        return found

    decide(options, tmp_path, write, "t-nanode-10", {0.1: 0.5, 0.4: 0.6, 1.0: 0.7, 2.5: 0.3})
    write(own("t-nanode-10", "cifar10", options, tmp_path))  # so that there is a column
    accuracies = {0.1: 0.9, 0.4: 0.6, 1.0: 0.7, 2.5: 0.3}
    for lr in (0.1, 0.4):
        run = candidates("auto", options, tmp_path)[Candidate(lr)]
        write(run, validation=accuracies[lr], test=0.8125)
    assert row() == "| auto | 82.98 | 81.25 (seed 0) | choice still open |"
    decide(options, tmp_path, write, "auto", accuracies)
    assert "(seed 0); as shared" in row()


def test_the_shared_recipe_is_not_repeated_where_it_is_best(options, tmp_path, write):
    decide(options, tmp_path, write, "auto", {0.1: 0.9, 0.4: 0.6, 1.0: 0.7, 2.5: 0.3})
    assert choice("auto", options, tmp_path) == Candidate(lr=0.1)
    assert not [run for run in TABLE1.plan(options, tmp_path) if "/own/auto/" in run.name]


def test_nothing_is_chosen_while_candidates_are_missing(options, tmp_path, write):
    *others, last = candidates("auto", options, tmp_path).values()
    for run in others:
        write(run)
    assert choice("auto", options, tmp_path) is None
    assert not [run for run in TABLE1.plan(options, tmp_path) if "/own/" in run.name]
    write(last)
    assert choice("auto", options, tmp_path) is None  # other scales are still to be tried
    scaled = {c.scale: run for c, run in candidates("auto", options, tmp_path).items() if c.scale}
    assert list(scaled) == [3.0, 10.0]
    write(scaled[3.0])
    assert choice("auto", options, tmp_path) is None


def test_residual_networks_are_tried_with_shorter_steps(options, tmp_path, write):
    for run in candidates("uncon-resnet", options, tmp_path).values():
        write(run)
    scales = [c.scale for c in candidates("uncon-resnet", options, tmp_path)]
    assert scales == [None] * len(RATES) + [1.0, 3.0]  # their own is ten


def test_candidates_that_fail_are_out(options, tmp_path, write):
    for candidate, run in candidates("auto", options, tmp_path).items():
        status = "failed" if candidate.lr >= 1 else "finished"
        write(run, validation=0.5 + candidate.lr / 10, status=status)
    assert Candidate(lr=0.4, scale=3.0) in candidates("auto", options, tmp_path)
    for model in (*PAPER, DEEP):
        for run in candidates(model, options, tmp_path).values():
            write(run, status="failed")
        assert choice(model, options, tmp_path) is None
    for model, grid in rechosen(options):
        for run in candidates(model, options, tmp_path, grid).values():
            write(run, status="failed")
    # Another row has a choice, so that the column is there.
    decide(options, tmp_path, write, "anode", {0.1: 0.5, 0.4: 0.8, 1.0: 0.7, 2.5: 0.3})
    write(own("anode", "cifar10", options, tmp_path))
    # That is the end of it: nothing follows from such a choice.
    (page,) = TABLE1.report(tmp_path, tmp_path, replace(options, budget="short"))
    text = page.read_text(encoding="utf-8")
    assert "still open" not in text
    assert "left to the longer run" not in text  # which won't come
    assert text.count("none: every candidate failed") == len((*PAPER, DEEP, *rechosen(options)))
    assert "| b-nanode-100 | 93.22 | – | every candidate failed |" in text


def test_candidates_by_other_settings_decide_nothing(options, tmp_path, write):
    """A choice is made between runs as they are planned now; a page names those that are not."""
    decide(options, tmp_path, write, "auto", {0.1: 0.5, 0.4: 0.8, 1.0: 0.7, 2.5: 0.3})
    run = candidates("auto", options, tmp_path)[Candidate(0.4)]
    write(replace(run, config=replace(run.config, epochs=2)), validation=0.9)
    assert choice("auto", options, tmp_path) is None
    words = standing([run], tmp_path, options)
    assert words == f"**By other settings than are planned now:** {run.name} (epochs)."


def test_a_choice_at_the_edge_is_marked(options, tmp_path, write):
    decide(options, tmp_path, write, "auto", {0.1: 0.5, 0.4: 0.6, 1.0: 0.7, 2.5: 0.8})
    (page,) = TABLE1.report(tmp_path, tmp_path, options)
    assert "lr2.5 (rate and scale at the edge)" in page.read_text(encoding="utf-8")
    decide(options, tmp_path, write, "auto", {0.1: 0.5, 0.4: 0.6, 1.0: 0.9, 2.5: 0.8})
    (page,) = TABLE1.report(tmp_path, tmp_path, options)
    assert "lr1 (scale at the edge)" in page.read_text(encoding="utf-8")
    decide(options, tmp_path, write, "auto", {0.1: 0.5, 0.4: 0.6, 1.0: 0.9, 2.5: 0.8}, other=0.95)
    (page,) = TABLE1.report(tmp_path, tmp_path, options)
    assert "lr1-scale3 |" in page.read_text(encoding="utf-8")


def test_what_is_undecided_is_said(options, tmp_path, write):
    def page(budget):
        (path,) = TABLE1.report(tmp_path, tmp_path, replace(options, budget=budget))
        return path.read_text(encoding="utf-8")

    assert "Further runs follow from choices that are still open." in page("short")
    for model in (*PAPER, DEEP):
        decide(options, tmp_path, write, model, {0.1: 0.5, 0.4: 0.8, 1.0: 0.7, 2.5: 0.3})
    assert "choices that are still open" in page("short")  # those of CIFAR-100
    for model, grid in rechosen(options):
        accuracies = {0.1: 0.5, 0.4: 0.8, 1.0: 0.7, 2.5: 0.3}
        decide(options, tmp_path, write, model, accuracies, grid=grid)
    assert "choices that are still open" not in page("short")
    assert "choices that are still open" in page("full")  # others are tuned, too
    assert "The tiny variant" in page("tiny")
    names = {run.name for run in TABLE1.plan(replace(options, budget="short"), tmp_path)}
    assert "table1/cifar100/long/t-nanode-10/lr0.4/seed0" in names
    # The deep row's longer run stands for its own best, too.
    assert "table1/cifar100/long/b-nanode-100/lr0.4/seed0" in names
    assert not any("own/b-nanode-100" in name for name in names)
    write(next(run for run in TABLE1.plan(options, tmp_path) if "cifar10/own/auto" in run.name))
    assert "| b-nanode-100 | 93.22 | – | left to the longer run |" in page("short")


def test_names_of_candidates():
    assert [str(Candidate(lr=lr)) for lr in RATES] == ["lr0.1", "lr0.4", "lr1", "lr2.5"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"data": ("cifar",)}, "Did you mean 'cifar10'"),
        ({"data": "cifar10"}, "data must be one or more names"),
        ({"data": ()}, "data must be one or more names"),
        ({"seeds": 0}, "seeds must be a whole number of at least 1"),
        ({"budget": "long"}, "budget must be one of short, full, tiny"),
    ],
)
def test_wrong_options(given, message):
    with pytest.raises(ValueError, match=message):
        Options(**given)
