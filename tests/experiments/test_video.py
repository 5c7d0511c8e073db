"""Table 2 and its figure: plans, the tiny variant from start to report, and what the tables say."""

import json
import shutil
from dataclasses import replace

import pytest

from nanode.experiments import EXPERIMENTS, Options, reproduce
from nanode.experiments.plan import standing
from nanode.experiments.table2 import _missing, _speeds
from nanode.experiments.video import MODELS, planned, runs_in
from nanode.experiments.video_costs import MEMORY, memory_section, speed_section
from nanode.experiments.video_losses import comparisons
from nanode.models.video import create
from nanode.reports.paper import TABLE2
from nanode.training.records import Times
from nanode.training.video import Best, Elbo, Point, VideoMetrics, VideoRecord


@pytest.mark.parametrize("budget", ["short", "full", "tiny"])
def test_the_plan(budget, tmp_path):
    options = Options(budget=budget, seeds=2, data_root=str(tmp_path))
    runs = planned(options)
    names = [run.name for run in runs]
    assert len(set(names)) == len(names) == 2 * 3 + 3
    for run in runs:
        place = run.config.data + ("-full" if budget == "full" else "")
        assert run.name == f"table2/{place}/{run.config.model}/seed{run.config.seed}"
        # The same for all models but the model: budget, data, rate.
        assert replace(run.config, model="svg", seed=0) == replace(
            next(r for r in runs if r.config.data == run.config.data).config, model="svg"
        )
        assert run.config.schedule.name == "constant"
    assert {run.config.model for run in runs} == set(MODELS)
    figure = EXPERIMENTS["figure-video"].plan(options)
    *table, film = figure
    assert table == runs[:6]
    assert film.name == f"figure-video/{runs[0].config.data}/svg-nanode/seed0"
    assert film.config.options["skip"] == "every"
    if budget != "tiny":
        assert {run.config.minutes for run in runs} == {2.4 if budget == "short" else 60.0}
        assert {run.config.steps for run in runs} == {None}
        assert [run.measure for run in runs[6:]] == ["prediction"] * 3
        deterministic = runs[-1].config
        assert (deterministic.n_past, deterministic.n_future, deterministic.n_eval) == (10, 10, 20)
        (tmp_path / "softmotion30_44k").mkdir()
        assert [run.config.data for run in planned(options)[9:]] == ["bair"] * 3


def test_every_planned_model_can_be_made():
    for run in planned(Options(seeds=1)):
        create(run.config.model, **run.config.options | {"width": 2, "g_dim": 8, "rnn_size": 8})


def test_from_start_to_report(tmp_path, monkeypatch):
    monkeypatch.setattr("nanode.experiments.video_costs.MODELS", ("svg", "svg-nanode"))
    options, runs, out = Options(budget="tiny", seeds=1), tmp_path / "runs", tmp_path / "out"
    table = EXPERIMENTS["table2"]
    changes = {"progress": False, "options.width": 2, "batch_size": 2, "test_clips": 2}
    found = list(reproduce(table, runs, options, prune=True, overrides=changes))
    assert [outcome.record.status for outcome in found] == ["finished"] * 6
    assert not list(runs.rglob("*.safetensors"))
    (page,) = table.report(runs, out, options)
    text = page.read_text(encoding="utf-8")
    by_model = runs_in(runs, "moving-digits")
    svg, nanode = (by_model[model][0].record for model in ("svg", "svg-nanode"))
    ratio = min(p.loss for p in nanode.curves) / min(p.loss for p in svg.curves)
    assert f"| {ratio:.3f} | 0.386 |" in text  # after the same number of steps, all four
    assert "after the same number of steps: 4" in text
    assert "BAIR was not run: the tiny variant leaves it out." in text
    assert "official test file is left out by the tiny variant" in text
    assert "of 2 clips made by the same rules" in text
    mse = runs_in(runs, "moving-digits-deterministic")["svg-auto"][0].clips["openstl_mse"]
    assert f"| {mse:.2f} |" in text
    figure = EXPERIMENTS["figure-video"]
    *others, film = list(reproduce(figure, runs, options, prune=True, overrides=changes))
    assert film.new
    assert not any(outcome.new for outcome in others)
    assert {path.name for path in figure.report(runs, out, options)} == {
        "figure-video.png",
        "figure-video.md",
        *(f"figure-video-{name}.gif" for name in (*MODELS, "longer")),
    }
    words = (out / "figure-video.md").read_text(encoding="utf-8")
    assert "4 steps of 2 clips" in words
    assert "Table 2's: skips are others" in words  # the schedule is the same there
    assert text.count("| black frames |") == 2
    assert f"Test −ELBO {film.record.metrics.test.loss_sum:.4f}" in words
    # Nothing is repeated.
    again = list(reproduce(table, runs, options, overrides=changes))
    assert not any(outcome.new for outcome in again)


