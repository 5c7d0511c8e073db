"""Drawing the same random numbers twice."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


def random_state(device: torch.device) -> list[Tensor]:
    """The states of the generators that an evaluation may draw from."""
    states = [torch.get_rng_state()]
    if device.type == "cuda":
        states.append(torch.cuda.get_rng_state(device))
    return states


@contextmanager
def as_drawn(states: list[Tensor] | None, device: torch.device) -> Iterator[Callable[[], bool]]:
    """With the random numbers that follow these states, if any; restored afterwards.

    Gives a function that says whether any were drawn so far.
    """
    if states is None:
        yield lambda: False
        return
    now = random_state(device)
    _set_random_state(states, device)
    try:
        yield lambda: not equal_states(states, random_state(device))
    finally:
        _set_random_state(now, device)


def equal_states(one: list[Tensor], other: list[Tensor]) -> bool:
    """Whether nothing was drawn between the two."""
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def _set_random_state(states: list[Tensor], device: torch.device) -> None:
    torch.set_rng_state(states[0])
    if len(states) > 1:
        torch.cuda.set_rng_state(states[1], device)
