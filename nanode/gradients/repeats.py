"""Whether evaluations that are made again for a backward pass give what they gave at first.

They don't where the field reads what has changed meanwhile, such as an attribute that is set anew
before every solve; gradients are then wrong, and nothing else would say so.
"""

import warnings
from collections.abc import Iterable, Sequence
from functools import lru_cache
from weakref import WeakKeyDictionary, WeakSet

import numpy as np
import torch
from torch import Tensor

from nanode.fields.field import Field
from nanode.gradients.snapshot import is_plain

Tensors = Sequence[Tensor]

#: So many passes of a field are looked at on a GPU, which has to be waited for; all on the host.
TRIALS = 3
#: How many numbers of a state are looked at where it isn't kept.
SAMPLE = 16

_seen: WeakKeyDictionary[Field, int] = WeakKeyDictionary()
_warned: WeakSet[Field] = WeakSet()


def looked_at(field: Field, x: Tensors) -> bool:
    """Whether this pass of the field is one to look at."""
    if not all(map(is_plain, x)) or field in _warned:
        return False
    device = x[0].device
    if device.type == "cpu":
        return True
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        return False
    _seen[field] = _seen.get(field, 0) + 1
    return _seen[field] <= TRIALS


def sample(state: Tensors) -> Tensors:
    """A few numbers of each part of a state, on the host."""
    return [_some(part.detach()).cpu() for part in state]


def _some(part: Tensor) -> Tensor:
    if part.ndim == 0 or not part.numel():
        return part.reshape(-1)
    # Not by one flat index: to flatten a state may be to copy it.
    places = (torch.from_numpy(place).to(part.device) for place in _spread(part.shape))
    return part[tuple(places)]


@lru_cache(64)
def _spread(shape: torch.Size) -> tuple[np.ndarray, ...]:
    """Indices of the first number, the last, and some between."""
    numel = shape.numel()
    count = min(SAMPLE, numel)
    flat = [i * (numel - 1) // max(1, count - 1) for i in range(count)]
    return tuple(np.ascontiguousarray(place) for place in np.unravel_index(flat, shape))


def differ(
    found: Tensors, expected: Tensors, begin: Tensors, halves: bool, others: Iterable[Tensor]
) -> float | None:
    """How far a piece of a solve, run again from where it began, ends from where it did.

    As a share of the way it went; None where that may be rounding, of which there is more with f in
    half precision (``halves``), and as much as the largest of the states has, ``others`` included.
    """
    pieces = [
        tuple(part.detach() for part in parts) for parts in zip(found, expected, begin, strict=True)
    ]
    if all(torch.equal(now, then) for now, then, _ in pieces):
        return None
    size = max(float(part.norm()) for part in (*expected, *begin, *others))
    for now, then, start in pieces:
        far, way = float((now - then).norm()), float((then - start).norm())
        coarse = halves or then.dtype in (torch.float16, torch.bfloat16)
        if far > (0.1 if coarse else 0.01) * way + 1e3 * torch.finfo(then.dtype).eps * size:
            return far / way if way else float("inf")
    return None


def warn(share: float, field: Field, method: object, hint: str = "") -> None:
    """Say so, once a field."""
    _warned.add(field)
    warnings.warn(
        f"{type(method).__name__} evaluated the field again for the backward pass and came to "
        f"other states, {share:.0%} of the way off, so gradients are wrong. What the field reads "
        f"has changed, such as an attribute that is set anew before a solve or by an "
        f"evaluation{hint}; pass it as conditioning, or use gradient=nanode.Backprop()",
        stacklevel=2,
    )