@pytest.fixture
def write(tmp_path):
    """Write the record of a video run that is over, with a curve of losses by step and second."""

    def write(run, losses, pace, end=None):
        steps = [10 * (n + 1) for n in range(len(losses))]
        steps[-1] = end or steps[-1]
        points = tuple(
            Point(step=step, seconds=pace * step, loss=loss, mse=loss, kld=0.0)
            for step, loss in zip(steps, losses, strict=True)
        )
        elbo = Elbo.of(losses[-1], 0.0, run.config.beta, 14, 4096)
        best = Best(step=10, seconds=1.0, elbo=elbo)
        record = VideoRecord(
            config=run.config,
            seed=run.config.seed,
            started="2026-01-01T00:00:00+00:00",
            status="finished",
            curves=points,
            tests=points,
            metrics=VideoMetrics(steps=40, best_train=best, best_test=best, test=elbo),
        )
        folder = tmp_path / run.name
        folder.mkdir(parents=True)
        record.save(folder / "run.json")

    return write


def test_ratios_after_the_same_time_and_the_same_steps(tmp_path, write):
    runs = {run.config.model: run for run in planned(Options(seeds=1))[:3]}
    write(runs["svg"], [4.0, 2.0, 1.0, 0.5], pace=1.0)
    write(runs["svg-auto"], [4.0, 3.0], pace=2.0)
    write(runs["svg-nanode"], [2.0, 1.0], pace=2.01)  # its last step ended a little late
    time, steps = comparisons("Moving MNIST", runs_in(tmp_path, "moving-mnist"), column=0)
    # 40 seconds: 40 steps of SVG, 20 of the others.
    assert "same time: 0.667 min" in time
    assert _ratios(time) == {"svg": "1.000", "svg-auto": "6.000", "svg-nanode": "2.000"}
    assert "NANODE reaches a lower −ELBO than SVG: against it (-1.00, one seed)" in time
    assert "same number of steps: 20" in steps
    assert _ratios(steps) == {"svg": "1.000", "svg-auto": "1.500", "svg-nanode": "0.500"}
    assert "NANODE reaches a lower −ELBO than SVG: for it (+0.50" in steps
    assert "Auto stays behind SVG on Moving MNIST: for it (+0.50" in steps
    time, _ = comparisons("BAIR", runs_in(tmp_path, "moving-mnist"), column=1)
    assert "Auto reaches a lower −ELBO than SVG on BAIR: against it (-5.00" in time
    assert "Moving MNIST" not in time


