"""What tests of norms share: batches, and how a norm is evaluated.

Tolerance 1e-13: means over some ten float64 numbers.
"""

import torch

import nanode
from nanode.fields import prepare_norms
from tests.trajectories.samples import step_stages

CLOSE = {"rtol": 1e-13, "atol": 1e-13}


def times(stages):
    return [stage.time for stage in stages]


def evaluate(field, stage, x):
    return field.evaluate(field.weights_at(stage.time), stage, x)


def batch(seed, shape=(6, 2)):
    generator = torch.Generator().manual_seed(seed)
    return 3 + 2 * torch.randn(shape, generator=generator)


def prepared(steps=3, **options):
    """A field that is one norm, with room for some evaluations."""
    field = nanode.Autonomous(nanode.BatchNorm(2, **options))
    stages = step_stages(steps)
    prepare_norms(field, times(stages))
    return field, field.module, stages


def moments(x):
    """The batch's mean and biased variance per feature, by definition."""
    features = x.transpose(0, 1).flatten(1)
    mean = features.mean(1)
    return mean, (features - mean[:, None]).square().mean(1)
