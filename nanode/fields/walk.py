"""The modules inside a module, found quickly."""

import torch
from torch import nn


def parts_of(module: nn.Module) -> list[nn.Module]:
    """``list(module.modules())``, in a quarter of the time.

    torch's is a generator in a generator for every level. What a solve asks of its field anew each
    time (modules can change) is all that stands between two replays of a captured one.
    """
    if torch.compiler.is_compiling():
        return list(module.modules())
    found: dict[nn.Module, None] = {}
    ahead: list[nn.Module | None] = [module]
    while ahead:
        part = ahead.pop()
        if part is not None and part not in found:
            found[part] = None
            if part._modules:
                ahead.extend(reversed(part._modules.values()))
    return list(found)
