from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nanode.bases import Bucketed
from nanode.stages import Stage, Stages
from tests.contracts.basis_contract import BasisContract, OneInterval, close, uniform_stages

MOST = 256


class TestBucketed(BasisContract):
    orders = (0,)
    holds = True
    discontinuous = True
    buckets = 4

    def make(self, interval):
        return Bucketed(self.buckets, interval=interval)

    def breaks(self, interval):
        return tuple(np.linspace(*interval, self.buckets + 1)[1:-1])

    def expected(self, basis, t, m):
        if m:
            return np.zeros((len(t), self.buckets))
        return np.eye(self.buckets)[np.searchsorted(self.breaks(basis.interval), t, side="right")]


class TestOneBucket(OneInterval, TestBucketed):
    buckets = 1


def bucket(values):
    """The column that is on, of one-hot rows."""
    held = values.argmax(-1)
    assert one_hot(values, held)
    return held


def one_hot(values, held):
    """Whether each row is 1 in the column ``held`` and 0 elsewhere."""
    on = values.gather(-1, held[..., None])
    return bool((on == 1).all()) and int(values.count_nonzero()) == held.numel()


def grids(interval, steps, dtype):
    """Ways people write K + 1 times from t0 to t1."""
    t0, t1 = interval
    k = torch.arange(steps + 1)
    yield torch.linspace(t0, t1, steps + 1, dtype=dtype)
    yield t0 + (t1 - t0) * (k.to(dtype) / steps)
    yield t0 + k.to(dtype) * ((t1 - t0) / steps)
    yield torch.from_numpy(t0 + (t1 - t0) * (np.arange(steps + 1) / steps)).to(dtype)


