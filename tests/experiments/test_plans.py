"""Every experiment: its plan in all budgets, and its tiny variant from start to report."""

import json
from collections import Counter
from dataclasses import replace

import pytest
import torch

import nanode.training.evaluation
from nanode.data import load
from nanode.experiments import EXPERIMENTS, Options, fitted_orders, reproduce, tested_orders
from nanode.experiments.memory import EVALUATIONS, FILE, METHODS
from nanode.experiments.table1_runs import candidates, shared
from nanode.models import create
from nanode.training import RunRecord

#: The others are in test_video.py.
IMAGES = [name for name in EXPERIMENTS if name not in ("table2", "figure-video")]


@pytest.mark.parametrize("budget", ["short", "full", "tiny"])
@pytest.mark.parametrize("name", IMAGES)
def test_plans_are_sound(name, budget):
    plan = EXPERIMENTS[name].plan(Options(budget=budget))
    assert len({run.name for run in plan}) == len(plan)
    for run in plan:
        assert run.config.data == ("digits" if budget == "tiny" else run.config.data)
        assert f"/{run.config.data}/" in run.name
        assert run.name.split("/")[0] in (name, "table1")
    if budget == "tiny":
        assert {run.config.epochs for run in plan} <= {1}
        assert {run.config.device for run in plan} <= {"cpu"}


@pytest.mark.parametrize("name", IMAGES)
def test_every_planned_model_can_be_made(name):
    plan = EXPERIMENTS[name].plan(Options(budget="full"))
    for model, options in {(r.config.model, json.dumps(r.config.options)) for r in plan}:
        create(model, preset="tiny", **json.loads(options))


def test_the_figures_show_what_they_should():
    train, test = (
        EXPERIMENTS[f"figure-order-{kind}"].plan(Options()) for kind in ("train", "test")
    )
    assert fitted_orders.ORDERS == (1, 2, 4, 8, 16, 30)
    assert {run.config.options["steps"] for run in train} == {100}
    assert not any(run.config.test for run in train)
    assert {run.config.label_smoothing for run in train} == {0.0}
    assert not any(run.config.augment.crop or run.config.augment.flip for run in train)
    # The ends of the range also at the shared rate, by which the order is a step size, too.
    rates = Counter(run.config.optimizer.lr for run in train)
    assert rates == {0.4: 6 + 1 + 2, 0.1: 2 + 1}
    # And with whole steps, as the residual network takes them.
    whole = [run.config.model for run in train if run.config.options.get("scale") == 100]
    assert whole == ["t-nanode-1", "t-nanode-30"]
    assert tested_orders.ORDERS == (4, 5, 6, 7, 8, 9, 10)
    # Order 10 and the residual networks are Table 1's, and so are the candidates for their rates.
    assert len(test) == 2 * 7 + 2 + 4 * 3
    ours = {run.name: run.config for run in EXPERIMENTS["table1"].plan(Options())}
    shared = [run for run in test if run.name in ours]
    assert len(shared) == 4 + 4 * 3
    assert all(ours[run.name] == run.config for run in shared)


def test_other_orders_take_what_was_chosen_for_order_10(tmp_path, write):
    options, rates = Options(), {"t-nanode-10": 1.0, "b-nanode-10": 0.1, "uncon-resnet": 0.4}
    for model, rate in rates.items():
        for _ in range(2):  # rates, then a scale
            for candidate, run in candidates(model, options, tmp_path).items():
                loss = abs(candidate.lr - rate) + (candidate.scale is not None)
                write(run, validation=0.8 - loss / 10)
    plan = EXPERIMENTS["figure-order-test"].plan(options, tmp_path)
    found = {run.name.removeprefix("figure-order-test/cifar10/own/"): run.config for run in plan}
    assert {found[f"t-nanode-{n}/lr1/seed0"].optimizer.lr for n in (4, 6, 8)} == {1.0}
    # The shared recipe is B's own best, and isn't trained twice.
    assert not any(name.startswith("b-nanode") for name in found)
    # What Table 1 has already is taken from there, if it is chosen yet.
    assert {name for name in found if "/own/" in name} == {
        "table1/cifar10/own/t-nanode-10/lr1/seed0",
        "table1/cifar10/own/uncon-resnet/lr0.4/seed0",
    }
    tried = [run for run in plan if "/select/" in run.name]
    assert len(tried) == 3 * (3 + 2) + 3  # con-resnet's choice is still open
    assert len(plan) == 16 + 3 + 2 + len(tried)
    (_, page) = EXPERIMENTS["figure-order-test"].report(tmp_path, tmp_path / "out", options)
    assert "Further runs follow" in page.read_text(encoding="utf-8")


