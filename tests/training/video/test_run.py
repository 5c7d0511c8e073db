"""Whole runs: on squares, and on the digits that come with the package."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from nanode.gradients import Compiled
from nanode.training import Diverged
from nanode.training.locks import locked
from nanode.training.video import (
    AdamConfig,
    VideoRecord,
    VideoScheduleConfig,
    evaluate_video,
    generate,
    is_video_run,
    load_video_config,
    load_video_model,
    train_video,
    video_recipe,
)
from nanode.training.video.costs import measure_video_costs
from nanode.training.video.setup import prepare
from tests.data.video.writer import clip, example, features_of, frame
from tests.training.video.conftest import squares


@pytest.mark.usefixtures("unmeasured")
def test_learns_squares(tmp_path, config):
    options = {"width": 4, "g_dim": 32, "z_dim": 4, "rnn_size": 64, "skip": "every"}
    optimizer = AdamConfig(lr=1e-2)
    config = replace(
        config, n_past=2, n_future=2, batch_size=8, steps=60, evaluate_every=60, point_every=20
    )
    record = train_video(replace(config, options=options, optimizer=optimizer), tmp_path)
    # The best constant image has the mean brightness, 16 of 256 pixels: it is off by 1/16 - 1/256
    # in each of 3 frames. 0.74 of that was found.
    constant = 3 * (1 / 16 - 1 / 256)
    assert record.metrics.test.mse < 0.9 * constant
    assert record.curves[-1].loss < 0.9 * constant
    assert record.curves[0].loss > 1.5 * constant


def test_what_a_run_leaves(tmp_path, config, lines):
    folder = tmp_path / "new" / "run"
    record = train_video(config, folder)
    assert sorted(path.name for path in folder.iterdir()) == [
        "checkpoints",
        "config.yaml",
        "final.safetensors",
        "log.jsonl",
        "run.json",
    ]
    assert load_video_config(folder / "config.yaml") == config
    assert VideoRecord.load(folder / "run.json") == record
    assert is_video_run(folder)
    assert not is_video_run(tmp_path)
    assert record.status == "finished"
    steps = [line for line in lines(folder) if "loss" in line]
    assert [line["step"] for line in steps] == list(range(1, 13))
    for line in steps:
        assert line["loss"] == pytest.approx(line["mse"] + config.beta * line["kld"], rel=1e-5)
    assert [point.step for point in record.curves] == [4, 8, 12]
    mean = sum(line["loss"] for line in steps[4:8]) / 4
    assert record.curves[1].loss == pytest.approx(mean, rel=1e-12)
    assert [point.step for point in record.tests] == [6, 12]
    seconds = [point.seconds for point in record.curves]
    assert 0 < seconds[0] < seconds[1] < seconds[2] <= record.times.total
    assert seconds[-1] == pytest.approx(record.times.first_steps + record.times.steps)
    assert record.times.counted == 11
    assert record.steps_per_second > 0
    best = min(record.curves, key=lambda point: point.loss)
    assert record.metrics.best_train.elbo.loss_sum == pytest.approx(best.loss, rel=1e-6)
    assert record.metrics.best_train.step == best.step
    assert record.metrics.best_test.elbo.mse == min(point.mse for point in record.tests)
    assert record.metrics.steps == 12
    assert len(record.flows) == 6
    assert record.flows[0].field.startswith("TimeVarying(Trigonometric(order=3")


@pytest.mark.usefixtures("unmeasured")
def test_a_run_without_recomputed_statistics_keeps_its_last_test(tmp_path, config):
    record = train_video(replace(config, calibration=0), tmp_path)
    assert record.metrics.test.loss_sum == record.tests[-1].loss
    assert record.metrics.test.loss_per_frame == pytest.approx(record.tests[-1].loss / 5)
    assert record.metrics.test.loss_per_pixel == pytest.approx(record.tests[-1].loss / 256)


def test_the_test_loss_is_the_loss_on_the_test_clips(config, clips):
    setup = prepare(config)
    torch.manual_seed(3)
    before = torch.get_rng_state()
    found = setup.score()
    assert torch.equal(torch.get_rng_state(), before)
    assert setup.model.training
    # Batches of 4 and 1 count by their clips: the same as one batch of 5.
    whole = prepare(replace(config, batch_size=5)).score()
    assert found.mse == pytest.approx(whole.mse, rel=1e-5)
    assert found.kld == pytest.approx(whole.kld, rel=1e-4)


def test_only_training_steps_are_compiled(tmp_path, config, monkeypatch):
    config = replace(config, options=config.options | {"compile": True})
    train_video(config, tmp_path)
    setup = prepare(config)

    def refuse(self, problem, x):
        raise AssertionError("a compiled solve")

    monkeypatch.setattr(Compiled, "solve", refuse)
    with pytest.raises(AssertionError, match="a compiled solve"):
        setup.step(setup.batch(0))
    measure_video_costs(setup)
    setup.score()
    setup.calibrate()
    model, found = load_video_model(tmp_path)
    assert found == config
    model(setup.batch(0), config.n_past)


@pytest.mark.usefixtures("unmeasured")
def test_a_budget_of_minutes(tmp_path, config):
    config = replace(config, steps=None, minutes=2.0 / 60, evaluate_every=10_000)
    record = train_video(config, tmp_path)
    assert record.status == "finished"
    (last,) = record.tests
    assert last.step == record.metrics.steps > 2
    # It ends with the step that passes the limit; a mean over fewer steps than others is no point.
    assert 2.0 <= last.seconds < 4.0
    steps = [point.step for point in record.curves]
    assert steps == list(range(config.point_every, last.step + 1, config.point_every))


@pytest.mark.usefixtures("unmeasured")
def test_whichever_end_comes_first(tmp_path, config):
    record = train_video(replace(config, steps=3, minutes=60.0), tmp_path)
    assert record.metrics.steps == 3


@pytest.mark.usefixtures("unmeasured")
@pytest.mark.parametrize(
    "changes",
    [
        {"model": "svg"},
        {"model": "svg-auto", "channels_last": True},
        {"precision": "bf16-mixed"},
        {"clip": 0.1},
        {"schedule": VideoScheduleConfig(name="cosine", warmup=0.25)},
        {
            "options": {
                "width": 2,
                "g_dim": 8,
                "gradient": "checkpointed",
                "encode": "frame",
                "skip": "every",
            }
        },
    ],
    ids=str,
)
def test_options_train(tmp_path, config, changes):
    record = train_video(replace(config, steps=4, **changes), tmp_path)
    assert record.status == "finished"
    # A grey image is off by a quarter in each of five frames.
    assert record.curves[0].loss < 1.35


@pytest.mark.usefixtures("unmeasured")
def test_a_schedule_sets_the_rate(tmp_path, config, monkeypatch):
    rates = []
    monkeypatch.setattr(
        "nanode.training.video.loop.set_rate", lambda optimizer, lr: rates.append(lr)
    )
    schedule = VideoScheduleConfig(name="cosine", warmup=0.0, end=0.0)
    train_video(replace(config, steps=4, schedule=schedule), tmp_path)
    expected = [5e-3 * (1 + np.cos(np.pi * k / 4)) / 2 for k in range(4)]
    assert rates == pytest.approx(expected)


@pytest.mark.usefixtures("unmeasured")
def test_the_seed_decides(tmp_path, config, lines):
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        train_video(replace(config, steps=4, seed=seed), tmp_path / name)
    a, b, c = ([line.get("loss") for line in lines(tmp_path / name)] for name in "abc")
    assert a == b
    assert a != c


@pytest.mark.usefixtures("unmeasured")
def test_the_caller_keeps_its_random_state(tmp_path, config):
    torch.manual_seed(5)
    before = torch.get_rng_state()
    train_video(replace(config, steps=2), tmp_path)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.usefixtures("unmeasured")
def test_the_final_weights_come_back(tmp_path, config):
    train_video(config, tmp_path)
    model, stored = load_video_model(tmp_path)
    assert stored == config
    assert not model.training
    saved = load_file(tmp_path / "final.safetensors")
    assert all(torch.equal(value, saved[name]) for name, value in model.state_dict().items())


# ---- what goes wrong


def test_a_rate_that_diverges(tmp_path, config):
    config = replace(config, optimizer=AdamConfig(lr=1e30))
    with pytest.raises(Diverged, match=r'became \S+ at step \d+.*"lr": 1e\+30'):
        train_video(config, tmp_path)
    record = VideoRecord.load(tmp_path / "run.json")
    assert record.status == "failed"
    with pytest.raises(Diverged, match="failed before and would again"):
        train_video(config, tmp_path)
    with pytest.raises(ValueError, match="is failed, expected a finished one"):
        load_video_model(tmp_path)


def test_a_final_loss_that_is_not_finite_is_a_run_that_diverged(tmp_path, config, monkeypatch):
    """Norm statistics that are found anew at the end may make it so."""

    def spoilt(self):
        for parameter in self.model.parameters():
            parameter.data.fill_(float("nan"))

    monkeypatch.setattr("nanode.training.video.setup.VideoSetup.calibrate", spoilt)
    with pytest.raises(Diverged, match="test loss became nan"):
        train_video(config, tmp_path)
    assert VideoRecord.load(tmp_path / "run.json").status == "failed"


def test_a_run_that_was_interrupted_is_not_loaded(tmp_path, config):
    train_video(config, tmp_path, stop=lambda: True)
    with pytest.raises(ValueError, match="was interrupted or is still running"):
        load_video_model(tmp_path)


def test_a_folder_that_another_process_trains_in_is_refused(tmp_path, config):
    with ThreadPoolExecutor() as pool, locked(tmp_path):  # a thread stands for it
        tried = pool.submit(train_video, config, tmp_path).exception()
    assert "is being trained by another process" in str(tried)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch_size": 41}, "40 clips, fewer than a batch of 41"),
        ({"n_future": 10, "n_eval": 13}, "12 frames a clip, too few for n_past \\+ n_future = 13"),
        ({"n_eval": 13}, "12 frames a clip, too few for n_eval = 13"),
        ({"model": "svg-nano"}, "Did you mean 'svg-nanode'"),
        ({"options": {"widht": 3}}, "options has no 'widht', only width, .*Did you mean 'width'"),
        ({"options": {"gradient": "reversal"}}, "--options.solver coupled-euler"),
        ({"options": {"rnn_size": 0}}, "rnn_size must be a whole number of at least 1, got 0"),
        ({"tensorboard": True}, r"pip install nanode\[tensorboard\]"),
    ],
)
def test_errors_come_before_anything_is_written(tmp_path, config, changes, message, monkeypatch):
    monkeypatch.setattr("nanode.training.journal.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=message):
        train_video(replace(config, **changes), tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_odd_frames(tmp_path, config, clips):
    clips(squares(8, size=18), squares(8, size=18))
    with pytest.raises(ValueError, match=r"multiple of 16.*got 18"):
        train_video(config, tmp_path / "run")


# ---- the whole way, on real digits


def test_from_digits_to_a_film(tmp_path):
    config = replace(video_recipe("moving-mnist-tiny"), progress=False)
    record = train_video(config, tmp_path / "run")
    assert record.curves[-1].loss < 0.8 * record.curves[0].loss
    score = evaluate_video(tmp_path / "run", sequences=2, samples=2)
    assert len(score.psnr) == len(score.ssim) == config.n_eval - config.n_past
    path = generate(tmp_path / "run", tmp_path / "film.gif", sequences=2, samples=2, shown=1)
    assert path.stat().st_size > 1000


@pytest.fixture
def bair(tmp_path):
    """A run on two training files of one sequence and a test file, in BAIR's layout."""
    for split, seeds in (("train", (0, 1)), ("test", (2,))):
        folder = tmp_path / "softmotion30_44k" / split
        folder.mkdir(parents=True)
        for n, seed in enumerate(seeds):
            record = frame(example(features_of(*clip(seed))))
            (folder / f"traj_{n}_to_{n}.tfrecords").write_bytes(record)
    changes = {"data_root": str(tmp_path), "progress": False, "steps": 3, "evaluate_every": 3}
    return replace(video_recipe("bair-tiny"), **changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_future": 29}, "30 frames a clip, too few for n_past"),
        ({"n_eval": 31}, "30 frames a clip, too few for n_eval"),
        ({"batch_size": 3}, "2 clips, fewer than a batch of 3"),
        ({"options": {"width": 0}}, "width must be"),
    ],
)
def test_nothing_is_copied_for_a_run_that_is_refused(tmp_path, bair, changes, message):
    with pytest.raises(ValueError, match=message):
        prepare(replace(bair, **changes))
    assert not list(tmp_path.rglob("*.npy"))


def test_all_clips_are_copied_before_training(tmp_path, bair):
    prepare(bair)
    assert len(list(tmp_path.rglob("*.npy"))) == 2


@pytest.mark.usefixtures("unmeasured")
def test_from_official_records_to_a_film(tmp_path, bair):
    found = train_video(bair, tmp_path / "run")
    assert found.metrics.steps == 3
    score = evaluate_video(tmp_path / "run", sequences=1, samples=2)
    assert (score.data, score.sequences, score.n_past) == ("bair", 1, 2)
    film = generate(tmp_path / "run", tmp_path / "film.gif", sequences=1, samples=1, shown=0)
    assert film.stat().st_size > 1000
