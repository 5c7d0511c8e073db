import math
import warnings
from fractions import Fraction
from itertools import pairwise

import pytest
import torch
from torch import nn

import nanode
from nanode.integrate import make_plan
from nanode.solvers import Aligned, Given, Grid, Uniform, as_schedule

STEPPERS = [
    nanode.Euler(),
    nanode.Heun(),
    nanode.RK4(),
    nanode.ThreeEighths(),
    nanode.Leapfrog(),
    nanode.ReversibleHeun(),
    nanode.Coupled(nanode.Heun()),
]


def bucketed(d, interval=(0.0, 1.0)):
    """A field whose only weight, at any time, is the number of its bucket."""
    field = nanode.TimeVarying(nn.Linear(1, 1, bias=False), nanode.Bucketed(d, interval=interval))
    with torch.no_grad():
        field.trajectory.coefficients.weight.copy_(torch.arange(d)[:, None])
    return field


def buckets(field, stages):
    return field.weights(stages).moving["weight"].flatten().long().tolist()


# ---- where the steps lie


@pytest.mark.parametrize("ends", [(0.0, 1.0), (1.0, 0.0), (0.1, 0.7), (-2.0, 3.0)], ids=str)
def test_uniform_points_are_exact(ends):
    for steps in (1, 2, 3, 7, 10, 49, 100):
        grid = Uniform(steps).grid(*ends)
        a, b = map(Fraction, ends)
        assert grid.points == tuple(a + (b - a) * Fraction(k, steps) for k in range(steps + 1))
        assert grid.steps == steps
        assert grid.widths() == (float((b - a) / steps),) * steps
        assert grid.reversed().points == grid.points[::-1]


def test_given_points_are_the_given_times():
    times = [0.0, 0.1, 0.4, 1.0]
    assert Given(times).grid(0.0, 1.0).points == tuple(map(Fraction, times))
    assert Given(torch.tensor(times, dtype=torch.float64)) == Given(times)
    backwards = Given(times[::-1]).grid(1.0, 0.0)
    assert backwards.widths() == tuple(b - a for a, b in pairwise(times[::-1]))


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("steps", [1, 2, 5, 10, 13])
def test_aligned_steps_cross_no_breakpoint(steps, backwards):
    breakpoints = (1 / 3, 0.5, 0.6)
    ends = (1.0, 0.0) if backwards else (0.0, 1.0)
    grid = Aligned(steps).grid(*ends, breakpoints=breakpoints)
    assert set(map(Fraction, breakpoints)) <= set(grid.points)
    assert grid.points[0] == ends[0]
    assert grid.points[-1] == ends[1]
    assert grid.steps >= steps
    # No wider than asked for, up to the hair that forgives rounding.
    assert max(map(abs, grid.widths())) <= (1 + 1e-6) / steps
    inside = sorted({Fraction(0), Fraction(1), *map(Fraction, breakpoints)})
    for low, high in pairwise(inside):
        own = [p for p in grid.points if low <= p <= high]
        gaps = {abs(b - a) for a, b in pairwise(own)}
        assert max(gaps) - min(gaps) < Fraction(1, 10**15)  # equal within a piece


def test_aligned_without_breakpoints_is_uniform():
    assert Aligned(7).grid(0.0, 1.0) == Uniform(7).grid(0.0, 1.0)
    # Those at the ends and beyond don't count.
    assert Aligned(7).grid(0.0, 1.0, breakpoints=(0.0, 1.0, 2.0)) == Uniform(7).grid(0.0, 1.0)


def test_aligned_takes_times_that_differ_by_rounding_for_one():
    assert 3 * 0.1 != 0.3
    assert Aligned(10).grid(0.0, 1.0, breakpoints=(0.3, 3 * 0.1)).steps == 10


def test_aligned_adds_no_step_where_buckets_divide():
    for d in range(1, 33):
        for per in (1, 2, 3):
            breakpoints = nanode.Bucketed(d).breakpoints
            assert Aligned(per * d).grid(0.0, 1.0, breakpoints=breakpoints).steps == per * d


def test_nearest_and_holds():
    for ends in ((0.0, 1.0), (1.0, 0.0)):
        grid = Uniform(10).grid(*ends)
        for k, point in enumerate(grid.points):
            assert grid.nearest(float(point)) == k
            assert grid.nearest(float(point) + 0.04) == k
            assert grid.holds(float(point))
            assert not grid.holds(float(point) + 1e-6)


