"""What tests of norms share: batches, and how a norm is evaluated.

Tolerance 1e-13: means over some ten float64 numbers.
"""

import torch

CLOSE = {"rtol": 1e-13, "atol": 1e-13}


def times(stages):
    return [stage.time for stage in stages]


def evaluate(field, stage, x):
    return field.evaluate(field.weights_at(stage.time), stage, x)


def batch(seed, shape=(6, 2)):
    generator = torch.Generator().manual_seed(seed)
    return 3 + 2 * torch.randn(shape, generator=generator)
