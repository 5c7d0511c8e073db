"""A number over seeds."""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Spread:
    """A mean with the sample standard deviation, which a single value doesn't have."""

    mean: float
    deviation: float | None
    #: How many values it is the mean of.
    count: int

    def over(self, unit: float) -> "Spread":
        """The same in another unit."""
        deviation = None if self.deviation is None else self.deviation / unit
        return Spread(self.mean / unit, deviation, self.count)

    def __str__(self) -> str:
        if self.deviation is None:
            return f"{self.mean:.2f}"
        return f"{self.mean:.2f} ± {self.deviation:.2f}"


def spread(values: Sequence[float]) -> Spread | None:
    r"""Mean and :math:`\sqrt{\sum (x - \bar x)^2 / (n - 1)}`; None of nothing.

    >>> print(spread([84.0, 85.0, 87.0]))
    85.33 ± 1.53
    >>> print(spread([84.0]))
    84.00
    """
    if not values:
        return None
    if not all(math.isfinite(value) for value in values):
        raise ValueError(f"expected finite numbers, got {list(values)}")
    deviation = statistics.stdev(values) if len(values) > 1 else None
    return Spread(statistics.fmean(values), deviation, len(values))


@dataclass(frozen=True)
class Noise:
    """The standard deviation of one run of a kind, known from several kinds together."""

    deviation: float
    #: How many values it is known from, those apart that went into means.
    freedom: int

    def undecided(self, *sides: Spread) -> float:
        r"""How far two means may be apart by chance: :math:`t\,s\sqrt{1/n_1 + 1/n_2}`.

        t is the 97.5 % quantile of Student's distribution.
        """
        parts = sum(1 / side.count for side in sides)
        return student(self.freedom) * self.deviation * math.sqrt(parts)


def pooled(spreads: Iterable[Spread | None]) -> Noise | None:
    r"""The common deviation :math:`\sqrt{\sum (n_i - 1) s_i^2 / \sum (n_i - 1)}`; None if unknown.

    >>> pooled([Spread(84.0, 3.0, 3), Spread(80.0, 4.0, 3), Spread(70.0, None, 1)])
    Noise(deviation=3.5355339059327378, freedom=4)
    """
    known = [
        (s.deviation, s.count - 1) for s in spreads if s is not None and s.deviation is not None
    ]
    if not any(deviation for deviation, _ in known):
        return None  # none, or all alike by the coarseness of what is counted
    freedom = sum(free for _, free in known)
    return Noise(math.sqrt(sum(free * s**2 for s, free in known) / freedom), freedom)


#: Student's 97.5 % quantiles for 1, 2, … degrees of freedom.
_STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)


def student(freedom: int) -> float:
    """The 97.5 % quantile of Student's distribution: a two-sided interval of 95 %."""
    if freedom <= len(_STUDENT):
        return _STUDENT[freedom - 1]
    z = statistics.NormalDist().inv_cdf(0.975)
    # The first terms of its expansion in 1/freedom.
    first, second = (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / freedom + second / freedom**2 + third / freedom**3
