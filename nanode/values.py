"""Checks of single values that a person writes: what was expected, what came, the way out."""

import json
import math
from collections.abc import Iterable
from difflib import get_close_matches
from numbers import Integral, Real
from typing import Any


def check_choice(name: str, value: object, known: Iterable[str]) -> None:
    """Refuse a value that isn't one of the known names, with the nearest of them.

    >>> check_choice("optimizer.name", "sdg", ["sgd", "adamw"])
    Traceback (most recent call last):
    ValueError: optimizer.name must be one of sgd, adamw; got 'sdg'. Did you mean 'sgd'?
    """
    known = list(known)
    if value not in known:
        raise ValueError(
            f"{name} must be one of {', '.join(known)}; got {value!r}{nearest(value, known)}"
        )


def nearest(value: object, known: Iterable[str]) -> str:
    """The end of a message: which known name may have been meant, if any is near."""
    near = get_close_matches(str(value).lower(), list(known), n=1)
    return f". Did you mean {near[0]!r}?" if near else ""


def finite(value: Any) -> bool:
    """Whether a number is finite also as a float, which ten to the 400 isn't."""
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def check_number(
    name: str,
    value: Any,
    *,
    above: float = -math.inf,
    least: float = -math.inf,
    below: float = math.inf,
    most: float = math.inf,
) -> None:
    """Refuse what is no finite number, or one outside the bounds."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not (number and finite(value) and above < value < below and least <= value <= most):
        bounds = {"above": above, "at least": least, "below": below, "at most": most}
        stated = [f"{word} {bound:g}" for word, bound in bounds.items() if math.isfinite(bound)]
        expected = f"a finite number {' and '.join(stated)}".strip()
        raise ValueError(f"{name} must be {expected}, got {value!r}")


def checked_count(name: str, value: Any, least: int = 1, hint: str = "") -> int:
    """A whole number of at least ``least``, or a ValueError that names it."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}{hint}")
    return int(value)


def checked_positive(name: str, value: Any, hint: str = "") -> float:
    """A finite number above zero as a float, or a ValueError that names it."""
    number = isinstance(value, Real) and not isinstance(value, bool)
    if not number or not finite(value) or value <= 0:
        raise ValueError(f"{name} must be a finite number above 0, got {value!r}{hint}")
    return float(value)


def check_count(name: str, value: Any, least: int = 1) -> None:
    """As ``checked_count``, but plain ints only: YAML and JSON can't hold NumPy's."""
    checked_count(name, value, least)
    if not isinstance(value, int):
        raise ValueError(f"{name} must be a plain int, got {value!r}")


def check_seed(name: str, value: Any) -> None:
    """Refuse what torch's generators can't be seeded with."""
    check_count(name, value, least=0)
    if value >= 2**63:
        raise ValueError(f"{name} must be below 2^63, got {value!r}")


def check_flag(name: str, value: Any) -> None:
    """Refuse what is neither true nor false."""
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be true or false, got {value!r}")


def check_name(name: str, value: Any) -> None:
    """Refuse what is no text, or an empty one."""
    if not isinstance(value, str) or not value:
        raise ValueError(f"{name} must be a name, got {value!r}")


def check_keywords(name: str, value: Any) -> None:
    """Refuse what would not survive being written to YAML or JSON as keywords and read again."""
    try:
        json.dumps(value, allow_nan=False)
        plain = isinstance(value, dict) and all(isinstance(key, str) for key in value)
    except (TypeError, ValueError):
        plain = False
    if not plain:
        raise ValueError(
            f"{name} must map keywords to plain values (numbers, text, true or false, lists), "
            f"got {value!r}"
        )
