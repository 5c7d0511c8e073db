"""Configurations: what they refuse, and in what words."""

from dataclasses import replace

import numpy as np
import pytest

from nanode.training import (
    AugmentConfig,
    OptimizerConfig,
    PenaltyConfig,
    ScheduleConfig,
    TrainConfig,
)
from nanode.training.config import differences


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: OptimizerConfig(name="adamv"), "one of sgd, adamw; got 'adamv'.*mean 'adamw'"),
        (lambda: OptimizerConfig(lr=0.0), "optimizer.lr must be a finite number above 0, got 0"),
        (lambda: OptimizerConfig(lr=float("nan")), "optimizer.lr must be a finite number.*nan"),
        (lambda: OptimizerConfig(lr=10**400), "optimizer.lr must be a finite number above 0"),
        (lambda: OptimizerConfig(weight_decay=-1.0), "weight_decay.*at least 0, got -1"),
        (lambda: OptimizerConfig(momentum=1.0), "momentum.*at least 0 and below 1, got 1"),
        (lambda: OptimizerConfig(nesterov=1), "nesterov must be true or false, got 1"),
        (lambda: OptimizerConfig(momentum=0.0), "nesterov needs a momentum above 0"),
        (lambda: OptimizerConfig(name="adamw", momentum=0.5), "momentum does nothing with.*adamw"),
        (lambda: OptimizerConfig(betas=(0.5, 0.9)), "betas does nothing with.*'sgd'"),
        (lambda: OptimizerConfig(name="adamw", betas=(0.9, 1.0)), "betas.*below 1, got 1"),
        (lambda: AugmentConfig(cutmix=1.5), "augment.cutmix.*at most 1, got 1.5"),
        (lambda: ScheduleConfig(name="one-cicle"), "one-cycle, cosine.*mean 'one-cycle'"),
        (lambda: ScheduleConfig(warmup=1.0), "schedule.warmup.*below 1, got 1"),
        (lambda: ScheduleConfig(start=2.0), "schedule.start.*at most 1, got 2"),
        (lambda: AugmentConfig(crop=-1), "augment.crop must be a whole number of at least 0"),
        (lambda: AugmentConfig(border="reflekt"), "zero, reflect.*mean 'reflect'"),
        (lambda: PenaltyConfig(name="smoth"), "smoothness; got 'smoth'.*mean 'smoothness'"),
        (lambda: PenaltyConfig(weight=-1.0), "penalty.weight.*at least 0"),
    ],
)
def test_refuses(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epochs": 0}, "epochs must be a whole number of at least 1, got 0"),
        ({"batch_size": 1.5}, "batch_size must be a whole number.*got 1.5"),
        ({"epochs": np.int64(3)}, r"epochs must be a plain int, got np.int64\(3\)"),
        ({"seed": -1}, "seed must be a whole number of at least 0"),
        ({"seed": 2**63}, r"seed must be below 2\^63"),
        ({"precision": "bf16"}, "32-true, bf16-mixed; got 'bf16'"),
        ({"label_smoothing": 1.0}, "label_smoothing.*below 1"),
        ({"clip": 0.0}, "clip must be a finite number above 0, got 0"),
        ({"average": 1.0}, "average.*below 1, got 1"),
        ({"calibration": -1}, "calibration.*at least 0"),
        ({"device": "gpu"}, "device must be one of auto, cpu, cuda; got 'gpu'"),
        ({"select": "first"}, "select must be one of last, best"),
        ({"compile": "yes"}, "compile must be true or false, got 'yes'"),
        ({"model": ""}, "model must be a name, got ''"),
        ({"options": {"solver": object()}}, "options must map keywords to plain values"),
        ({"validation": 0, "select": "best"}, "select: best needs held-out images"),
        ({"validation": 0, "test": False}, "measures nothing"),
        ({"checkpoint_every": 0}, "checkpoint_every must be a whole number of at least 1"),
    ],
)
def test_a_run_refuses(config, changes, message):
    with pytest.raises(ValueError, match=message):
        replace(config, **changes)


def test_differences_name_keys_and_values(config):
    other = replace(config, epochs=5, optimizer=OptimizerConfig(lr=0.3))
    found = differences(config.as_dict(), other.as_dict())
    assert found == {"epochs": "2 there, 5 here", "optimizer.lr": "0.1 there, 0.3 here"}


def test_where_a_run_runs_makes_no_difference(config):
    other = replace(config, device="auto", log_every=3, data_root="elsewhere", progress=True)
    other = replace(other, compile=True)
    assert not differences(config.as_dict(), other.as_dict())


@pytest.mark.parametrize(
    ("there", "here", "equal"),
    [
        ({}, {"gradient": "backprop"}, True),
        ({"gradient": "checkpointed"}, {}, True),
        ({"gradient": "checkpointed"}, {"gradient": "backsolve"}, False),
        ({"gradient": "reversal"}, {}, False),
        ({"compile": True}, {}, True),
        ({"scale": 2.0}, {}, False),
    ],
)
def test_exact_gradients_make_no_difference(config, there, here, equal):
    one, other = (replace(config, options=config.options | o).as_dict() for o in (there, here))
    assert (not differences(one, other)) == equal


def test_plain_values_stay_equal():
    config = TrainConfig(data="digits", model="auto", options={"sizes": (1, 2)})
    assert not differences(config.as_dict(), config.as_dict())
    assert config.as_dict()["options"] == {"sizes": [1, 2]}