def staged_plan(tmp_path, write, data=("cifar10",), budget="short", gain=0.01):
    """All that is planned once records say that rate 0.4, scale 2.5 and mixing are best.

    By so much; on CIFAR-100 that not mixing is.
    """
    staged, options, plan = EXPERIMENTS["staged"], Options(data=data, budget=budget), []
    while len(plan) < len(found := staged.plan(options, tmp_path)):
        for run in found[len(plan) :]:
            config = run.config
            validation = 0.8 - abs(config.optimizer.lr - 0.4)
            validation += gain * (config.options.get("scale") == 2.5)
            validation += gain * config.augment.cutmix * (2 if config.data == "cifar10" else -2)
            # By test accuracy the choice would be another.
            write(run, validation=validation, test=1 - validation)
        plan = found
    return plan


def test_staged_choices_are_made_one_after_the_other(tmp_path, write):
    plan = staged_plan(tmp_path, write)
    names = [run.name.removeprefix("staged/cifar10/") for run in plan]
    assert names[:7] == [
        "select/lr0.2",
        "select/lr0.4",
        "select/lr0.8",
        "select/lr0.4-scale2.5",
        "select/lr0.4-scale6",
        "mixing/lr0.4-scale2.5-cutmix0",
        "mixing/lr0.4-scale2.5-cutmix0.5",
    ]
    assert not any(run.config.test for run in plan[:7])
    final = [run.config for run in plan[7:]]
    assert {(c.optimizer.lr, c.augment.cutmix) for c in final} == {(0.4, 0.5)}
    # A ResNet's scale is its depth, by default.
    scales = {(c.model, c.options.get("scale")) for c in final}
    assert scales == {("b-nanode-3", 2.5), ("uncon-resnet", None)}


@pytest.mark.parametrize(("gain", "chosen"), [(0.005, (None, 0.0)), (0.006, (2.5, 0.5))])
def test_a_gain_within_the_standard_error_decides_nothing(tmp_path, write, gain, chosen):
    """Of 80 % of 5,000 images it is 0.57 points."""
    final = staged_plan(tmp_path, write, gain=gain)[7].config
    assert (final.options.get("scale"), final.augment.cutmix) == chosen


def test_every_data_set_chooses_whether_to_mix(tmp_path, write):
    plan = staged_plan(tmp_path, write, ("cifar10", "cifar100"))
    assert [run.config.data for run in plan[:9]] == ["cifar10"] * 7 + ["cifar100"] * 2
    final = {(run.config.data, run.config.augment.cutmix) for run in plan[9:]}
    assert final == {("cifar10", 0.5), ("cifar100", 0.0)}
    assert {run.config.optimizer.lr for run in plan[9:]} == {0.4}


def test_staged_rows_have_the_sizes_that_they_are_compared_by(tmp_path, write):
    count = {}
    for run in staged_plan(tmp_path, write, budget="full")[7:]:
        model = create(run.config.model, preset="staged", **run.config.options)
        count[run.name.split("/")[2]] = sum(p.numel() for p in model.parameters())
    assert count["b-nanode-3-k6"] == count["t-nanode-1-periodic-k6"] == count["uncon-resnet-k3"]
    assert count["b-nanode-3-k6"] < 5_000_000
    assert count["uncon-resnet-k6"] > count["b-nanode-3-k6"]


