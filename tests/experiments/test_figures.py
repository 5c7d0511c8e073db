"""What figures show is what the records say: panels compared with numbers read by other code."""

import json
from importlib import import_module
from pathlib import Path
from statistics import fmean, stdev

import pytest

from nanode.experiments import EXPERIMENTS, Options
from nanode.experiments.tradeoff import ORDER, ORDERS, PENALTIES

RUNS = Path(__file__).parents[2] / "results/runs"


@pytest.fixture
def panels(monkeypatch, tmp_path):
    """The panels of an experiment's figure."""

    def drawn(name, options, root=tmp_path):
        found = []
        module = import_module(type(EXPERIMENTS[name]).__module__)
        monkeypatch.setattr(module, "draw", lambda path, panels: found.extend(panels) or path)
        EXPERIMENTS[name].report(root, tmp_path / "out", options)
        return found

    return drawn


def shown(points):
    """A line's values, without the points that aren't known."""
    return {x: value.mean for x, value in points if value is not None}


def test_training_set_fit(panels, write, tmp_path):
    """Accuracies 0.01 · order and losses of the order, by rates and scales in different tens."""
    for run in EXPERIMENTS["figure-order-train"].plan(Options()):
        rate, scale = run.config.optimizer.lr, run.config.options.get("scale")
        more = {0.4: 0.0, 0.1: 40.0}[rate] + (20.0 if scale else 0.0)
        order = run.config.model.rpartition("-")[2]
        value = more + (int(order) if order.isdigit() else 36)
        write(run)
        fit = {"train_accuracy": value / 100, "train_loss": value}
        (tmp_path / run.name / "fit.json").write_text(json.dumps(fit))
    accuracy, loss = panels("figure-order-train", Options())
    assert (accuracy.y, loss.y) == ("training accuracy, %", "training loss")
    for panel in (accuracy, loss):
        lines = {name: shown(points) for name, points in panel.series.items()}
        orders = (1, 2, 4, 8, 16, 30)
        assert lines == {
            "T-NANODE, learning rate 0.4": pytest.approx({n: n for n in orders}),
            "T-NANODE, learning rate 0.1": pytest.approx({n: 40 + n for n in (1, 30)}),
            "T-NANODE, learning rate 0.4, scale 100": pytest.approx({n: 20 + n for n in (1, 30)}),
        }
        assert panel.levels == pytest.approx(
            {"con-resnet, learning rate 0.4": 36, "con-resnet, learning rate 0.1": 76}
        )


def test_tradeoff(panels, write, tmp_path):
    """Every run has numbers of its own, those of the fewest steps and of every grid too."""
    runs = EXPERIMENTS["tradeoff"].plan(Options())
    number = {}
    for n, run in enumerate(runs):
        weight = run.config.penalty.weight
        number[int(run.config.model.rpartition("-")[2]), weight] = n
        write(run, test=(60 + n) / 100)
        grids = [
            {"steps": k, "validation_accuracy": (30 + n + k) / 100, "interpolated_accuracy": 0.1}
            for k in (3, 2, 1)
        ]
        steps = {"trained_steps": 3, "motion": 1.0, "fewest_steps": n, "grids": grids}
        steps["fewest_test_accuracy"] = (40 + n) / 100
        (tmp_path / run.name / "steps.json").write_text(json.dumps(steps))
    by_penalty = {weight: number[ORDER, weight] for weight in PENALTIES}
    by_order = {order: number[order, 0.0] for order in (*ORDERS, ORDER)}
    *pairs, grids = panels("tradeoff", Options())
    for (accuracy, steps), runs_of in zip(
        (pairs[:2], pairs[2:]), (by_penalty, by_order), strict=True
    ):
        assert shown(accuracy.series["all steps"]) == pytest.approx(
            {x: 60 + n for x, n in runs_of.items()}
        )
        assert shown(accuracy.series["fewest steps"]) == pytest.approx(
            {x: 40 + n for x, n in runs_of.items()}
        )
        assert shown(steps.series["fewest steps"]) == runs_of
    assert len(grids.series) == len(runs)
    for (order, weight), n in number.items():
        line = shown(grids.series[f"order {order}, penalty {weight:g}"])
        assert line == pytest.approx({k: 30 + n + k for k in (1, 2, 3)})


def test_accuracy_by_order(panels, write):
    for run in EXPERIMENTS["figure-order-test"].plan(Options(seeds=2, budget="full")):
        kind, _, order = run.config.model.partition("-nanode-")
        if "/shared/" in run.name and order.isdigit():
            more = 0.5 if kind == "t" else 0.6
            write(run, test=more + int(order) / 1000 + run.config.seed / 100)
        elif "/shared/" in run.name:
            write(run, test={"con": 0.4, "uncon": 0.7}[kind.partition("-")[0]])
    panel, _ = panels("figure-order-test", Options(seeds=2, budget="full"))
    assert panel.title == "K = 10, shared recipe"
    for name, more in (("T-NANODE", 50.5), ("B-NANODE", 60.5)):
        line = dict(panel.series[name])
        assert list(line) == [4, 5, 6, 7, 8, 9, 10]
        for order, value in line.items():
            assert value.mean == pytest.approx(more + order / 10)
            assert value.deviation == pytest.approx(0.5**0.5)
    assert panel.levels == pytest.approx({"con-resnet": 40, "uncon-resnet": 70})


def test_video(panels):
    """By the records of results/, read again: curves of every seed, and means over seeds."""
    by_time, by_steps, psnr, ssim = panels("figure-video", Options(seeds=2), RUNS)
    for model in ("svg", "svg-auto", "svg-nanode"):
        folders = [RUNS / "table2/moving-mnist" / model / f"seed{seed}" for seed in (0, 1)]
        records = [json.loads((folder / "run.json").read_text()) for folder in folders]
        clips = [json.loads((folder / "some-clips.json").read_text()) for folder in folders]
        for panel, place in (
            (by_time, lambda point: point["seconds"] / 60),
            (by_steps, lambda point: point["step"]),
        ):
            assert panel.curves[model] == [
                [(place(point), point["loss"]) for point in record["curves"]] for record in records
            ]
        for panel, metric in ((psnr, "psnr"), (ssim, "ssim")):
            line = panel.series[model]
            # Five frames are given: the first that is predicted is the sixth.
            assert [x for x, _ in line] == list(range(6, 6 + len(clips[0][metric])))
            for (_, value), values in zip(
                line, zip(*(c[metric] for c in clips), strict=True), strict=True
            ):
                assert value.mean == pytest.approx(fmean(values))
                assert value.deviation == pytest.approx(stdev(values))
