"""Claims about the order of models, judged by measured accuracies."""

from collections.abc import Mapping
from dataclasses import dataclass

from nanode.reports.statistics import Spread

NOT_MEASURED = "not measured"
#: What the words of a verdict mean.
WORDS = (
    "“Within the spread”: no larger than √(s₁² + s₂²) of the two standard deviations, which "
    "decides nothing; “one seed”: the spread of one side isn't known."
)


@dataclass(frozen=True)
class Claim:
    """Every model of ``better`` is more accurate than every one of ``worse``."""

    text: str
    better: tuple[str, ...]
    worse: tuple[str, ...]
    #: Whether the claim is only that ``worse`` isn't ahead, by more than the spread.
    ties: bool = False


@dataclass(frozen=True)
class Verdict:
    """What became of a claim."""

    #: The smallest lead of a better model over a worse one, in points; None if not measured.
    margin: float | None
    #: None if it can't be said: not measured, or within the spread.
    held: bool | None
    #: Whether the margin is no larger than the spread of the difference, over seeds.
    within_spread: bool = False
    #: Whether one of the two has a single seed, whose spread nobody knows.
    single: bool = False

    def __str__(self) -> str:
        if self.margin is None:
            return NOT_MEASURED
        word = {True: "held", False: "**did not hold**", None: "undecided"}[self.held]
        unsure = ", within the spread" if self.within_spread else ""
        few = ", one seed" if self.single else ""
        return f"{word} ({self.margin:+.2f}{unsure}{few})"


def judge(claim: Claim, measured: Mapping[str, Spread | None]) -> Verdict:
    """Whether a claim held for the models of one column.

    >>> claim = Claim("T beats Auto", better=("t",), worse=("auto",))
    >>> print(judge(claim, {"t": Spread(85.0, None, 1), "auto": Spread(82.5, None, 1)}))
    held (+2.50, one seed)
    >>> print(judge(claim, {"t": Spread(85.0, None, 1)}))
    not measured
    """
    found = {name: measured.get(name) for name in (*claim.better, *claim.worse)}
    known = {name: value for name, value in found.items() if value is not None}
    if len(known) < len(found):
        return Verdict(None, None)
    low = min((known[name] for name in claim.better), key=lambda value: value.mean)
    high = max((known[name] for name in claim.worse), key=lambda value: value.mean)
    margin = low.mean - high.mean
    deviation = ((low.deviation or 0.0) ** 2 + (high.deviation or 0.0) ** 2) ** 0.5
    single = min(low.count, high.count) == 1
    within = deviation > 0 and abs(margin) <= deviation
    held = margin >= -deviation if claim.ties else None if within else margin > 0
    return Verdict(margin, held, within, single)