@pytest.mark.parametrize(
    ("name", "only", "pages"),
    [
        ("table1", ["*/t-nanode-10/*"], {"table1.md"}),
        ("staged", [], {"staged.md"}),
        (
            "figure-order-train",
            ["*-1/*", "*/con-resnet/*"],
            {"figure-order-train.md", "figure-order-train.png"},
        ),
        (
            "figure-order-test",
            ["*-4/*", "*/t-nanode-10/*"],
            {"figure-order-test.md", "figure-order-test.png"},
        ),
        ("tradeoff", ["*/order10-penalty0/*", "*/order1-*"], {"tradeoff.md", "tradeoff.png"}),
    ],
)
def test_from_start_to_report(tmp_path, name, only, pages):
    experiment, options = EXPERIMENTS[name], Options(budget="tiny", seeds=1)
    runs, out = tmp_path / "runs", tmp_path / "out"
    found = list(
        reproduce(experiment, runs, options, only=only, prune=True, overrides={"progress": False})
    )
    assert found
    assert {outcome.record.status for outcome in found} == {"finished"}
    paths = experiment.report(runs, out, options)
    assert {path.name for path in paths} == pages == {path.name for path in out.iterdir()}
    text = (out / f"{name}.md").read_text(encoding="utf-8")
    for outcome in found:
        metrics = outcome.record.metrics
        if metrics.test_accuracy is not None:
            assert f"{100 * metrics.test_accuracy:.2f}" in text
    if name == "table1":
        # The row went through both phases: four rates, a scale, and the chosen one.
        names = {outcome.planned.name.split("/")[2] for outcome in found}
        assert {"shared", "select", "constant-memory", "long"} <= names
        assert "choice still open" not in text
    if name == "figure-order-test":
        # It makes Table 1's candidates itself: with T's, but not with B's, T's choice is made.
        own = [line for line in text.split("## At the learning")[1].splitlines() if "| 4 |" in line]
        assert [line.count("choice still open") for line in own] == [1]
    # Nothing is needed but what was kept.
    assert not list(runs.rglob("*.safetensors"))
    assert all(RunRecord.load(path).status == "finished" for path in runs.rglob("run.json"))


@pytest.mark.parametrize(
    ("name", "pattern", "looks"),
    [
        ("table1", "*/shared/auto/seed0", 1),
        ("table1", "*/select/auto/lr1", 0),
        ("staged", "*/select/lr0.2", 0),
        ("figure-order-train", "*/lr0.1/con-resnet/*", 0),
        ("tradeoff", "*/order1-*", 2),  # on the trained grid and on the coarsest, as the page says
    ],
)
def test_how_often_test_images_are_read(tmp_path, monkeypatch, name, pattern, looks):
    test, found = load("digits").test, []

    def batches(config, images):
        found.append(torch.equal(images.images, test.images))
        return original(config, images)

    original = nanode.training.evaluation.evaluation_batches
    monkeypatch.setattr("nanode.training.evaluation.evaluation_batches", batches)
    options = Options(budget="tiny", seeds=1)
    changes = {"progress": False}
    (_,) = reproduce(EXPERIMENTS[name], tmp_path, options, only=[pattern], overrides=changes)
    assert len(found) > looks
    assert sum(found) == looks


def test_claims_of_the_order_figures(tmp_path, write):
    train, test = (EXPERIMENTS[f"figure-order-{kind}"] for kind in ("train", "test"))
    fits = {"t-nanode-1": 0.70, "t-nanode-30": 0.68, "con-resnet": 0.60}
    for run in train.plan(Options()):
        if (accuracy := fits.get(run.config.model)) is not None:
            write(run)
            found = {"train_accuracy": accuracy, "train_loss": 1.0}
            (tmp_path / run.name / "fit.json").write_text(json.dumps(found))
    for run in test.plan(Options()):
        if run.config.model in ("t-nanode-4", "t-nanode-10"):
            write(run, test=0.8 + run.config.seed + (run.config.model == "t-nanode-10") / 64)
    train.report(tmp_path, tmp_path / "out", Options())
    text = (tmp_path / "out/figure-order-train.md").read_text(encoding="utf-8")
    # In all three settings; the last one's ResNet is the first one's.
    assert text.count("better than order 1: against it (-2.00, one seed)") == 3
    assert text.count("better than the constrained ResNet: for it (+8.00, one seed)") == 3
    assert "**8 of 12 planned runs are over.**" in text
    test.report(tmp_path, tmp_path / "out", Options())
    text = (tmp_path / "out/figure-order-test.md").read_text(encoding="utf-8")
    assert "order 10 of T is more accurate than order 4: for it (+1.56, one seed)." in text


