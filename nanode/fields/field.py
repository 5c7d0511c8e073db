"""The interface of a field: the right-hand side of dx/dt = f(t, x), its weights apart."""

import inspect
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from types import FunctionType, MethodType
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from nanode.fields.norms import CONVERTED, norms_in
from nanode.fields.swap import Lender, alone
from nanode.stages import Side, Stage, Stages
from nanode.tracing import traced
from nanode.trajectories.trajectory import Named


@dataclass(frozen=True)
class Weights:
    """The weights of a whole solve: ``moving`` ones have a leading axis over its stages."""

    moving: Named
    constant: Named

    def rows(self, count: int) -> list[Named]:
        """The weights of each of so many stages, as views."""
        if not self.moving:
            return [self.constant] * count
        # unbind, not indexing: its gradient is one stack, where every index would fill a table.
        columns = [table.unbind(0) for table in self.moving.values()]
        return [
            dict(zip(self.moving, row, strict=True)) | self.constant
            for row in zip(*columns, strict=True)
        ]

    def at(self, i: int) -> Named:
        """The weights of stage i, as views."""
        return {name: table[i] for name, table in self.moving.items()} | self.constant


class Field(nn.Module, ABC):
    """dx/dt = f(t, x): called ``field(t, x)`` by a person, in two parts by a solver.

    A solver asks once for the ``weights`` of all its stages, then for one ``evaluate`` a stage with
    that stage's weights. Inputs beyond x (``conditioning``) are passed through.
    """

    #: Where the field is defined in time; None means everywhere.
    interval: tuple[float, float] | None = None
    #: Times where the field or one of its derivatives jumps.
    breakpoints: tuple[float, ...] = ()
    #: Those breakpoints where the field itself jumps.
    jumps: tuple[float, ...] = ()

    @abstractmethod
    def weights(self, stages: Stages) -> Weights:
        """All weights that the evaluations of a solve need."""

    @abstractmethod
    def weights_at(self, t: float | Tensor, side: Side = "right") -> Named:
        """The weights at one time, differentiable in t."""

    @abstractmethod
    def evaluate(self, weights: Named, stage: Stage, x: Any, *conditioning: Any) -> Any:
        """f at one stage, with the weights of that stage."""

    def placed(self, x: Any, conditioning: tuple[Any, ...], named: Mapping[str, Any]) -> Any:
        """Conditioning of which some was given by name, all by position."""
        raise TypeError(
            f"{type(self).__name__} takes further inputs by position, got {', '.join(named)} by "
            "name"
        )

    def state_dict(self, *args: Any, **keywords: Any) -> Any:
        """As for every module; never with weights that are lent to another thread's call."""
        with alone(self):
            return super().state_dict(*args, **keywords)

    def forward(self, t: float | Tensor, x: Any, *conditioning: Any) -> Any:
        """f(t, x)."""
        return self.evaluate(self.weights_at(t), Stage.alone(t), x, *conditioning)


class ModuleField(Field):
    """A field that is one module, called with the weights of each evaluation."""

    module: nn.Module
    #: Whether the module is called as m(t, x), with t a tensor as torchdiffeq gives it.
    takes_time: bool = False
    _lender: Lender

    def placed(self, x: Any, conditioning: tuple[Any, ...], named: Mapping[str, Any]) -> Any:
        """In the order of the module's own arguments."""
        first = (0.0, x) if self.takes_time else (x,)
        return by_position(self.module, first, conditioning, named)

    def evaluate(self, weights: Named, stage: Stage, x: Any, *conditioning: Any) -> Any:
        """The module at x, with these weights."""
        inputs = (time_of(stage, x), x) if self.takes_time else (x,)
        with self._lender.lend(weights, stage):
            return self.module(*inputs, *conditioning)


class ConstantField(ModuleField):
    """A field whose weights don't move."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        check_norms(module)
        self._lender = Lender(module, moving=())

    def weights(self, stages: Stages) -> Weights:
        """The module's parameters, as they are."""
        return Weights(moving={}, constant=self._lender.constant(self.module))

    def weights_at(self, t: float | Tensor, side: Side = "right") -> Named:
        """The module's parameters, as they are."""
        return self._lender.constant(self.module)


class Autonomous(ConstantField):
    r"""A field that doesn't know the time, :math:`f(t, x) = m(x)`.

    >>> import nanode, torch
    >>> field = nanode.Autonomous(torch.nn.Linear(3, 3))
    >>> x = torch.randn(2, 3)
    >>> torch.equal(field(0.2, x), field(0.9, x))
    True
    """

    def __init__(self, module: nn.Module) -> None:
        check_module(type(self).__name__, module)
        super().__init__(module)


class Callback(ConstantField):
    """Any callable f(t, x, *conditioning), as other ODE libraries take.

    A module's parameters are known to the solve; a plain function has none, and what it closes over
    gets gradients only by ``Backprop`` (other gradient methods raise). So give a module itself, not
    its ``forward``, whose parameters a block wouldn't have.
    """

    takes_time = True

    def __init__(self, function: Callable[..., Any]) -> None:
        module = function if isinstance(function, nn.Module) else _Function(function)
        super().__init__(module)
        #: Where the weights of fields that it calls jump, of which a solver knows nothing.
        self.hidden_jumps = _jumps_in(
            list(module.modules()) if module is function else _named(function)
        )


def time_of(stage: Stage, x: Any) -> Tensor:
    """The time of an evaluation as a tensor."""
    return stage.time if isinstance(stage.time, Tensor) else time_for(x, stage.time)