@pytest.mark.parametrize(
    ("interval", "most"),
    [
        ((0.0, 1.0), MOST),
        ((-2.0, 3.0), 64),
        ((0.1, 0.7), 64),
        ((10.0, 11.0), 64),
        ((-1.0, 1.0), 64),
    ],
    ids=str,
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_every_aligned_grid_falls_in_its_buckets(interval, most, dtype):
    """Every k of every K up to ``most``, for every d that divides K, on both sides."""
    made = {steps: torch.stack([*grids(interval, steps, dtype)]) for steps in range(1, most + 1)}
    for d in range(1, most + 1):
        basis = Bucketed(d, interval=interval)
        times, right, left = [], [], []
        for steps in range(d, most + 1, d):
            k = torch.arange(steps + 1)
            times.append(made[steps])
            right.append((k * d // steps).clamp(max=d - 1))
            left.append(((k * d + steps - 1) // steps - 1).clamp(min=0))
        t = torch.cat(times, dim=1)
        for side, expected in (("right", right), ("left", left)):
            every_way = torch.cat(expected).expand(len(t), -1)
            assert one_hot(basis(t, side), every_way), (d, side)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_grids_of_one_step_a_bucket(dtype):
    # At 32 steps a bfloat16 time near 1 is off by 1/256, an eighth of a bucket.
    for d in range(1, 33):
        t = torch.tensor([k / d for k in range(d)], dtype=torch.float64).to(dtype)
        assert torch.equal(bucket(Bucketed(d)(t)), torch.arange(d))


def test_middles_of_buckets_are_never_snapped():
    for d in range(1, MOST + 1, 5):
        basis = Bucketed(d)
        for dtype in (torch.float16, torch.float32, torch.float64):
            t = ((torch.arange(d) + 0.5).double() / d).to(dtype)
            for side in ("left", "right"):
                assert torch.equal(bucket(basis(t, side)), torch.arange(d))


@settings(max_examples=60, deadline=None)
@given(d=st.integers(1, 64), place=st.integers(0, 2**20))
def test_far_from_an_edge_the_formula_decides(d, place):
    exact = Fraction(place, 2**20)  # held exactly by float32
    expected = min(int(exact * d), d - 1)
    near = abs(exact * d - round(exact * d)) < Fraction(1, 10**4)
    got = bucket(Bucketed(d)(torch.tensor(float(exact))))
    assert int(got) == expected or near


def test_infinitely_far_the_end_buckets_hold():
    t = torch.tensor([float("-inf"), float("inf")])
    assert bucket(Bucketed(3)(t)).tolist() == [0, 2]


def test_gradient_in_t_exists_and_is_zero():
    t = torch.tensor([0.1, 0.25, 0.9], requires_grad=True)
    z = Bucketed(4)(t)
    assert z.requires_grad
    z.sum().backward()
    assert torch.equal(t.grad, torch.zeros(3))


# ---- stages


@pytest.mark.parametrize("interval", [(0.0, 1.0), (-2.0, 3.0), (0.1, 0.7)], ids=str)
def test_steps_share_buckets_by_integers(interval):
    for steps in range(1, 257) if interval == (0.0, 1.0) else range(1, 65):
        stages = uniform_stages(interval, steps)
        # Every number of buckets that divides the steps, and some that don't.
        for d in {d for d in range(1, steps + 1) if steps % d == 0} | {3, 7, 10, 100}:
            expected = torch.arange(steps) * d // steps
            assert torch.equal(bucket(Bucketed(d, interval=interval).on(stages)), expected)


def test_the_whole_step_uses_the_bucket_of_its_start():
    start = Fraction(1, 4)
    stages = Stages(
        tuple(
            Stage(i, 1, time=0.25 + c / 4, start=start, side=side)
            for i, (c, side) in enumerate([(0, "right"), (0.5, "right"), (1, "left")])
        )
    )
    assert bucket(Bucketed(4).on(stages)).tolist() == [1, 1, 1]
    # Eight buckets: half of them are never met by four steps.
    assert bucket(Bucketed(8).on(stages)).tolist() == [2, 2, 2]


def test_given_grids_hold_floats():
    for d in range(1, 101):
        stages = Stages(tuple(Stage(k, k, k / d, Fraction(k / d)) for k in range(d)))
        assert torch.equal(bucket(Bucketed(d).on(stages)), torch.arange(d))


def test_stages_outside_hold_the_end_buckets():
    assert bucket(Bucketed(3).on(Stages((Stage.alone(-1.0), Stage.alone(2.0))))).tolist() == [0, 2]


def test_a_lone_stage_goes_by_its_side():
    for d in range(1, 65):
        edges = [k / d for k in range(1, d)]
        for side, expected in (("right", range(1, d)), ("left", range(d - 1))):
            stages = Stages(tuple(Stage.alone(t, side) for t in [0.0, *edges]))
            assert bucket(Bucketed(d).on(stages)).tolist() == [0, *expected]


def test_a_lone_stage_may_be_off_by_its_rounding():
    assert bucket(Bucketed(10).on(Stages.alone([float(np.float32(0.7))]))).tolist() == [7]


def test_the_rounding_is_that_of_the_larger_end():
    basis = Bucketed(7, interval=(-0.7, 0.0))
    assert int(bucket(basis(torch.tensor(-0.5, dtype=torch.float64)))) == 2
    assert bucket(basis.on(Stages.alone([-0.5]))).tolist() == [2]


def test_a_lone_stage_in_the_middle_of_a_bucket_is_never_snapped():
    # In single precision times near a million are rounded by more than half a bucket.
    start = 2.0**20 + 1
    stages = Stages.alone(start + (k + 0.5) / 4 for k in range(4))
    basis = Bucketed(4, interval=(start, start + 1))
    assert bucket(basis.on(stages)).tolist() == [0, 1, 2, 3]


# ---- differences


def test_gram_is_scaled_differences():
    basis = Bucketed(4, interval=(-1.0, 1.0))
    close(basis.gram(), 0.5 * np.eye(4), 1e-15)
    first = np.array([[-1, 1, 0, 0], [0, -1, 1, 0], [0, 0, -1, 1]])
    close(basis.gram(1), first.T @ first / 0.5, 1e-15)
    second = np.array([[1, -2, 1, 0], [0, 1, -2, 1]])
    close(basis.gram(2), second.T @ second * 0.5**-3, 1e-15)
    assert basis.gram(4).abs().max() == 0


@pytest.mark.parametrize(("m", "integral"), [(1, 9 / 5), (2, 12.0)])
def test_differences_approach_the_integral(m, integral):
    errors = []
    for d in (100, 200):
        c = ((torch.arange(d, dtype=torch.float64) + 0.5) / d) ** 3
        errors.append(abs(float(c @ Bucketed(d).gram(m) @ c) - integral))
    assert errors[0] / errors[1] > 1.9  # the ends are left out: first order
    assert errors[1] < 0.05 * integral


@pytest.mark.parametrize("buckets", [0, -1, 2.0, True, None])
def test_refuses_other_counts(buckets):
    with pytest.raises(ValueError, match="buckets must be a whole number of at least 1"):
        Bucketed(buckets)