def test_two_seeds_are_judged_by_what_all_models_vary_by(tmp_path, write):
    """In units of SVG's mean 2.0: deviations of 0.1·√2 / 2 in three rows of two seeds."""
    losses = {"svg": 2.0, "svg-auto": 2.3, "svg-nanode": 2.8}
    for run in planned(Options(seeds=2))[:6]:
        write(run, [losses[run.config.model] + (0.1, -0.1)[run.config.seed]], pace=1.0)
    _, steps = comparisons("Moving MNIST", runs_in(tmp_path, "moving-mnist"), column=0)
    # Student's 3.182 for three degrees of freedom: leads up to 3.182 · 0.0707 decide nothing.
    assert "NANODE reaches a lower −ELBO than SVG: **did not hold** (-0.40)" in steps
    assert "NANODE reaches a lower −ELBO than Auto: **did not hold** (-0.25)" in steps
    assert "Auto stays behind SVG on Moving MNIST: undecided (+0.15, within the spread)" in steps


def test_losses_are_compared_at_steps_that_all_runs_have(tmp_path, write):
    runs = {run.config.model: run for run in planned(Options(seeds=1))[:3]}
    for model in ("svg", "svg-auto"):
        write(runs[model], [4.0, 2.0, 1.0, 0.5], pace=1.0)
    write(runs["svg-nanode"], [2.0, 1.0, 0.1], pace=2.0, end=25)
    _, steps = comparisons("Moving MNIST", runs_in(tmp_path, "moving-mnist"), column=0)
    # NANODE was tested at step 25, where its time was over; the others at 20 and 30.
    assert "same number of steps: 20" in steps
    assert _ratios(steps) == {"svg": "1.000", "svg-auto": "1.000", "svg-nanode": "0.500"}


def test_copies_beside_the_seeds_do_not_count(tmp_path, write):
    run = planned(Options(seeds=1))[0]
    write(run, [4.0, 2.0], pace=1.0)
    folder = tmp_path / run.name
    shutil.copytree(folder, folder.with_name("seed0-old"))
    (only,) = runs_in(tmp_path, "moving-mnist")[run.config.model]
    assert only.folder == folder
    shutil.copytree(folder, folder.with_name("seed5"))
    with pytest.raises(ValueError, match=r"seed5 holds a run of seed 0; move it elsewhere"):
        runs_in(tmp_path, "moving-mnist")


def test_a_model_that_failed_does_not_take_the_others_along(tmp_path, write):
    runs = {run.config.model: run for run in planned(Options(seeds=1))[:3]}
    write(runs["svg"], [4.0, 2.0, 3.0], pace=1.0)
    write(runs["svg-nanode"], [2.0, 1.5, 2.5], pace=1.0)
    time, _ = comparisons("Moving MNIST", runs_in(tmp_path, "moving-mnist"), column=0)
    assert _ratios(time) == {"svg": "1.000", "svg-nanode": "0.750"}
    assert "lower −ELBO than Auto: not measured" in time
    # Steps that were made, though the lowest loss was found before.
    assert "| svg | 1 | 30 |" in time
    for n, model in enumerate(("svg", "svg-nanode")):
        words = standing(planned(Options(seeds=1)), tmp_path, Options())
        assert words.startswith(f"**{n} of 6 planned runs are over.** Still to come: table2/moving")
        (tmp_path / runs[model].name / "some-clips.json").write_text("{}")  # now it is measured


def test_speeds_beside_svg_are_judged():
    rows = [
        {"model": "svg", "width": 16, "gradient": None, "steps_per_second": 10.0},
        {"model": "svg-nanode", "width": 16, "gradient": "backprop", "steps_per_second": 4.4},
        {"model": "svg-nanode", "width": 16, "gradient": "checkpointed", "steps_per_second": 3.6},
    ]
    rows = [row | {"batch_size": 100} for row in rows]
    text = speed_section({"hardware": {"name": "mine", "device": "cpu"}, "rows": rows})
    assert "| 0.440 | 0.45 |" in text  # the marks are a GPU's
    text = speed_section({"hardware": {"name": "mine", "device": "cuda"}, "rows": rows})
    assert "| svg-nanode | 16 | backprop | 4.40 | 0.440 | 0.45: **did not hold** |" in text
    assert "| svg-nanode | 16 | checkpointed | 3.60 | 0.360 | 0.35: held |" in text


