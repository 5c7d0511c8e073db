"""How modules and plain functions are called: in what order, with what, and what they reach."""

import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from types import FunctionType, MethodType
from typing import Any
from weakref import WeakKeyDictionary

from torch import nn

from nanode.fields.running_statistics import mixing
from nanode.tracing import traced

#: The plain norms that a function calls, found at its first evaluation. Not an attribute: copies of
#: a function are the function, and copies of its norms would be others.
_NORMS: WeakKeyDictionary["FunctionModule", list[Any]] = WeakKeyDictionary()


#: Longer containers hold data and no modules: walking through them at every solve would take longer
#: than the solve.
MOST_PARTS = 1000


class FunctionModule(nn.Module):
    """A plain function in a module's clothes."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Any) -> Any:
        """The value; refused if a plain norm that is called has updated its statistics."""
        if traced():
            return self.function(*inputs)
        if self not in _NORMS:
            _NORMS[self] = [part for part in reached(self.function) if _tracks(part)]
        norms = [norm for norm in _NORMS[self] if norm.training]
        before = [norm.num_batches_tracked._version for norm in norms]
        value = self.function(*inputs)
        for norm, version in zip(norms, before, strict=True):
            if norm.num_batches_tracked._version != version:
                raise ValueError(mixing("a module that the function calls", norm))
        return value


def reached(function: Callable[..., Any]) -> Iterator[nn.Module]:
    """The modules that a function can call without being given them, and those inside them.

    What it closes over, is bound to, has as defaults or attributes or finds among its globals, in
    containers, partial functions and other functions of its file too.
    """
    ahead: list[Any] = [function, getattr(function, "__dict__", None), type(function).__call__]
    home = getattr(function, "__globals__", None)
    seen: list[Any] = []  # kept, so that no id is given to another
    known: set[int] = set()
    while ahead:
        value = ahead.pop()
        if id(value) in known:
            continue
        known.add(id(value))
        seen.append(value)
        if isinstance(value, nn.Module):
            yield from value.modules()
        elif isinstance(value, dict | list | tuple | set):
            if len(value) <= MOST_PARTS:
                ahead += value.values() if isinstance(value, dict) else value
        elif isinstance(value, partial):
            ahead += [value.func, value.args, value.keywords]
        elif isinstance(value, MethodType):
            ahead += [value.__self__, getattr(value.__self__, "__dict__", None), value.__func__]
        elif isinstance(value, FunctionType):
            ahead += [value.__defaults__, value.__kwdefaults__]
            for cell in value.__closure__ or ():
                with suppress(ValueError):  # empty so far
                    ahead.append(cell.cell_contents)
            if home is None or value.__globals__ is home:  # not all of torch
                home = value.__globals__
                ahead += [home[name] for name in value.__code__.co_names if name in home]


def _tracks(part: nn.Module) -> bool:
    """Whether a module is a plain norm that counts its calls."""
    if not isinstance(part, nn.modules.batchnorm._BatchNorm):
        return False
    count = part.num_batches_tracked
    return count is not None and not count.is_inference()


def by_position(
    module: nn.Module,
    first: tuple[Any, ...],
    conditioning: tuple[Any, ...],
    named: Mapping[str, Any],
) -> tuple[Any, ...]:
    """A module's inputs behind the first ones, of which some were given by name."""
    module = getattr(module, "_orig_mod", module)  # what torch.compile has wrapped
    kind, function = type(module).__name__, module.forward
    if isinstance(module, FunctionModule):
        kind, function = "function", module.function
    try:
        own = inspect.signature(function)
    except ValueError:  # scripted code, and what isn't Python's, have none
        own = inspect.Signature([inspect.Parameter("named", inspect.Parameter.VAR_KEYWORD)])
    kinds = {p.kind for p in own.parameters.values()}
    if kinds & {inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL}:
        raise TypeError(
            f"the field's {kind} doesn't say where {', '.join(named)} belongs; pass it by position"
        )
    try:
        bound = own.bind(*first, *conditioning, **named)
    except TypeError as why:
        raise TypeError(f"the field's {kind}: {why}") from None
    bound.apply_defaults()  # of what stands between
    if apart := [n for n in named if own.parameters[n].kind is inspect.Parameter.KEYWORD_ONLY]:
        raise TypeError(
            f"the field's {kind} takes {', '.join(apart)} by name only, and a solve passes "
            "further inputs by position"
        )
    return bound.args[len(first) :]


def takes_two(module: nn.Module) -> bool:
    """Whether a module can be called as m(t, x)."""
    try:
        signature = inspect.signature(module.forward)
    except (TypeError, ValueError):  # scripted code has none
        return True
    try:
        signature.bind_partial(0.0, None)  # conditioning may follow
    except TypeError:
        return False
    return True


#: What parameters that take the time are called.
_TIMES = ("t", "s", "tau", "time", "ts", "times")


def warn_of_order(function: Callable[..., Any], depth: int) -> None:
    """Warn of a function whose own names say that it takes x first and then t."""
    if traced():
        return
    called = function.forward if isinstance(function, nn.Module) else function
    try:
        # Its own names: what it wraps may be in another order.
        names = list(inspect.signature(called, follow_wrapped=False).parameters)[:2]
    except Exception:  # whatever a callable of someone's own may do
        return
    names = [name.lower() for name in names]
    if len(names) == 2 and names[1] in _TIMES and names[0] not in _TIMES:
        warnings.warn(
            f"{getattr(function, '__name__', type(function).__name__)} has the parameters "
            f"({', '.join(names)}), but is called as f(t, x): the time comes first",
            stacklevel=depth,
        )
