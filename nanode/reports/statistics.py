"""A number over seeds."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Spread:
    """A mean with the sample standard deviation, which a single value doesn't have."""

    mean: float
    deviation: float | None
    count: int

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
