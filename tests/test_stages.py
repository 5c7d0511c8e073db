"""Times of evaluations: how exactly they are known."""

import numpy as np
import pytest

from nanode.stages import Stages, rounding


@pytest.mark.parametrize("t", [0.0, 3.0, 100_001.0, 1_702_080_001.0, -(2.0**60 + 2.0**20)])
def test_whole_numbers_are_exact_however_large(t):
    assert rounding([t]) == 0


def test_one_time_in_double_precision_says_that_all_are():
    single = float(np.float32(0.1))
    assert np.spacing(np.float32(0.1)) < rounding([single]) < 1e-6
    assert np.spacing(0.7) < rounding([single, 0.7]) < 1e-15


def test_slices_are_kept_each_by_its_own_bounds():
    stages = Stages.alone([0.0, 0.25, 0.5, 0.75])
    assert [[stage.time for stage in stages[::k]] for k in (1, 2, 3)] == [
        [0.0, 0.25, 0.5, 0.75],
        [0.0, 0.5],
        [0.0, 0.75],
    ]
    assert stages[1:3] is stages[1:3]
