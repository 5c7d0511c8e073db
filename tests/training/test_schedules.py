"""Learning rates against closed forms and against torch's own schedulers."""

import math

import pytest
import torch

from nanode.training import ScheduleConfig
from nanode.training.schedules import rate


def rates(config, steps):
    return [rate(config, step, steps) for step in range(steps)]


def of_torch(make, steps):
    """The rates that a scheduler of torch gives to an optimizer of rate 1."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(()))], lr=1.0)
    scheduler = make(optimizer)
    found = []
    for _ in range(steps):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return found


# Both sides are a few operations in double precision on numbers of at most 1.
CLOSE = {"rel": 1e-9, "abs": 1e-12}


@pytest.mark.parametrize(("steps", "warmup"), [(100, 0.25), (37, 0.3), (10, 0.5), (7, 0.9)])
def test_one_cycle_is_torchs(steps, warmup):
    config = ScheduleConfig(warmup=warmup, start=0.04, end=1e-4)
    expected = of_torch(
        lambda optimizer: torch.optim.lr_scheduler.OneCycleLR(
            optimizer,
            max_lr=1.0,
            total_steps=steps,
            pct_start=warmup,
            div_factor=1 / 0.04,
            final_div_factor=0.04 / 1e-4,
            cycle_momentum=False,
        ),
        steps - 1,  # torch refuses to be asked once more after the last
    )
    assert rates(config, steps)[:-1] == pytest.approx(expected, **CLOSE)


def test_one_cycle_by_hand():
    found = rates(ScheduleConfig(warmup=0.5, start=0.2, end=0.0), 10)
    up = [0.2 + 0.8 * (1 - math.cos(math.pi * k / 4)) / 2 for k in range(5)]
    down = [(1 + math.cos(math.pi * k / 5)) / 2 for k in range(1, 6)]
    assert found == pytest.approx(up + down, **CLOSE)
    short = rates(ScheduleConfig(warmup=0.9, start=0.2, end=0.0), 7)  # the peak is at step 5.3
    assert short[-1] == pytest.approx(0.0, **CLOSE)
    assert max(short) > 0.9


def test_cosine_without_warmup_is_torchs():
    config = ScheduleConfig(name="cosine", warmup=0.0, end=0.01)
    expected = of_torch(
        lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, T_max=40, eta_min=0.01), 40
    )
    assert rates(config, 40) == pytest.approx(expected, **CLOSE)


def test_cosine_warms_up_along_a_line():
    found = rates(ScheduleConfig(name="cosine", warmup=0.2, start=0.1, end=0.0), 20)
    up = [0.1 + 0.9 * k / 4 for k in range(4)]
    down = [(1 + math.cos(math.pi * k / 16)) / 2 for k in range(16)]
    assert found == pytest.approx(up + down, **CLOSE)


@pytest.mark.parametrize("name", ["one-cycle", "cosine"])
@pytest.mark.parametrize("warmup", [0.0, 0.01, 0.5, 0.99])
@pytest.mark.parametrize("steps", [1, 2, 3, 50])
def test_rates_stay_between_the_ends(name, warmup, steps):
    config = ScheduleConfig(name=name, warmup=warmup, start=0.1, end=0.01)
    assert all(0.01 <= r <= 1 for r in rates(config, steps))


def test_constant():
    config = ScheduleConfig(name="constant")
    assert [rate(config, step, 5) for step in range(5)] == [1.0] * 5
