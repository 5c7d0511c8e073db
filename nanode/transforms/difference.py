"""Whether two modules differ in more than their parameters and the statistics of their norms."""

from collections.abc import Iterable
from itertools import zip_longest
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrize

from nanode.fields import BatchNorm

#: Buffers of norms, which are found anew or taken over.
STATISTICS = ("running_mean", "running_var")


def _kind(part: nn.Module) -> tuple[type, str]:
    """Class and settings; a parametrised module's own class is made for it alone."""
    return parametrize.type_before_parametrizations(part), part.extra_repr()


#: Attributes that say what has happened to a module so far, not what it does.
_PASSING = ("training", "stage", "times", "updates", "reset_at")


def _settings(part: nn.Module) -> dict[str, Any]:
    """What torch's modules and ours keep in plain attributes, not all of which they show."""
    hooks = {"hooks": len(part._forward_pre_hooks) + len(part._forward_hooks)}
    kind: type = parametrize.type_before_parametrizations(part)
    if kind.__module__.partition(".")[0] not in ("torch", "nanode"):
        return hooks
    return hooks | {
        name: value
        for name, value in vars(part).items()
        if (value is None or isinstance(value, bool | int | float | str | tuple))
        and not name.startswith("_")
        and name not in _PASSING
    }


def _firsts(named: Iterable[tuple[str, Any]]) -> dict[str, str]:
    """All names of things, to the first name of the same."""
    first: dict[int, str] = {}
    return {name: first.setdefault(id(thing), name) for name, thing in named}


def difference(first: nn.Module, other: nn.Module) -> str | None:
    """What a layer has where the first has something else, in words."""
    nothing: tuple[str, None] = ("", None)
    parts, others = (list(m.named_modules(remove_duplicate=False)) for m in (first, other))
    for (name, a), (own, b) in zip_longest(parts, others, fillvalue=nothing):
        where = f" ({name})" if name else ""
        if a is None or b is None or _kind(a) != _kind(b):
            return f"{b} where the first has {a}{where}"
        if name != own:
            return f"a part {own!r} where the first has {name!r}"
        if a.training != b.training:
            modes = ["train mode" if part.training else "eval mode" for part in (b, a)]
            return f"{type(b).__name__} in {modes[0]} where the first has it in {modes[1]}{where}"
        settings, theirs = _settings(a), _settings(b)
        for key in settings | theirs:
            mine, its = settings.get(key), theirs.get(key)
            if mine != its:
                return f"{type(b).__name__} with {key}={its} where the first has {mine}{where}"
    if _firsts(parts) != _firsts(others):
        return "parts that are shared in other places than those of the first"
    of_first, of_other = (
        {
            name: (tuple(p.shape), p.dtype, p.requires_grad)
            for name, p in layer.named_parameters(remove_duplicate=False)
        }
        for layer in (first, other)
    )
    if of_first != of_other:
        return (
            "parameters of other names, shapes or dtypes, or others that are frozen, than the first"
        )
    shared, its_shared = (
        _firsts(layer.named_parameters(remove_duplicate=False)) for layer in (first, other)
    )
    if shared != its_shared:
        return "parameters that are shared in other places than those of the first"
    buffers, its_buffers = dict(first.named_buffers()), dict(other.named_buffers())
    for name in buffers | its_buffers:
        path, _, leaf = name.rpartition(".")
        if leaf in STATISTICS and isinstance(first.get_submodule(path), BatchNorm):
            continue
        ours, its_own = buffers.get(name), its_buffers.get(name)
        if ours is None or its_own is None or ours.dtype != its_own.dtype:
            return f"another buffer {name!r} than the first"
        if not torch.equal(ours, its_own.to(ours.device)):
            return f"another buffer {name!r} than the first"
    return None