def time_for(x: Any, t: float) -> Tensor:
    """A time as a tensor, of x's precision and where x is."""
    like = next(part for part in tree_leaves(x) if isinstance(part, Tensor))
    # Filled on the device: a copy from the host would make a GPU wait.
    # Not dtype.to_real(), which torch.compile can't trace.
    dtype = like.real.dtype if like.is_complex() else like.dtype
    return torch.full((), t, dtype=dtype, device=like.device)


#: The plain norms that a function calls, found at its first evaluation. Not an attribute: copies of
#: a function are the function, and copies of its norms would be others.
_NORMS: WeakKeyDictionary["_Function", list[Any]] = WeakKeyDictionary()


class _Function(nn.Module):
    """A plain function in a module's clothes."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Any) -> Any:
        if traced():
            return self.function(*inputs)
        if self not in _NORMS:
            _NORMS[self] = [part for part in _reached(self.function) if _tracks(part)]
        norms = [norm for norm in _NORMS[self] if norm.training]
        before = [norm.num_batches_tracked._version for norm in norms]
        value = self.function(*inputs)
        for norm, version in zip(norms, before, strict=True):
            if norm.num_batches_tracked._version != version:
                raise ValueError(_mixing("a module that the function calls", norm))
        return value


def _reached(function: Callable[..., Any]) -> Iterator[nn.Module]:
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
        elif isinstance(value, dict):
            ahead += value.values()
        elif isinstance(value, list | tuple | set):
            ahead += value
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


def as_field(field: Any) -> Field:
    """A field as it is; any other callable f(t, x) as a field."""
    if isinstance(field, Field):
        return field
    if isinstance(field, nn.Module) and not takes_two(field):
        raise ValueError(
            f"a field is called as f(t, x), and {type(field).__name__} takes x alone; use "
            "nanode.Autonomous(module), or nanode.TimeVarying(module, basis) for weights that move"
        )
    if callable(field):
        warn_of_order(field, depth=4)
        return Callback(field)
    raise ValueError(f"expected a Field or a callable f(t, x), got {type(field).__name__}")


def by_position(
    module: nn.Module,
    first: tuple[Any, ...],
    conditioning: tuple[Any, ...],
    named: Mapping[str, Any],
) -> tuple[Any, ...]:
    """A module's inputs behind the first ones, of which some were given by name."""
    module = getattr(module, "_orig_mod", module)  # what torch.compile has wrapped
    kind, function = type(module).__name__, module.forward
    if isinstance(module, _Function):
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


#: What parameters that take the time are called.
_TIMES = ("t", "s", "tau", "time", "ts", "times")


def _jumps_in(parts: Sequence[nn.Module]) -> tuple[float, ...]:
    """Where the weights of fields among these modules jump."""
    # Those of a block (which can't be named here) are solved by it, and so is all inside of them.
    blocks = [part for part in parts if hasattr(part, "solver")]
    solved = [
        field for block in blocks if isinstance(field := getattr(block, "field", None), Field)
    ]
    known = {inside for field in solved for inside in field.modules()}
    fields = [part for part in parts if isinstance(part, Field) and part not in known]
    return tuple(sorted({t for field in fields for t in field.jumps}))


def _named(function: Callable[..., Any]) -> list[nn.Module]:
    """The modules that a plain function's own code names, and those inside them."""
    if not isinstance(function, FunctionType):
        return []
    values = [function.__globals__.get(name) for name in function.__code__.co_names]
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # empty so far
            values.append(cell.cell_contents)
    return [part for value in values if isinstance(value, nn.Module) for part in value.modules()]


def check_module(kind: str, module: Any) -> None:
    """Refuse what a kind of field can't be made of."""
    if not isinstance(module, nn.Module):
        raise ValueError(f"{kind} makes a field of a module, got {module!r}")
    if isinstance(module, Field):
        raise ValueError(
            f"{kind} makes a field of a module, got {type(module).__name__}, which is a field "
            "already; use it as it is, or wrap the module inside it"
        )


def check_norms(module: nn.Module) -> None:
    """Refuse norms whose running statistics would mix the evaluations of a solve."""
    for name, part in module.named_modules():
        if isinstance(part, Field) and norms_in(part):
            raise ValueError(
                f"{name} is a field inside a field and has a BatchNorm, whose statistics would be "
                "those of one evaluation of either solve; use GroupNorm or LayerNorm in it"
            )
    refuse_running_statistics(module)


def refuse_running_statistics(module: nn.Module) -> None:
    """Refuse norms that keep one set of statistics for all evaluations."""
    for name, part in module.named_modules():
        if isinstance(part, nn.modules.batchnorm._NormBase) and part.track_running_stats:
            raise ValueError(_mixing(name or "the module", part))


def _mixing(name: str, norm: nn.Module) -> str:
    return (
        f"{name} is a {type(norm).__name__} with running statistics: in a field it is evaluated "
        "many times a solve, so one set of statistics would mix all times, and recomputation would "
        f"update it twice. {_instead(norm)}."
    )


def _instead(norm: nn.Module) -> str:
    """What can stand in a field for a norm with running statistics."""
    if isinstance(norm, CONVERTED):
        return (
            "Use nanode.BatchNorm (one set per evaluation), nanode.convert_norms(module), "
            "GroupNorm or LayerNorm, or pass track_running_stats=False"
        )
    if isinstance(norm, nn.SyncBatchNorm):
        return (
            "Pass track_running_stats=False, or use GroupNorm, LayerNorm or nanode.BatchNorm (one "
            "set per evaluation, of each process's own batch) in its place: "
            "nanode.convert_norms(module) leaves a SyncBatchNorm as it is"
        )
    return (
        "Pass track_running_stats=False, or use GroupNorm or LayerNorm in its place: "
        f"nanode.convert_norms(module) leaves {type(norm).__name__} as it is"
    )
