"""Lending a module other weights for the length of one call.

``with_parameters`` gives a field other parameters, by ``torch.func.functional_call``. For the
weights of one evaluation that won't do: it restores nothing for modules that keep a second
reference to their weights (recurrent layers), and two threads that share the module corrupt each
other. A ``Lender`` does, each call waiting for its turn.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from nanode.fields.walk import parts_of
from nanode.stages import Stage
from nanode.tracing import traced
from nanode.trajectories.trajectory import Reached

T = TypeVar("T")
#: Who has put torch's cache of parametrised weights aside.
_CACHE = threading.RLock()


def with_parameters(
    field: nn.Module, parameters: Mapping[str, Tensor], function: Callable[..., T], *inputs: Any
) -> T:
    """``function(*inputs)`` while the field has these parameters."""
    with alone(field), here():
        named = {f"module.{name}": value for name, value in _everywhere(field, parameters).items()}
        # Ties are among the names already; those that it finds itself it doesn't undo right.
        found: T = torch.func.functional_call(
            Reached(field), named, (function, *inputs), tie_weights=False
        )
    return found


def _everywhere(field: nn.Module, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Parameters by one name for each place that they have, shared ones in all of theirs.

    ``functional_call`` would put a parameter into a module that has two names by both of them, and
    leave it there: what it takes out the second time is what it put in the first time.
    """
    own = dict(field.named_parameters(remove_duplicate=False))
    # A field around this one may have taken some: their places are empty, and no longer shared.
    shared = {id(own[name]): value for name, value in parameters.items() if name in own}
    found = dict(parameters)
    for path, part in field.named_modules():
        for leaf, value in part._parameters.items():
            if id(value) in shared:
                found.setdefault(f"{path}.{leaf}".lstrip("."), shared[id(value)])
    return found


def alone(field: nn.Module) -> AbstractContextManager[Any]:
    """While no other thread evaluates the field, reads its weights or has put others in."""
    if traced():
        return nullcontext()
    return taken(turns_of(field) or [_SWAPS])


def here() -> AbstractContextManager[Any]:
    """With derivatives that are taken inside computed by this thread.

    On a GPU autograd has a thread of its own for them, and this one waits: the backward pass of a
    solve inside a field would wait there for a turn that this thread has.
    """
    return nullcontext() if traced() else torch.autograd.set_multithreading_enabled(False)


class StageAware(nn.Module):
    """A module that needs to know which evaluation of a solve it is part of."""

    #: Set for the length of an evaluation.
    stage: Stage | None = None

    def __init__(self) -> None:
        super().__init__()
        self.stage = None  # there from the start: an attribute that a graph adds compiles it again


class Turn:
    """A lock that copies and pickles as a new one, of a rank above those of the fields inside."""

    def __init__(self, rank: int) -> None:
        self.rank, self.lock = rank, threading.RLock()

    def __reduce__(self) -> tuple[Any, ...]:
        return Turn, (self.rank,)


#: For fields that nothing lends weights to: one thread at a time puts others in.
_SWAPS = Turn(0)


@contextmanager
def taken(turns: Sequence[Turn]) -> Iterator[None]:
    """While nobody else has one of these."""
    with ExitStack() as held:
        if parametrize._cache_enabled:  # first, in all threads: evaluations will put it aside
            held.enter_context(_CACHE)
        for turn in turns:
            held.enter_context(turn.lock)
        yield


def turns_of(field: nn.Module) -> list[Turn]:
    """Those of all that lend weights in a field, or to a part of it from outside."""
    parts = parts_of(field)
    lenders = (part.__dict__.get("_lender") for part in parts)
    inside = {t for lender in lenders if isinstance(lender, Lender) for t in lender.turns}
    return in_order(inside | {part.__dict__["_turn"] for part in parts if "_turn" in part.__dict__})


def in_order(turns: Iterable[Turn]) -> list[Turn]:
    """Each once, in the one order that all threads take them: from outside in, as evaluations."""
    return sorted(set(turns), key=lambda turn: (-turn.rank, id(turn)))


def refuse_lent(module: nn.Module) -> None:
    """Refuse a module whose weights another field has taken."""
    # A whole field inside the module brings its weights along.
    fields = [part for part in module.modules() if hasattr(part, "_lender")]
    cared_for = {part for field in fields for part in field.modules()}
    for part in module.modules():
        if getattr(part, "_lent", False) and part not in cared_for:
            raise ValueError(
                f"a {type(part).__name__} in this module has given its weights to another "
                "field already; wrap a copy (copy.deepcopy before wrapping), or share the field"
            )


def _refuse_fixed(owner: nn.Module, leaf: str, name: str) -> None:
    """Refuse weights that can't have other values for the length of a call, or no gradients."""
    if isinstance(owner, torch.jit.ScriptModule):
        raise ValueError(
            f"{name} belongs to a ScriptModule, which keeps its weights to itself, so they can't "
            "move; wrap the module that it was made of"
        )
    if leaf == "weight" and isinstance(owner, nn.Embedding | nn.EmbeddingBag) and owner.sparse:
        raise ValueError(
            f"{name} is to have sparse gradients, which coefficients of a moving weight can't "
            "have; make the embedding with sparse=False, or leave the weight constant by "
            f"overrides={{{name!r}: None}}"
        )