def test_nearest_is_exact_where_several_points_round_to_one():
    grid = Uniform(8).grid(2.0**53, 2.0**53 + 2)
    assert [grid.nearest(t) for t in (2.0**53, 2.0**53 + 2)] == [0, 8]


# ---- stages


@pytest.mark.parametrize("stepper", STEPPERS, ids=repr)
@pytest.mark.parametrize("ends", [(0.0, 1.0), (1.0, 0.0)], ids=["forward", "backward"])
def test_stages_lie_where_the_stepper_says(stepper, ends):
    steps = 6
    grid = Uniform(steps).grid(*ends)
    stages = grid.stages(stepper)
    assert len(stages) == steps * len(stepper.fractions) + stepper.opening
    assert [stage.index for stage in stages] == list(range(len(stages)))
    assert all(stage.record for stage in stages)
    assert not any(stage.record for stage in stages.repeated)
    direction = 1 if ends[0] < ends[1] else -1
    own = list(stages)[int(stepper.opening) :]
    for n, stage in enumerate(own):
        k, j = divmod(n, len(stepper.fractions))
        begin, end = grid.points[k], grid.points[k + 1]
        assert stage.step == k
        assert stage.time == float(begin + stepper.fractions[j] * (end - begin))
        assert stage.start == min(begin, end)
        # From a grid point the limit is taken from inside the step.
        if stage.time == float(begin):
            assert stage.side == ("right" if direction > 0 else "left")
        elif stage.time == float(end):
            assert stage.side == ("left" if direction > 0 else "right")
        else:
            assert stage.side == "right"
    if stepper.opening:
        opening = stages[0]
        assert (opening.step, opening.time) == (0, ends[0])
        assert opening.side == ("right" if direction > 0 else "left")


