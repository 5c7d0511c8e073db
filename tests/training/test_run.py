"""Whole runs on real digits."""

import os
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch

from nanode import Backprop, Checkpointed, smoothness_penalty
from nanode.training import (
    AugmentConfig,
    Diverged,
    OptimizerConfig,
    PenaltyConfig,
    RunRecord,
    ScheduleConfig,
    evaluate,
    load_config,
    load_model,
    recipe,
    train,
)
from nanode.training.locks import locked
from nanode.training.loop import Loop
from nanode.training.setup import make_fabric, prepare


def test_learns_digits(tmp_path):
    record = train(replace(recipe("staged-tiny"), progress=False), tmp_path)
    # 0.81 was found; label smoothing alone keeps a perfect model at 0.50. Other processors round
    # otherwise, and small differences grow over 80 steps.
    assert record.curves[-1].train_loss < 0.95
    assert record.metrics.test_accuracy > 0.88  # 0.936 was found
    assert [point.step for point in record.curves] == list(range(10, 90, 10))


def test_what_a_run_leaves(tmp_path, config, losses):
    folder = tmp_path / "new" / "run"
    record = train(config, folder)
    assert sorted(path.name for path in folder.iterdir()) == [
        "best.safetensors",
        "checkpoints",
        "config.yaml",
        "final.safetensors",
        "log.jsonl",
        "run.json",
    ]
    assert load_config(folder / "config.yaml") == config
    assert RunRecord.load(folder / "run.json") == record
    assert record.status == "finished"
    assert [step for step, _ in losses(folder)] == list(range(1, 21))
    assert record.times.counted == 19
    assert record.times.images_per_second > 0
    assert record.costs.flow_activation_bytes > 0
    assert [flow.name for flow in record.flows] == ["stages.0.0"]
    mean = sum(loss for _, loss in losses(folder)[10:]) / 10
    assert record.curves[1].train_loss == pytest.approx(mean, rel=1e-12)


# ---- what goes wrong


def test_a_rate_that_diverges(tmp_path, config):
    config = replace(config, optimizer=OptimizerConfig(lr=1e30))
    with pytest.raises(Diverged, match=r'training loss became nan at step \d+ of 20.*"lr": 1e\+30'):
        train(config, tmp_path)
    record = RunRecord.load(tmp_path / "run.json")
    assert record.status == "failed"
    assert "at step" in record.message
    assert not (tmp_path / "checkpoints").exists()
    with pytest.raises(Diverged, match="failed before and would again"):
        train(config, tmp_path)
    with pytest.raises(ValueError, match=r"optimizer\.lr .*; delete it, or name another"):
        train(replace(config, optimizer=OptimizerConfig(lr=0.1)), tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch_size": 5000}, "fewer than a batch of 5,000"),
        ({"data": "digit"}, "Did you mean 'digits'"),
        ({"model": "t-nanod-2"}, "Did you mean 't-nanode-D'"),
        ({"options": {"step": 3}}, "options has no 'step', only steps, .*Did you mean 'steps'"),
        ({"options": {"steps": 2, "classes": 3}}, "options has no 'classes'"),
        ({"options": {"gradient": "reversal"}}, "--options.solver coupled-euler"),
        ({"options": {"gradient": "backsolve"}}, r"options\.norm may be group"),
        ({"options": {"gradient": "reversal", "solver": ["a"]}}, r"solver must be one of.*\['a'\]"),
        ({"validation": 1437}, "got 1437"),
        ({"tensorboard": True}, r"pip install nanode\[tensorboard\]"),
        (
            {"model": "auto", "penalty": PenaltyConfig(weight=0.1)},
            r"penalty.weight for the model 'auto'",
        ),
        ({"model": "hyper", "penalty": PenaltyConfig(weight=0.1)}, "need an Expansion"),
    ],
)
def test_errors_come_before_anything_is_written(tmp_path, config, changes, message, monkeypatch):
    monkeypatch.setattr("nanode.training.journal.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=message):
        train(replace(config, **changes), tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_images_are_looked_at_uncompiled(config):
    """In this mode a compiled form would be compiled once more, for a few batches."""

    def refuse(images):
        raise AssertionError("the compiled form was called")

    setup = replace(prepare(config), forward=refuse)
    assert 0 < setup.score(setup.data.test).accuracy < 1


def test_without_fabric(tmp_path, config, monkeypatch):
    monkeypatch.setitem(sys.modules, "lightning_fabric", None)
    with pytest.raises(ImportError, match=r"pip install nanode\[train\]"):
        train(config, tmp_path / "run")


@pytest.mark.parametrize(
    "variables",
    [
        {"LT_DEVICES": "2", "LT_STRATEGY": "ddp", "LT_PRECISION": "16-true", "LT_NUM_NODES": "3"},
        {"SLURM_NTASKS": "4", "SLURM_JOB_NAME": "train"},
        {"LT_ACCELERATOR": "tpu"},
    ],
)
def test_a_run_takes_one_device_whatever_a_cluster_has(config, variables, monkeypatch):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    fabric = make_fabric(config)
    assert (fabric.world_size, fabric.global_rank) == (1, 0)
    assert fabric.device == torch.device("cpu")
    assert fabric.autocast().__enter__() is None
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))])
    fabric.setup_optimizers(optimizer)
    assert {name: os.environ[name] for name in variables} == variables