class Lender:
    """Knows where each named weight of a module lives, and puts others there for one call.

    Weights named in ``moving`` are taken out of the module for good: between calls their place
    holds None.
    """

    def __init__(self, module: nn.Module, moving: Sequence[str]) -> None:
        self.moving = frozenset(moving)
        #: Where weights live; the first name of each, and its own.
        self.places: list[tuple[nn.Module, str, str, str]] = []
        canonical: dict[int, str] = {}
        parts = dict(module.named_modules(remove_duplicate=False))
        for name, parameter in module.named_parameters(remove_duplicate=False):
            first = canonical.setdefault(id(parameter), name)
            path, _, leaf = name.rpartition(".")
            self.places.append((parts[path], leaf, first, name))
        refuse_lent(module)
        for owner, leaf, name, own in self.places:
            if name in self.moving:
                _refuse_fixed(owner, leaf, own)
        for owner, leaf, name, _ in self.places:
            if name in moving:
                owner._parameters[leaf] = None
                owner._lent = True  # type: ignore[assignment]
        self.aware = [part for part in module.modules() if isinstance(part, StageAware)]
        # Whoever lends to the same module waits for the same turn.
        new = Turn(1 + max((turn.rank for turn in turns_of(module)), default=0))
        owners = [*(owner for owner, *_ in self.places), *self.aware]
        self.turns = in_order({owner.__dict__.setdefault("_turn", new) for owner in owners})

    def constant(self, module: nn.Module) -> dict[str, Tensor]:
        """The weights that stay in the field's module; never those lent to another thread's call.

        Raises where a layer whose weights move isn't in the module any more.
        """
        found: dict[str, Tensor] = {}
        with self._taken():
            if self.moving and not traced():
                self._check_owners(module)
            for owner, leaf, name, own in self.places:
                if name not in self.moving:
                    value = getattr(owner, leaf, None)
                    if value is None:
                        raise changed(own)
                    if found.setdefault(name, value) is not value:
                        found[own] = value  # shared at first, and no more
                elif isinstance(owner._parameters.get(leaf), nn.Parameter):
                    raise RuntimeError(
                        f"{own} was given to the module after it was wrapped, where its value at "
                        "each time comes from the field's trajectory; set it before the module is "
                        "wrapped, or set the trajectory's coefficients"
                    )
        return found

    def _check_owners(self, module: nn.Module) -> None:
        """Whose weights move must still be in the module; wrapped by another part, perhaps."""
        there = {*parts_of(module)}
        for owner, _, name, own in self.places:
            if name in self.moving and owner not in there:
                raise changed(own)

    @contextmanager
    def lend(self, weights: Mapping[str, Tensor], stage: Stage) -> Iterator[None]:
        """The module with these weights, at this stage, while the context lasts."""
        with self._taken(), here():
            lent = []  # all there, before any is put
            for owner, leaf, name, own in self.places:
                if leaf not in owner._parameters:
                    raise changed(own)
                lent.append(weights.get(own, weights[name]))
            before = [
                put(owner, leaf, w) for (owner, leaf, *_), w in zip(self.places, lent, strict=True)
            ]
            stages = [part.stage for part in self.aware]
            for part in self.aware:
                part.stage = stage
            try:
                with _uncached() if parametrize._cache_enabled else nullcontext():
                    yield
            finally:
                places = zip(reversed(self.places), reversed(before), strict=True)
                for (owner, leaf, *_), old in places:
                    put(owner, leaf, old)
                for part, earlier in zip(self.aware, stages, strict=True):
                    part.stage = earlier

    def _taken(self) -> AbstractContextManager[Any]:
        # Tracing can't take locks; whoever has a field compiled holds them meanwhile.
        if traced():
            return nullcontext()
        single = len(self.turns) == 1 and not parametrize._cache_enabled
        return self.turns[0].lock if single else taken(self.turns)


@contextmanager
def uncached(field: nn.Module) -> Iterator[None]:
    """With a field's parametrised weights computed here, and none left in torch's cache.

    What one pass of a solve computes has no gradients, or belongs to a graph that it frees.
    """
    if traced() or not parametrize._cache_enabled:
        yield
        return
    with taken(turns_of(field)), here(), _uncached():
        yield


@contextmanager
def _uncached() -> Iterator[None]:
    """Without torch's cache of parametrised weights, which takes no notice of what is lent."""
    cached, parametrize._cache = parametrize._cache, {}
    try:
        yield
    finally:
        parametrize._cache = cached


def changed(name: str) -> RuntimeError:
    """What to say of a weight whose place in the module isn't what it was."""
    return RuntimeError(
        f"{name} is no parameter of the field's module any more; prune, reparametrise or replace "
        "layers before the module is wrapped, or wrap it again"
    )


def put(owner: nn.Module, leaf: str, value: Tensor | None) -> Tensor | None:
    """Set a weight and return the one it replaces."""
    # Into the dict of parameters, so that a module that lists its own in forward finds them all.
    old = owner._parameters[leaf]
    if value is not old:
        owner._parameters[leaf] = value  # type: ignore[assignment]
        if isinstance(owner, nn.RNNBase) and leaf in owner._flat_weights_names:
            # Recurrent layers read their weights from a list of their own.
            owner._flat_weights[owner._flat_weights_names.index(leaf)] = value
    return old
