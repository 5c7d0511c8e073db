"""A clock's stretches, by a counter that is moved by hand."""

import pytest

from nanode.training import progress
from nanode.training.progress import Clock
from nanode.training.records import Times


@pytest.fixture
def now(monkeypatch):
    """Seconds; ``now[0]`` is the time."""
    seconds = [100.0]
    monkeypatch.setattr(progress.time, "perf_counter", lambda: seconds[0])
    return seconds


def test_stretches_follow_each_other(now):
    clock = Clock(Times(), batch_size=10)
    now[0] = 107.0  # the first step: compiling, mostly
    assert clock.stop(1) == 7.0
    now[0] = 109.0
    assert clock.running == 2.0
    assert clock.stop(4) == 2.0
    now[0] = 110.0
    assert clock.stop(2) == 1.0
    now[0] = 150.0  # a look at held-out images
    clock.start()
    now[0] = 151.0
    assert clock.stop(2) == 1.0
    times = clock.times()
    assert (times.first_steps, times.steps, times.counted) == (7.0, 4.0, 8)
    assert (times.total, times.starts) == (51.0, 1)
    assert times.images_per_second == 8 * 10 / 4.0


def test_a_later_start_goes_on(now):
    first = Clock(Times(), batch_size=10)
    for now[0] in (103.0, 104.0):
        first.stop(1)
    second = Clock(first.times(), batch_size=10)
    for now[0] in (106.0, 109.0):
        second.stop(1)
    times = second.times()
    assert (times.first_steps, times.steps, times.counted) == (5.0, 4.0, 2)
    assert (times.total, times.starts) == (9.0, 2)


def test_before_any_steps_there_is_no_speed(now):
    clock = Clock(Times(), batch_size=10)
    clock.stop(1)
    assert clock.times().images_per_second is None