def test_one_of_several_processes_of_a_run_is_refused(tmp_path, config, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="WORLD_SIZE is 2, as under torchrun"):
        train(config, tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_half_precision_is_no_news(config, caplog):
    caplog.set_level("INFO")
    with make_fabric(replace(config, precision="bf16-mixed")).autocast():
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.bfloat16
    assert caplog.records == []


def test_a_missing_gpu(tmp_path, config, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(ValueError, match="device: cuda was asked for"):
        train(replace(config, device="cuda"), tmp_path / "run")


# ---- options of the loop


@pytest.mark.parametrize(
    "changes",
    [
        {"precision": "bf16-mixed"},
        {"clip": 0.1},
        {"average": None},
        {"channels_last": True},
        {"schedule": ScheduleConfig(name="cosine")},
        {"penalty": PenaltyConfig(weight=1e-2)},
        {"penalty": PenaltyConfig(name="coefficients", weight=1e-2)},
        {"profile": True},
    ],
    ids=str,
)
def test_options_train(tmp_path, config, changes):
    config = replace(config, **changes, epochs=1)
    record = train(config, tmp_path)
    assert record.status == "finished"
    assert record.curves[0].train_loss < 2.5  # log(10) is 2.303
    if config.profile:
        assert record.costs.flow_time_share > 0
        assert record.costs.flow_seconds > 0


def test_a_smoothness_penalty_keeps_weights_still(config, tmp_path):
    motion = []
    for weight in (0.0, 1.0):
        penalty = PenaltyConfig(weight=weight)
        train(replace(config, penalty=penalty), tmp_path / str(weight))
        model, _ = load_model(tmp_path / str(weight))
        motion.append(smoothness_penalty(model).item())
    assert motion[1] < motion[0] / 10


def test_clipping_bounds_the_step(config):
    setup = prepare(replace(config, clip=1e-3, average=None))
    weights = list(setup.model.parameters())
    before = [p.detach().clone() for p in weights]
    loop = Loop.__new__(Loop)
    loop.setup, loop.progress = setup, type("Place", (), {"step": 0})()
    setup.optimizer.param_groups[0]["weight_decay"] = 0.0
    _, lr = loop._step(*setup.batches.batch(0, 0))
    moved = [(p - b).square().sum() for p, b in zip(weights, before, strict=True)]
    # Nesterov's first step is 1 + momentum times the gradient.
    assert torch.stack(moved).sum().sqrt().item() <= 1.9 * lr * 1e-3 * (1 + 1e-3)


def test_the_place_in_a_run_decides_how_a_batch_is_mixed(config, perceptron):
    setup = prepare(replace(config, options={}, augment=AugmentConfig(cutmix=1.0), average=None))
    loop = Loop.__new__(Loop)
    loop.setup = setup
    images, labels = setup.batches.batch(0, 0)

    def share(position):
        setup.batches.position = position
        return loop._mixed(images, labels).share

    shares = [share(position) for position in range(20)]
    assert len(set(shares)) > 10  # another box each step ...
    assert share(7) == shares[7]  # ... and the same again


def test_the_share_of_mixed_batches(config, perceptron):
    setup = prepare(replace(config, options={}, augment=AugmentConfig(cutmix=0.3), average=None))
    loop, mixed = Loop.__new__(Loop), 0
    loop.setup = setup
    images, labels = (part[:2] for part in setup.batches.batch(0, 0))
    for position in range(1000):
        setup.batches.position = position
        mixed += loop._mixed(images, labels).images is not images
    assert abs(mixed / 1000 - 0.3) < 6 * 0.0145  # six standard deviations


def test_the_caller_keeps_its_random_state(tmp_path, config, perceptron):
    torch.manual_seed(5)
    before = torch.get_rng_state()
    train(replace(config, options={}), tmp_path)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_seed_decides(tmp_path, config, perceptron, losses):
    config = replace(config, options={}, epochs=1)
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        train(replace(config, seed=seed), tmp_path / name)
    a, b, c = (losses(tmp_path / name) for name in "abc")
    assert a == b
    assert a != c


def test_progress_goes_to_stderr(tmp_path, config, perceptron, capsys):
    train(replace(config, options={}, progress=True), tmp_path)
    out, err = capsys.readouterr()
    assert out == ""
    assert [line[:9] for line in err.splitlines() if line.startswith("epoch")] == [
        "epoch 1/2",
        "epoch 2/2",
    ]


def test_a_look_between_epochs_has_the_statistics_of_averaged_weights(
    tmp_path, config, monkeypatch
):
    """At a high rate the running ones, of weights that are far away by now, say nothing."""
    config = replace(config, average=0.9, calibration=4, optimizer=OptimizerConfig(lr=3.0))
    record = train(config, tmp_path / "looked at")
    # The last look and the final metrics are at the same weights.
    last = record.curves[-1]
    assert abs(last.validation_accuracy - record.metrics.validation_accuracy) < 0.02
    monkeypatch.setattr("nanode.training.setup.Setup.calibrate", lambda self, at_most=None: None)
    unlooked = train(config, tmp_path / "not looked at")
    assert [e.train_loss for e in unlooked.curves] == [e.train_loss for e in record.curves]


def test_a_run_that_goes_on_elsewhere_says_so(tmp_path, config, monkeypatch):
    steps = iter(range(100))
    for name in ("a", "b", "a", "b"):
        monkeypatch.setattr("nanode.training.environment.commit", lambda name=name: (name, False))
        monkeypatch.setattr(
            "nanode.training.environment.hardware", lambda device, name=name: {"name": name}
        )
        monkeypatch.setattr(
            "nanode.training.environment.versions", lambda name=name: {"torch": f"torch of {name}"}
        )
        record = train(config, tmp_path, stop=lambda: next(steps) in (5, 7, 9))
    assert record.status == "finished"
    assert (record.commit, record.modified) == ("a, then b", False)
    assert record.hardware["name"] == "a, then b"
    assert record.versions["torch"] == "torch of a, then torch of b"


def test_a_run_that_begins_anew_elsewhere_has_nothing_of_the_first_start(
    tmp_path, config, perceptron, monkeypatch
):
    config = replace(config, options={})
    for name, stop in (("a", True), ("b", False)):
        monkeypatch.setattr("nanode.training.environment.commit", lambda name=name: (name, False))
        record = train(config, tmp_path, stop=lambda stop=stop: stop)
        # As if it had been killed before its first checkpoint.
        shutil.rmtree(tmp_path / "checkpoints", ignore_errors=True)
    assert (record.status, record.commit) == ("finished", "b")


def test_a_run_that_goes_on_by_another_method_says_so(tmp_path, config):
    """The method may change where gradients don't; what it takes does."""
    steps = iter(range(100))
    for method in ("backprop", "checkpointed", "checkpointed"):
        changed = replace(config, options=config.options | {"gradient": method})
        record = train(changed, tmp_path, stop=lambda: next(steps) in (5, 7))
    assert record.status == "finished"
    (flow,) = record.flows
    assert flow.gradient == f"{Backprop()!r}, then {Checkpointed()!r}"


@pytest.mark.parametrize(
    ("first", "second", "told"),
    [
        (("a", True), ("a", False), ("a", True)),
        (("a", False), ("b", True), ("a, then b", True)),
        (("a", False), ("b", None), ("a, then b", None)),
        (("a", None), ("a", False), ("a", None)),
        ((None, None), ("b", False), ("unknown, then b", None)),
        (("a", True), (None, None), ("a, then unknown", True)),
        ((None, None), (None, None), (None, None)),
    ],
)
def test_commits_of_a_run_that_goes_on(
    tmp_path, config, perceptron, monkeypatch, first, second, told
):
    steps, config = iter(range(100)), replace(config, options={})
    for found in (first, second):
        monkeypatch.setattr("nanode.training.environment.commit", lambda found=found: found)
        record = train(config, tmp_path, stop=lambda: next(steps) == 5)
    assert (record.commit, record.modified) == told


def test_a_folder_that_another_process_trains_in_is_left_alone(tmp_path, config, perceptron):
    config, folder = replace(config, options={}), tmp_path / "run"
    steps, tried = iter(range(100)), []

    def stop():
        """In the middle of the run; a thread stands for the other process."""
        if next(steps) == 12:
            before = sorted(folder.rglob("*"))
            with ThreadPoolExecutor() as pool:
                tried.append(pool.submit(train, config, folder).exception())
            assert sorted(folder.rglob("*")) == before
        return False

    assert train(config, folder, stop=stop).times.starts == 1
    assert "is being trained by another process" in str(tried[0])
    assert not (folder / ".lock").exists()
    with locked(folder), ThreadPoolExecutor() as pool:  # measured by another process, say
        assert pool.submit(train, config, folder).result().status == "finished"


def test_a_run_that_was_interrupted_is_not_evaluated(tmp_path, config):
    train(config, tmp_path, stop=lambda: True)
    message = "was interrupted or is still running, expected a finished one; give its train command"
    with pytest.raises(ValueError, match=message):
        evaluate(tmp_path)


def test_final_weights_that_are_not_finite_are_a_run_that_diverged(tmp_path, config, monkeypatch):
    """Without held-out images nothing has looked at them before."""
    end = Loop._end_epoch

    def spoilt(self):
        for mean in self.setup.average._mean.values():
            mean.fill_(float("nan"))
        end(self)

    monkeypatch.setattr(Loop, "_end_epoch", spoilt)
    with pytest.raises(Diverged, match="test loss"):
        train(replace(config, validation=0), tmp_path)
    assert RunRecord.load(tmp_path / "run.json").status == "failed"
