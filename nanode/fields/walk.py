"""The modules inside a module and what they are like, found quickly."""

from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from nanode.tracing import traced


def parts_of(module: nn.Module) -> list[nn.Module]:
    """``list(module.modules())``, in less than half of the time.

    torch's is a generator in a generator for every level. What a solve asks of its field anew each
    time (modules can change) is all that stands between two replays of a captured one.
    """
    if traced():
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


def replaced(
    module: nn.Module, kinds: tuple[type[nn.Module], ...], by: Callable[[Any], nn.Module]
) -> nn.Module:
    """The module with every part of some kinds replaced, one used twice by one replacement.

    All are made before the first is put in: where ``by`` raises, the module stays as it was. What
    is inside a part of these kinds is left alone.
    """
    others: dict[nn.Module, nn.Module] = {}
    places: list[tuple[nn.Module, str, nn.Module]] = []

    def visit(part: nn.Module) -> None:
        # named_children() would leave out the second place of a part used twice.
        for name, child in part._modules.items():
            if isinstance(child, kinds):
                if child not in others:
                    others[child] = by(child)
                if others[child] is not child:
                    places.append((part, name, others[child]))
            elif child is not None:
                visit(child)

    whole = nn.ModuleList([module])  # where the module itself has a place
    visit(whole)
    for parent, name, other in places:
        setattr(parent, name, other)
    return whole[0]


#: Settings that schedules change while a network trains.
_SCHEDULED = ("p", "eps", "momentum")


def traits(modules: Sequence[nn.Module]) -> tuple[Any, ...]:
    """What evaluations depend on beside tensors: modules, modes, hooks, settings that change.

    Modules stand for themselves: another one in the place of one makes other traits, and no id is
    given a second time.
    """
    found = [part.__dict__.get(name) for part in modules for name in _SCHEDULED]
    settings = tuple(v for v in found if v is not None and isinstance(v, int | float))
    return tuple(modules), tuple(part.training for part in modules), hooks(modules), settings


def hooks(modules: Sequence[nn.Module]) -> tuple[int, ...]:
    """The numbers of all hooks, which torch gives once each."""
    kinds = (
        kind
        for m in modules
        for kind in (
            m._forward_pre_hooks,
            m._forward_hooks,
            m._backward_pre_hooks,
            m._backward_hooks,
        )
    )
    return tuple(number for kind in kinds if kind for number in kind)