def test_orders_are_judged_by_the_spread_of_table_1(tmp_path, write):
    """The same two models, judged on two pages: T-10 ahead of B-10 by two points of one seed."""
    options = Options(seeds=2)
    for run in EXPERIMENTS["table1"].plan(options):
        name, seed = run.config.model, run.config.seed
        if "/cifar10/shared/" in run.name and name in ("t-nanode-10", "b-nanode-10", "auto"):
            # T and B vary by 0.02 points, Auto by ten.
            apart = 0.1 if name == "auto" else 0.0002
            write(run, test=0.80 + 0.02 * (name == "t-nanode-10") + apart * seed)
    for name in ("table1", "figure-order-test"):
        EXPERIMENTS[name].report(tmp_path, tmp_path / "out", replace(options, data=("cifar10",)))
    verdict = "undecided (+2.00, within the spread)"
    table1 = (tmp_path / "out/table1.md").read_text(encoding="utf-8")
    assert f"| T-NANODE-10 outperforms B-NANODE-10 | +5.72 | {verdict} |" in table1
    orders = (tmp_path / "out/figure-order-test.md").read_text(encoding="utf-8").splitlines()
    (row,) = (line for line in orders if line.startswith("| 10 | 82.01"))
    assert verdict in row


def test_steps_to_a_common_accuracy(tmp_path, write):
    """Within a point of 80 %, which order 10 without a penalty reaches with all three steps."""
    by_steps = {
        "order10-penalty0": {3: 0.80, 2: 0.80, 1: 0.70},
        "order10-penalty0.01": {3: 0.70, 2: 0.70, 1: 0.70},
        "order1-penalty0": {3: 0.85, 2: 0.80, 1: 0.79},
    }
    for run in EXPERIMENTS["tradeoff"].plan(Options()):
        if found := by_steps.get(run.name.split("/")[2]):
            write(run)
            grids = [
                {"steps": n, "validation_accuracy": a, "interpolated_accuracy": a}
                for n, a in found.items()
            ]
            steps = {"trained_steps": 3, "motion": 1.0, "fewest_steps": 3, "grids": grids}
            path = tmp_path / run.name / "steps.json"
            path.write_text(json.dumps(steps | {"fewest_test_accuracy": None}))
    (_, page) = EXPERIMENTS["tradeoff"].report(tmp_path, tmp_path / "out", Options())
    lines = [line for line in page.read_text(encoding="utf-8").splitlines() if "3 of 3" in line]
    assert [line.split("|")[-2].strip() for line in lines] == ["2", "none", "1"]


@pytest.mark.parametrize(
    "name", ["table1", "staged", "figure-order-train", "figure-order-test", "tradeoff"]
)
def test_reports_of_nothing(tmp_path, name):
    paths = EXPERIMENTS[name].report(tmp_path, tmp_path / "out", Options())
    assert all(path.stat().st_size > 0 for path in paths)


def test_staged_without_a_candidate_that_learns(tmp_path, write):
    staged, options = EXPERIMENTS["staged"], Options()
    for run in staged.plan(options, tmp_path):
        write(run, status="failed")
    (page,) = staged.report(tmp_path, tmp_path, options)
    text = page.read_text(encoding="utf-8")
    assert "still open" not in text
    assert "CIFAR-10: every candidate failed; CIFAR-100: every candidate failed" in text


def test_order_figures_name_what_diverged(tmp_path, write):
    train, test = (EXPERIMENTS[f"figure-order-{kind}"] for kind in ("train", "test"))
    for run in (*train.plan(Options()), *test.plan(Options())):
        diverged = run.config.model in ("t-nanode-30", "b-nanode-9")
        write(run, status="failed" if diverged else "finished")
    for experiment in (train, test):
        experiment.report(tmp_path, tmp_path / "out", Options())
    text = (tmp_path / "out/figure-order-train.md").read_text(encoding="utf-8")
    assert text.count("not measured; failed: t-nanode-30") == 3 * len(fitted_orders.FITTED)
    text = (tmp_path / "out/figure-order-test.md").read_text(encoding="utf-8")
    assert "T-4 is ahead of B-9: not measured; failed: b-nanode-9." in text


def test_tradeoff_says_what_differences_mean(tmp_path, write):
    for seed, accuracy in enumerate((0.82, 0.83, 0.84)):
        write(shared("t-nanode-10", "cifar10", Options(), seed), test=accuracy)
    (_, page) = EXPERIMENTS["tradeoff"].report(tmp_path, tmp_path / "out", Options())
    text = page.read_text(encoding="utf-8")
    # √(0.83 · 0.17 / 5,000) and √(0.83 · 0.17 / 10,000)
    assert "is 0.53 points at 83 per cent on the 5,000 held-out images, 0.38 points at 83" in text
    assert "3 seeds of order 10 without a penalty vary by 1.00 points there" in text