def test_speeds_of_runs_are_judged_by_the_same_rule(tmp_path, write):
    for run in planned(Options(seeds=1))[:3]:
        write(run, [4.0, 2.0], pace=1.0)
    runs = runs_in(tmp_path, "moving-mnist")

    def timed(run, device):
        seconds = 1.0 if run.record.config.model == "svg" else 2.0
        times = Times(counted=10, steps=10 * seconds)
        return replace(run, record=replace(run.record, times=times, hardware={"device": device}))

    for device, shown in (("cpu", "0.45"), ("cuda", "0.45: held")):
        text = _speeds({m: [timed(run, device) for run in found] for m, found in runs.items()})
        assert "| svg | – | 1.00 | 1.000 | – |" in text
        assert "| svg-auto | backprop | 0.50 | 0.500 | – |" in text
        assert f"| svg-nanode | backprop | 0.50 | 0.500 | {shown} |" in text


def test_what_is_missing_is_said(tmp_path, write):
    options = Options(seeds=1, data_root=str(tmp_path / "data"))
    text = _missing(tmp_path, options)
    assert "BAIR was not run: the data set was not there." in text
    assert "official" not in text  # nothing was measured
    run = planned(options)[3]
    write(run, [4.0, 2.0], pace=1.0)
    clips = {"data": "moving-mnist-deterministic", "sequences": 10_000}
    path = tmp_path / run.name / "prediction.json"
    path.write_text(json.dumps(clips))
    assert (
        "official test file was not there: the deterministic numbers are of 10,000 clips made by "
        "the same rules."
    ) in _missing(tmp_path, options)
    path.write_text(json.dumps(clips | {"data": "moving-mnist-test"}))
    assert "official" not in _missing(tmp_path, options)
    (tmp_path / "data" / "softmotion30_44k").mkdir(parents=True)
    assert "BAIR was not run: its runs aren't over." in _missing(tmp_path, options)


def _ratios(text):
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| svg")]
    return {row[0].removeprefix("| "): row[4] for row in rows}


def test_reports_of_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr("nanode.experiments.video_costs.MODELS", ("svg",))
    for name in ("table2", "figure-video"):
        paths = EXPERIMENTS[name].report(tmp_path, tmp_path / "out", Options(budget="tiny"))
        assert all(path.stat().st_size > 0 for path in paths)
    rows = json.loads((tmp_path / MEMORY).read_text(encoding="utf-8"))["rows"]
    assert [row["model"] for row in rows] == ["svg"]


def test_the_papers_ratios():
    svg, auto, nanode = (TABLE2[model] for model in MODELS)
    assert auto[0] / svg[0] == pytest.approx(1.50)
    assert nanode[0] / svg[0] == pytest.approx(0.386, abs=5e-4)
    assert auto[1] / svg[1] == pytest.approx(0.947, abs=5e-4)
    assert nanode[1] / svg[1] == pytest.approx(0.80)


def test_memory_is_given_for_a_hundred_clips():
    row = {"batch_size": 4, "kernel_bytes": 5_000_000, "parameter_bytes": 7_000_000}
    row["flow_table_bytes"] = 0
    rows = [
        {"model": "svg", "width": 16, "gradient": None, "saved_bytes": 200_000_000} | row,
        # 20 MB of it are weights, as many as for any number of clips.
        {"model": "svg-nanode", "width": 16, "gradient": "backprop", "saved_bytes": 319_200_000}
        | row
        | {"flow_table_bytes": 20_000_000},
    ]
    text = memory_section({"hardware": {"name": "mine"}, "rows": rows})
    assert "| svg | 16 | – | 5 | 1.000 | 4.9 | 1.000 | 0.005 | 0.0046 | 0.007 |" in text
    assert "| svg-nanode | 16 | backprop | 7.5 | 1.500 | 4.7 | 0.959 |" in text
    assert "scaled from 4" in text