@pytest.mark.parametrize("stepper", STEPPERS, ids=repr)
@pytest.mark.parametrize("backwards", [False, True], ids=["forward", "backward"])
def test_whole_steps_use_the_bucket_of_integers(stepper, backwards):
    """⌊k·d/K⌋ for step k from the left, for every stage of it, aligned or not."""
    per = len(stepper.fractions)
    for steps in (1, 2, 3, 5, 10, 12, 30):
        grid = Uniform(steps).grid(0.0, 1.0)
        stages = (grid.reversed() if backwards else grid).stages(stepper)
        for d in (1, 2, 3, 4, 7, 10, 15, 30, 60):
            order = reversed(range(steps)) if backwards else range(steps)
            expected = [k * d // steps for k in order for _ in range(per)]
            opening = expected[:1] * stepper.opening
            assert buckets(bucketed(d), stages) == [*opening, *expected], (steps, d)


@pytest.mark.parametrize("interval", [(0.0, 1.0), (0.1, 0.7), (-2.0, 3.0), (10.0, 11.0)], ids=str)
def test_buckets_are_exact_for_many_sizes(interval):
    stepper = nanode.Heun()
    for steps in range(1, 41):
        uniform = Uniform(steps).grid(*interval)
        floats = Given([float(p) for p in uniform.points]).grid(*interval)
        expected = {
            d: [k * d // steps for k in range(steps) for _ in (0, 1)] for d in (3, 8, steps)
        }
        for grid in (uniform, floats, uniform.reversed()):
            stages = grid.stages(stepper)
            for d, forward in expected.items():
                wanted = forward[::-1] if grid.points[0] > grid.points[-1] else forward
                assert buckets(bucketed(d, interval), stages) == wanted, (steps, d)


def test_aligned_grids_put_every_step_inside_its_bucket():
    for d in (2, 3, 7, 10):
        for steps in (1, 4, 10, 11):
            field = bucketed(d)
            grid = Aligned(steps).grid(0.0, 1.0, breakpoints=field.breakpoints)
            middles = [(a + b) / 2 for a, b in pairwise(grid.points)]
            expected = [int(m * d) for m in middles for _ in (0, 1)]
            assert buckets(field, grid.stages(nanode.Heun())) == expected


# ---- warnings


def solve(d, steps, stepper, interval=None):
    field, x = bucketed(d), torch.ones(1, 1)
    return nanode.odeint(field, x, steps=steps, solver=stepper, interval=interval)


SECOND = [s for s in STEPPERS if s.order > 1]


@pytest.mark.parametrize("stepper", [s for s in SECOND if not s.carries_slopes], ids=repr)
def test_a_jump_inside_a_step_warns(stepper):
    with pytest.warns(
        UserWarning, match=r"jump at t = 0\.25, inside a step.*falls back to order 1"
    ):
        solve(4, 10, stepper)


@pytest.mark.parametrize("steps", [10, 12, Aligned(10)])
def test_slopes_that_are_carried_over_a_jump_warn_on_any_grid(steps):
    with pytest.warns(
        UserWarning, match=r"jump at t = 0\.25: .* falls back to order 1\. Use another"
    ):
        solve(4, steps, nanode.ReversibleHeun())


@pytest.mark.parametrize(
    ("d", "steps", "stepper", "interval"),
    [
        (4, 10, nanode.Euler(), None),
        (4, 2, nanode.ReversibleHeun(), (0.5, 0.75)),
        (4, 12, nanode.RK4(), None),
        (4, Aligned(10), nanode.RK4(), None),
        (4, 1, nanode.RK4(), (0.5, 0.75)),
        (10, 100, nanode.Coupled(nanode.Midpoint()), (1.0, 0.0)),
    ],
    ids=[
        "Euler",
        "carried inside one bucket",
        "divides",
        "aligned",
        "inside one bucket",
        "backward",
    ],
)
def test_no_warning_where_none_is_due(d, steps, stepper, interval):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        solve(d, steps, stepper, interval)


# ---- bad input


@pytest.mark.parametrize("steps", [0, -1, 2.5, 2.0, True, "10", None, math.nan])
@pytest.mark.parametrize("schedule", [Uniform, Aligned])
def test_refuses_counts(schedule, steps):
    with pytest.raises(ValueError, match="steps must be a whole number of at least 1"):
        schedule(steps)


@pytest.mark.parametrize("times", [[0.0, 0.5, 0.4, 1.0], [0.0, 0.5, 0.5, 1.0], [0.0], []], ids=str)
def test_refuses_grids_that_are_not_monotone(times):
    with pytest.raises(ValueError, match="at least two times, strictly rising or strictly falling"):
        Given(times)
    with pytest.raises(ValueError, match="at least two times, strictly rising or strictly falling"):
        Grid(tuple(map(Fraction, times)))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_refuses_times_that_are_not_finite(bad):
    with pytest.raises(ValueError, match="times must be finite"):
        Given([0.0, bad, 1.0])


def test_refuses_times_that_require_grad():
    with pytest.raises(ValueError, match="times require grad"):
        Given(torch.tensor([0.0, 1.0], requires_grad=True))


@pytest.mark.parametrize("times", [1.0, torch.tensor(1.0), "01", None], ids=repr)
def test_refuses_given_times_that_are_no_sequence(times):
    with pytest.raises(ValueError, match=r"times must be a sequence such as \[0\.0, 0\.5, 1\.0\]"):
        Given(times)


def test_refuses_a_given_grid_of_another_interval():
    with pytest.raises(ValueError, match=r"run from 0.0 to 0.5, .*pass interval=\(0.0, 0.5\)"):
        Given([0.0, 0.5]).grid(0.0, 1.0)


def test_as_schedule():
    assert as_schedule(4) == Uniform(4)
    assert as_schedule(Aligned(4)) == Aligned(4)


# ---- times in single precision


INTERVALS = [
    *[(0.0, 1.0), (-1.0, 1.0), (0.1, 0.7), (0.0, 100.0), (-100.0, 0.0), (0.0, 365.0)],
    *[(100.0, 101.0), (1000.0, 1001.0), (2020.0, 2025.0), (0.0, math.pi), (0.0, 1e-3)],
]


@pytest.mark.parametrize("interval", INTERVALS, ids=str)
def test_rounded_times_lie_in_the_bucket_that_is_meant(interval):
    few = {*range(1, 257, 9), 34, 223, 256}
    for steps in range(1, 257) if interval in ((0.0, 1.0), (0.0, 100.0)) else few:
        exact = Uniform(steps).grid(*interval)
        single = torch.tensor([float(p) for p in exact.points], dtype=torch.float32)
        counts = {d for d in (steps, steps // 3) if d and steps % d == 0}
        # Neighbours in single precision must differ, and buckets be wider than a few ulps.
        if float(exact.widths()[0]) < 16 * torch.finfo(torch.float32).eps * max(map(abs, interval)):
            continue
        for times in (single, [float(p) for p in exact.points]):
            grid = Given(times).grid(*interval)
            for d in counts:
                found = nanode.Bucketed(d, interval).on(grid.stages(nanode.Euler())).argmax(1)
                assert torch.equal(found, torch.arange(steps) * d // steps), (steps, d)


def test_the_same_steps_backwards_lie_in_the_same_buckets():
    grid = Given(torch.linspace(0, 1, 11)).grid(0.0, 1.0)
    found = nanode.Bucketed(10).on(grid.reversed().stages(nanode.Euler())).argmax(1)
    assert found.tolist() == [9, 8, 7, 6, 5, 4, 3, 2, 1, 0]


def test_a_solve_ends_where_it_was_told_to_and_not_at_a_rounded_time():
    grid = Given(torch.tensor([0.1, 0.4, 0.7])).grid(0.1, 0.7)
    assert (grid.points[0], grid.points[-1]) == (Fraction(0.1), Fraction(0.7))


@pytest.mark.parametrize("interval", INTERVALS, ids=str)
def test_a_solve_at_single_precision_times_uses_every_bucket(interval):
    for steps in (34, 223):
        field = bucketed(steps, interval)
        times = torch.linspace(*interval, steps + 1)
        x = nanode.odeint(field, torch.ones(1, 1), at=times, gradient=nanode.Checkpointed())
        x[-1].sum().backward()
        assert (field.trajectory.coefficients.weight.grad != 0).all()


def test_long_uniform_grids_use_the_bucket_of_integers():
    for steps, d in ((20_000, 3), (30_000, 7), (10_000, 999)):
        stages = Uniform(steps).grid(0.0, 1.0).stages(nanode.Euler())
        found = nanode.Bucketed(d).on(stages).argmax(1)
        assert torch.equal(found, torch.arange(steps) * d // steps)


def test_single_precision_ends_of_an_interval_are_its_ends():
    for end in (0.3, math.pi, 0.1 + 0.2):
        field = bucketed(3, (0.0, end))
        times = torch.tensor([0.0, end / 3, 2 * end / 3, end])
        assert nanode.odeint(field, torch.ones(1, 1), at=times).shape == (4, 1, 1)
        block = nanode.ODEBlock(field, Given(times), interval=(0.0, end))
        assert block.interval == (0.0, end)


def test_rounded_times_are_on_a_grid_of_steps():
    field, x = bucketed(10), torch.ones(1, 1)
    for at in (torch.linspace(0, 1, 11), torch.linspace(0, 1, 11).tolist()):
        assert nanode.odeint(field, x, steps=10, at=at).shape == (11, 1, 1)
    with pytest.raises(ValueError, match=r"wanted at t = 0\.55"):
        nanode.odeint(field, x, steps=10, at=[0.0, 0.55, 1.0])


def test_a_coarse_time_between_narrow_steps_is_on_none_of_them():
    """Single precision rounds times near 1,000 to 6e-5, and a tolerance may be wider than that."""
    grid = Given([1000.0, 1000.001, 1000.002]).grid(1000.0, 1000.002)
    assert grid.holds(1000.00101, slack=5e-4)
    assert not grid.holds(1000.0014, slack=5e-4)


def test_slack_is_at_most_an_eighth_of_the_narrowest_step():
    grid = Grid(tuple(Fraction(k, 10**7) for k in (0, 1, 9)), slack=1e-6)
    assert grid.slack <= 1e-7 / 8
    assert not grid.holds(1.3e-7)


def test_times_lie_on_a_grid_whose_end_was_rounded():
    end = float(torch.tensor(0.7))
    block = nanode.ODEBlock(bucketed(7, (0.0, end)), 10, interval=(0.0, end), at=[0.35, 0.7])
    assert block(torch.ones(1, 1)).shape == (2, 1, 1)


def test_breakpoints_and_rounded_times_are_one():
    """No step of a hair's breadth between 0.3 and 0.3 in single precision."""
    at = torch.linspace(0, 1, 11)
    grid = Aligned(10).grid(0.0, 1.0, breakpoints=(*bucketed(10).breakpoints, *at.tolist()))
    assert grid.steps == 10
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        nanode.odeint(bucketed(10), torch.ones(1, 1), at=at, solver=nanode.Heun())


def test_given_times_are_taken_as_they_are():
    times = torch.rand(100).sort().values
    assert Given(times).times == tuple(times.tolist())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_refuses_times_in_half_precision(dtype):
    times = torch.linspace(0, 1, 11, dtype=dtype)
    with pytest.raises(ValueError, match="too coarse to say which step they mean"):
        Given(times)
    with pytest.raises(ValueError, match="too coarse"):
        nanode.odeint(bucketed(10), torch.ones(1, 1), at=times)


@pytest.mark.parametrize("start", [86400.0 * 19700, 100001.0, 1e6 + 1])
def test_large_whole_times_are_exact(start):
    """Seconds since 1970, say: single precision holds them, and nobody has rounded them."""
    end = start + 2 * 86400.0
    for steps in (48, 1000):
        stages = Uniform(steps).grid(start, end).stages(nanode.Euler())
        found = nanode.Bucketed(2, interval=(start, end)).on(stages).argmax(1)
        assert torch.equal(found, torch.arange(steps) * 2 // steps)
    slope, x = (lambda t, x: torch.ones_like(x)), torch.zeros(1, dtype=torch.float64)
    with pytest.raises(ValueError, match="not on the grid"):
        nanode.odeint(slope, x, steps=48, interval=(start, end), at=[start, start + 29440.0, end])
    settings = {"steps": Aligned(48), "interval": (start, end)}
    assert nanode.odeint(slope, x, at=[start + 640.0, end], **settings)[0] == 640.0


def test_a_large_time_does_not_blur_small_ones():
    slope, x = (lambda t, x: torch.ones_like(x)), torch.zeros(1, dtype=torch.float64)
    found = nanode.odeint(slope, x, steps=Aligned(10), at=[70001.0, 70001.03125, 70002.0])
    assert found.flatten().tolist() == pytest.approx([0.0, 0.03125, 1.0], abs=1e-12)
    field = bucketed(2, (0.0, 1e4)).double()
    times = torch.tensor([0.004, 5.1, 1e4])
    block = nanode.ODEBlock(field, Given(times), at=times)
    assert block.interval == (times[0].item(), 1e4)


@pytest.mark.parametrize("interval", [(1966.240966796875, 1967.769287109375), (0.0, 0.7)], ids=str)
@pytest.mark.parametrize(("d", "steps"), [(34, 71), (10, 10), (7, 100)])
def test_buckets_of_a_whole_solve_go_by_whole_numbers(interval, d, steps):
    """Whatever the ends are rounded from: those of buckets and steps are the same."""
    found = buckets(
        field := bucketed(d, interval), make_plan(field, interval, steps, nanode.Euler()).stages
    )
    assert found == [k * d // steps for k in range(steps)]
    back = make_plan(field, interval[::-1], steps, nanode.Euler()).stages
    assert buckets(field, back) == found[::-1]


def test_a_part_of_an_interval_has_the_buckets_that_its_times_mean():
    """An end in single precision is not an end of the weights: there times are compared."""
    end = float(torch.tensor(0.7, dtype=torch.float32))
    field = bucketed(10, (0.0, 1.0))
    plan = make_plan(field, (0.0, end), 7, nanode.Euler())
    assert buckets(field, plan.stages) == [0, 1, 2, 3, 4, 5, 6]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("start", [1e5 + 0.1, 1e7 + 0.1, 1.7e9 + 0.25])
@pytest.mark.parametrize(("d", "width"), [(10, 1.0), (10, 0.7), (100, 0.7)])
def test_no_jump_lies_inside_a_step_where_there_is_one_for_each_bucket(start, d, width):
    """And nothing warns of one."""
    interval = (start, start + width)
    field = bucketed(d, interval)
    assert buckets(field, make_plan(field, interval, d, nanode.Euler()).stages) == list(range(d))
    make_plan(field, interval, d, nanode.Heun())
