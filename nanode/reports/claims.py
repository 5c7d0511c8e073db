"""Claims about the order of models, judged by measured accuracies."""

from collections.abc import Mapping
from dataclasses import dataclass

from nanode.reports.records import Cell
from nanode.reports.statistics import Noise, Spread, pooled

NOT_MEASURED = "not measured"
#: What the words of a verdict mean.
WORDS = (
    "“Within the spread”, which decides nothing: no larger than t·s·√(1/n₁ + 1/n₂) for n₁ and n₂ "
    "seeds, with the standard deviation s of all rows of a column that have several seeds together "
    "and Student's t for 95 %; rows are taken to vary alike, and independently. “For it” and "
    "“against it”: s isn't known."
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

    #: The smallest lead of a better model over a worse one among the pairs that decide it, in
    #: points; None if not measured.
    margin: float | None
    #: None if it can't be said: not measured, within the spread, or no spread is known.
    held: bool | None
    #: Whether the margin is no larger than chance makes it; None if nobody knows.
    within_spread: bool | None = None
    #: Whether one of the two has a single seed.
    single: bool = False
    #: Whether the claim was that there is no lead.
    ties: bool = False

    def __str__(self) -> str:
        if self.margin is None:
            return NOT_MEASURED
        word = {True: "held", False: "**did not hold**", None: "undecided"}[self.held]
        if self.within_spread is None and self.margin:
            word = "for it" if self.margin > 0 else "against it"
        elif self.ties and self.within_spread:
            word = "no lead found"
        unsure = ", within the spread" if self.within_spread else ""
        few = ", one seed" if self.single else ""
        return f"{word} ({self.margin:+.2f}{unsure}{few})"


def judge(
    claim: Claim, measured: Mapping[str, Spread | None], noise: Noise | None = None
) -> Verdict:
    """Whether a claim held for the models of one column.

    ``noise`` is what a run's accuracy varies by, by default as in all that is given.

    >>> claim = Claim("T beats Auto", better=("t",), worse=("auto",))
    >>> print(judge(claim, {"t": Spread(85.0, 0.5, 3), "auto": Spread(82.5, 0.4, 3)}))
    held (+2.50)
    >>> print(judge(claim, {"t": Spread(85.0, None, 1), "auto": Spread(82.5, None, 1)}))
    for it (+2.50, one seed)
    >>> print(judge(claim, {"t": Spread(85.0, None, 1)}))
    not measured
    """
    found = {name: measured.get(name) for name in (*claim.better, *claim.worse)}
    known = {name: value for name, value in found.items() if value is not None}
    if len(known) < len(found):
        return Verdict(None, None)
    noise = noise or pooled(measured.values())
    pairs = [
        _compared(known[better], known[worse], noise, claim.ties)
        for better in claim.better
        for worse in claim.worse
    ]
    # One pair against it is enough, and then one that decides nothing.
    telling = next(
        group for held in (False, None, True) if (group := [p for p in pairs if p.held is held])
    )
    return min(telling, key=lambda pair: pair.margin or 0.0)


def verdict(
    claim: Claim,
    cells: Mapping[str, Cell],
    noise: Noise | None = None,
    measured: Mapping[str, Spread | None] | None = None,
) -> str:
    """What became of a claim, and which of its runs diverged if all were made.

    By test accuracy, or by what else was ``measured``.
    """
    if measured is None:
        measured = {model: cell.accuracy for model, cell in cells.items()}
    its = {model: cells[model] for model in (*claim.better, *claim.worse)}
    failed = [model for model, cell in its.items() if cell.failed]
    made = all(cell.records for cell in its.values())
    more = f"; failed: {', '.join(failed)}" if failed and made else ""
    return f"{judge(claim, measured, noise)}{more}"


def _compared(better: Spread, worse: Spread, noise: Noise | None, ties: bool) -> Verdict:
    """What becomes of a claim about two models."""
    margin, single = better.mean - worse.mean, 1 in (better.count, worse.count)
    if noise is None:
        return Verdict(margin, None, None, single, ties)
    within = abs(margin) <= noise.undecided(better, worse)
    held = within or margin > 0 if ties else None if within else margin > 0
    return Verdict(margin, held, within, single, ties)
