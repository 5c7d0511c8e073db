"""Batch norm as compiled code evaluates it: where it is in the solve is a tensor."""

from fractions import Fraction

import pytest
import torch

from nanode.stages import Stage
from tests.fields.norm_samples import CLOSE, batch, evaluate, moments, prepared
from tests.trajectories.samples import stirred

#: An evaluation as compiled code sees it, which one graph serves for all.
COMPILED = Stage(torch.tensor(1), 0, torch.tensor(0.5), Fraction(0))


def test_compiled_statistics_of_half_precision_are_taken_in_single():
    field, norm, _ = prepared(momentum=1.0)
    field.float()
    x = (1 + batch(0, (64, 2)) / 100).bfloat16()
    mean, var = moments(x.double())
    assert evaluate(field, COMPILED, x).dtype == torch.bfloat16
    # By bfloat16's rounding, 4e-3, they would be off.
    torch.testing.assert_close(norm.running_mean[1].double(), mean, rtol=1e-5, atol=0)
    torch.testing.assert_close(norm.running_var[1].double(), var * 64 / 63, rtol=1e-4, atol=0)
    assert evaluate(field.eval(), COMPILED, x).dtype == torch.bfloat16


@pytest.mark.parametrize("affine", [True, False])
def test_compiled_evaluations_in_eval_mode_are_the_others(affine):
    field, norm, stages = prepared(affine=affine)
    norm.running_mean.copy_(batch(1, (3, 2)))
    norm.running_var.copy_(batch(2, (3, 2)).square())
    stirred(field).eval()
    x = batch(0)
    expected = evaluate(field, stages[1], x)
    torch.testing.assert_close(evaluate(field, COMPILED, x), expected, **CLOSE)


def test_an_empty_batch_has_no_statistics_compiled_either():
    field, norm, _ = prepared()
    evaluate(field, COMPILED, torch.empty(0, 2))
    assert torch.equal(norm.running_mean, torch.zeros(3, 2))
    assert torch.equal(norm.running_var, torch.ones(3, 2))
