"""Whether evaluations that are made again for a backward pass give what they gave at first.

They don't where the field reads what has changed meanwhile, such as an attribute that is set anew
before every solve; gradients are then wrong, and nothing else would say so.
"""

import warnings
from collections.abc import Sequence
from functools import lru_cache
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from nanode.fields.field import Field

Tensors = Sequence[Tensor]

#: So many passes of a field are looked at on a GPU, which has to be waited for; all on the host.
TRIALS = 3
#: How many numbers of a state are looked at where it isn't kept.
SAMPLE = 16

_seen: WeakKeyDictionary[Field, int] = WeakKeyDictionary()


def looked_at(field: Field, device: torch.device) -> bool:
    """Whether this pass of the field is one to look at."""
    if device.type in ("cpu", "meta"):
        return device.type == "cpu"
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        return False
    _seen[field] = _seen.get(field, 0) + 1
    return _seen[field] <= TRIALS


def sample(state: Tensors) -> Tensors:
    """A few numbers of each part of a state, kept on the host."""
    return tuple(torch.take(part.detach(), _places(part)).cpu() for part in state)


def _places(part: Tensor) -> Tensor:
    return _spread(part.numel(), part.device)


@lru_cache(64)
def _spread(count: int, device: torch.device) -> Tensor:
    with torch.inference_mode(False):
        return torch.linspace(0, max(0, count - 1), min(SAMPLE, count)).long().to(device)


def compare(
    found: Tensors, expected: Tensors, begin: Tensors, coarse: bool, method: object, hint: str = ""
) -> None:
    """Warn if a piece of a solve, run again from where it began, ends somewhere else.

    ``coarse`` says that f is in half precision, of which more may be rounding.
    """
    for parts in zip(found, expected, begin, strict=True):
        now, then, start = (part.detach() for part in parts)
        if torch.equal(now, then):
            continue
        far, way = float((now - then).norm()), float((then - start).norm())
        size = max(float(then.norm()), float(start.norm()))
        halves = coarse or then.dtype in (torch.float16, torch.bfloat16)
        if far > (0.1 if halves else 0.01) * way + 1e3 * torch.finfo(then.dtype).eps * size:
            warnings.warn(
                f"{type(method).__name__} evaluated the field again for the backward pass and came "
                f"to other states: {far / (way or size):.0%} of the way off, and gradients "
                "likewise. What the field reads has changed, such as an attribute that is set "
                f"anew before a solve or by an evaluation{hint}; pass it as conditioning, or use "
                "gradient=nanode.Backprop()",
                stacklevel=2,
            )
            return