def test_the_trade_off_names_what_diverged(tmp_path, write):
    for run in EXPERIMENTS["tradeoff"].plan(Options()):
        write(run, status="failed" if run.config.penalty.weight == 1e-2 else "finished")
    (_, page) = EXPERIMENTS["tradeoff"].report(tmp_path, tmp_path / "out", Options())
    text = page.read_text(encoding="utf-8")
    assert "less motion | not measured; failed: penalty 0.01 |" in text
    assert text.count("| not measured; failed: the largest penalty |") == 3


@pytest.mark.parametrize(("fewest", "fewer"), [(2, "for it"), (3, "against it")])
def test_the_trade_off_is_judged(tmp_path, write, fewest, fewer):
    """Penalties slow the weights but for the last; it saves a step or none, and costs 2 points."""
    motions = {0.0: 5.0, 1e-5: 4.0, 1e-4: 3.0, 1e-3: 2.0, 1e-2: 2.5}
    for run in EXPERIMENTS["tradeoff"].plan(Options()):
        order, weight = run.config.model.rpartition("-")[2], run.config.penalty.weight
        write(run, test=0.82 if weight == 1e-2 else 0.84)
        accuracy = 0.7 if weight == 1e-2 else 0.8  # so that it never is within a point
        grid = {"steps": 3, "validation_accuracy": accuracy, "interpolated_accuracy": 0.8}
        steps = {
            "trained_steps": 3,
            "motion": motions[weight],
            "fewest_steps": fewest if weight == 1e-2 else 3,
            "fewest_test_accuracy": None,
            "grids": [grid],
        }
        if order != "1":
            (tmp_path / run.name / "steps.json").write_text(json.dumps(steps))
    for seed, accuracy in enumerate((0.82, 0.83, 0.84)):
        write(shared("t-nanode-10", "cifar10", Options(), seed), test=accuracy)
    (_, page) = EXPERIMENTS["tradeoff"].report(tmp_path, tmp_path / "out", Options())
    text = page.read_text(encoding="utf-8")
    assert "leaves less motion | against it (5, 4, 3, 2, 2.5, one seed) |" in text
    assert f"the largest penalty needs fewer steps | {fewer} (3, {fewest}, one seed) |" in text
    common = "the largest penalty needs fewer for an accuracy within a point of order 10's"
    assert f"{common} | against it (3, none, one seed) |" in text
    assert "order 1 needs fewer steps | not measured |" in text
    # Student's 4.303 · 1 point · √2 is more than two points.
    beaten = "beats the largest penalty | undecided (+2.00, within the spread, one seed) |"
    assert beaten in text


def test_memory(tmp_path, monkeypatch):
    some = (METHODS[0], ("t-nanode-10", "coupled-euler", "reversal"))
    assert some[1] in METHODS
    monkeypatch.setattr("nanode.experiments.memory.METHODS", some)
    experiment, options = EXPERIMENTS["memory"], Options(budget="tiny")
    (page,) = experiment.report(tmp_path, tmp_path / "out", options)
    rows = json.loads((tmp_path / FILE).read_text(encoding="utf-8"))["rows"]
    held = {
        (row["model"], row["solver"], row["evaluations"], row["gradient"]): row["held"]
        for row in rows
    }
    assert len(held) == 2 * len(EVALUATIONS)
    # A state of 4 × 16 × 8 × 8 numbers: coupled Euler keeps two, one of them its output.
    assert held["t-nanode-10", "coupled-euler", 10, "reversal"] == 4 * 16 * 8 * 8 * 4
    assert held["t-nanode-10", "coupled-euler", 100, "reversal"] == 4 * 16 * 8 * 8 * 4
    ratio = 4 * 16 * 8 * 8 * 4 / held["uncon-resnet", "euler", 10, "backprop"]
    assert f"held ({ratio:.3f}); the same bytes at K = 100: held (+0 bytes)" in page.read_text(
        encoding="utf-8"
    )
    # Measured once: what is there is taken, if less than this version would measure.
    monkeypatch.setattr("nanode.experiments.memory.METHODS", METHODS)
    changed = json.loads((tmp_path / FILE).read_text(encoding="utf-8"))
    for row in changed["rows"]:
        row["held"] *= row["evaluations"]
    (tmp_path / FILE).write_text(json.dumps(changed))
    experiment.report(tmp_path, tmp_path / "out", options)
    assert "the same bytes at K = 100: **did not hold**" in page.read_text(encoding="utf-8")
