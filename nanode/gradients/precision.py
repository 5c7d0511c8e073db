"""Evaluating twice in the same precision."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch


def autocast_of(device: torch.device) -> tuple[bool, torch.dtype]:
    """Whether autocast is on, and what it casts to."""
    if device.type == "meta":  # torch knows no autocast there
        return False, torch.bfloat16
    return torch.is_autocast_enabled(device.type), torch.get_autocast_dtype(device.type)


def arithmetic() -> tuple[object, ...]:
    """The process's settings that say by which algorithms a GPU computes, and how exactly."""
    return (
        torch.backends.cuda.matmul.fp32_precision,
        torch.backends.cudnn.conv.fp32_precision,  # type: ignore[attr-defined]
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction,
        torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction,
        torch.backends.cudnn.enabled,
        torch.backends.cudnn.deterministic,
        torch.are_deterministic_algorithms_enabled(),
    )


def as_cast(found: tuple[bool, torch.dtype], device: torch.device) -> AbstractContextManager[Any]:
    """With the autocast that was found, and no cache: what is cast has another life here."""
    enabled, dtype = found
    if device.type == "meta":
        return nullcontext()
    if not (enabled or torch.is_autocast_enabled(device.type)):
        return nullcontext()  # off then and now: entering torch's would take longer than asking
    return torch.autocast(device.type, dtype=dtype, enabled=enabled, cache_enabled=False)
