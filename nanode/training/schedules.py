r"""Learning rates as functions of the step.

A schedule has no state: the rate of step k of n is a closed form, so a run that resumes at step k
needs to know k and nothing else.
"""

import math

from nanode.training.config import ScheduleConfig


def rate(config: ScheduleConfig, step: int, steps: int) -> float:
    """The learning rate of one step, as a share of the highest.

    >>> rate(ScheduleConfig(name="one-cycle", end=0.0), step=99, steps=100)
    0.0
    >>> rate(ScheduleConfig(name="cosine", warmup=0.0, end=0.0), step=50, steps=100)
    0.5
    """
    assert 0 <= step < steps, f"step {step} of {steps}"
    if config.name == "constant":
        return 1.0
    return {"one-cycle": one_cycle, "cosine": cosine}[config.name](config, step, steps)


def one_cycle(config: ScheduleConfig, step: int, steps: int) -> float:
    r"""Up from ``start`` to 1 and down to ``end``, both along half a cosine.

    The peak is at step ``warmup * steps - 1`` and the end at the last step, as in torch's
    ``OneCycleLR`` without its cycle of momentum.
    """
    peak = config.warmup * steps - 1
    if step <= peak:
        return _half_wave(config.start, 1.0, step / peak if peak > 0 else 1.0)
    top = max(peak, 0)
    left = steps - 1 - top
    return _half_wave(1.0, config.end, (step - top) / left if left > 0 else 0.0)


def cosine(config: ScheduleConfig, step: int, steps: int) -> float:
    r"""A straight line from ``start`` to 1 over the warm-up, then half a cosine towards ``end``.

    Without a warm-up, ``end + (1 - end) (1 + cos(π step / steps)) / 2``.
    """
    warm = round(config.warmup * steps)
    if step < warm:
        return config.start + (1 - config.start) * step / warm
    return _half_wave(1.0, config.end, (step - warm) / (steps - warm))


def _half_wave(a: float, b: float, share: float) -> float:
    """From a at share 0 to b at share 1."""
    return b + (a - b) * (1 + math.cos(math.pi * share)) / 2
