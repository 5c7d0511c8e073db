"""The interface of a field: the right-hand side of dx/dt = f(t, x), its weights apart."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from nanode.fields.functions import by_position
from nanode.fields.norms import norms_in
from nanode.fields.running_statistics import refuse_running_statistics
from nanode.fields.swap import Lender, alone
from nanode.stages import Side, Stage, Stages
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
