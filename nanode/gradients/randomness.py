"""Drawing the same random numbers twice."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor


def random_state(device: torch.device) -> list[Tensor]:
    """The states of the generators that an evaluation may draw from."""
    states = [torch.get_rng_state()]
    if (own := _generator(device)) is not None:
        states.append(own.get_rng_state(device))
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


@contextmanager
def undrawn(devices: Iterable[torch.device]) -> Iterator[None]:
    """What is drawn in here, on these devices or the host, is as if it hadn't been."""
    states = {device: random_state(device) for device in {torch.device("cpu"), *devices}}
    try:
        yield
    finally:
        for device, state in states.items():
            _set_random_state(state, device)


def equal_states(one: list[Tensor], other: list[Tensor]) -> bool:
    """Whether nothing was drawn between the two."""
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def _set_random_state(states: list[Tensor], device: torch.device) -> None:
    torch.set_rng_state(states[0])
    if (own := _generator(device)) is not None:
        own.set_rng_state(states[1], device)


def _generator(device: torch.device) -> Any:
    """The module of a device with random numbers of its own, such as ``torch.cuda``."""
    module = getattr(torch, device.type, None)
    return module if hasattr(module, "get_rng_state") else None
