"""ODEBlock: a solve as an ordinary module."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nanode.bases import Basis
from nanode.fields import Field, as_field
from nanode.gradients import Compiled, Evaluations, Gradient, Plan
from nanode.gradients.adaptively import check_adaptive, solve_adaptively
from nanode.integrate import (
    Solver,
    as_gradient,
    make_plan,
    resolve_interval,
    solve,
    steps_between,
    wanted_times,
)
from nanode.solvers import Adaptive, Euler, Schedule
from nanode.tracing import traced
from nanode.trajectories.trajectory import Trajectory, kept_values
from nanode.values import checked_count

#: All that a plan is made of; whoever changes one has it made anew.
_SETTINGS = frozenset(
    ("field", "steps", "solver", "gradient", "scale", "interval", "at", "check_finite")
)


class ODEBlock(nn.Module):
    r"""A flow as a layer, :math:`x(t_0) \mapsto x(t_1)` with :math:`\dot x = s f(t, x)`.

    Args:
        field: a ``Field``, or any callable ``f(t, x, *conditioning)``.
        steps: how many equal steps, or a ``Schedule`` (not with an adaptive solver). By default
            one step between each two times of ``at``.
        solver: a stepper (``Euler()`` by default) or ``Adaptive()``.
        gradient: how to differentiate: ``Backprop()`` by default, ``Checkpointed()``,
            ``Reversal()`` …
        scale: s above; ``scale=steps`` on an interval of length 1 makes an Euler step a residual
            layer.
        augment: how many zero features to append to x before the solve (as in augmented neural
            ODEs); the output has them too.
        augment_axis: the axis of x along which they are appended.
        interval: from where to where; by default the ends of ``at``, also of one set later, or else
            the field's own interval, or those of ``steps=Given(...)``, or (0, 1).
        at: times at which states are wanted; the output then has a leading axis.
        check_finite: raise at the first step after which the state isn't finite (with
            ``Adaptive``, at the first time at which f isn't).
        compile: compile the step and its derivative once for all steps, and capture the whole
            solve on a GPU; the first call takes a while, results differ by rounding.

    With one bucket per Euler step and ``scale=steps`` this is a residual network.

    >>> import nanode, torch
    >>> field = nanode.TimeVarying(torch.nn.Linear(4, 4), basis=nanode.Chebyshev(degree=3))
    >>> block = nanode.ODEBlock(
    ...     field, steps=8, solver=nanode.Coupled(nanode.Midpoint()), gradient=nanode.Reversal()
    ... )
    >>> block(torch.randn(2, 4)).shape
    torch.Size([2, 4])
    >>> block.nfe.forward
    32
    """

    #: Whether a setting was changed since the plan was made. A flag that is read at every call, so
    #: that code compiled around the block notices as well.
    _stale = True
    #: Whether the solve runs from the first to the last of ``at``.
    _follows_at = False

    def __init__(
        self,
        field: Field | Callable[..., Any],
        steps: int | Schedule | None = None,
        solver: Solver | None = None,
        gradient: Gradient | None = None,
        *,
        scale: float = 1.0,
        augment: int = 0,
        augment_axis: int = 1,
        interval: tuple[float, float] | None = None,
        at: Sequence[float] | None = None,
        check_finite: bool = False,
        compile: bool = False,
    ) -> None:
        super().__init__()
        self.field = as_field(field)
        self.solver: Solver = solver or Euler()
        self.gradient = as_gradient(gradient)
        if compile:
            self.gradient = Compiled(self.gradient)
        self.scale = scale
        self.augment = checked_count("augment", augment, least=0)
        self.augment_axis = augment_axis
        self.at = at
        self.interval = resolve_interval(self.field, interval, self.at, steps)
        self._follows_at = interval is None and at is not None
        self.check_finite = check_finite
        #: Evaluations in the last solve; ``backward`` counts up as its backward pass runs.
        self.nfe = Evaluations()
        self.steps: int | Schedule | None = None
        self._plan: Plan | None = None
        self.regrid(steps)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "at" and value is not None:
            value = wanted_times(value)
            if self._follows_at:
                self._set_interval(resolve_interval(self.field, None, value))
        if name == "interval":
            self._follows_at = False
        if name in _SETTINGS:
            before = getattr(self, name, None)
            if not (before is value or (type(before) is type(value) and before == value)):
                self._stale = True
        super().__setattr__(name, value)

    def _set_interval(self, interval: tuple[float, float]) -> None:
        """Where the solve runs, by the settings, and not as one of them."""
        object.__setattr__(self, "interval", interval)

    def regrid(self, steps: int | Schedule | None) -> None:
        """Solve with other steps from now on; norm statistics are interpolated to the new grid."""
        # Again: field and interval may be others than the block was made with.
        self._set_interval(resolve_interval(self.field, self.interval, self.at, steps))
        if isinstance(self.solver, Adaptive):
            if steps is not None:
                raise ValueError("an adaptive solver chooses its own steps; leave steps= out")
            check_adaptive(self.field, self.gradient, self.scale)
            self.steps, self._plan, self._stale = None, None, False
            return
        plan = make_plan(
            self.field,
            self.interval,
            steps_between(steps, self.at),
            self.solver,
            self.scale,
            self.at,
            self.check_finite,
        )
        self.gradient.check(plan)
        self.steps, self._plan = steps, plan
        self._stale = False
        self._prepare()

    # Not a property: nn.Module would replace an AttributeError raised in it by one of its own.
    def plan(self) -> Plan | None:
        """The solve by the present settings; None with a solver that chooses its own steps.

        Whoever changes a setting and then has the block traced as a whole (``fullgraph=True``, a
        strict export) calls this in between.
        """
        replaced = self._plan is not None and self._plan.field is not self._modules["field"]
        if self._stale or replaced:
            regrid = torch.compiler.disable(self.regrid) if traced() else self.regrid
            regrid(self.steps)
        return self._plan

    def _prepare(self) -> None:
        """Have the stages keep what is made of them alone, so that no tracer meets it."""
        if self._plan is not None:
            for part in self.field.modules():
                if any(tensor.is_meta for tensor in (*part.parameters(), *part.buffers())):
                    continue  # nothing can be made of it yet
                if isinstance(part, Basis):
                    kept_values(part, self._plan.stages)
                if isinstance(part, Trajectory):
                    part.prepare(self._plan.stages)

    def _apply(self, *args: Any, **keywords: Any) -> Self:
        """As for every module; the stages then keep what they keep as the weights are now."""
        super()._apply(*args, **keywords)
        self._prepare()
        return self

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._prepare()  # copies of stages start without

    def forward(self, x: Any, *conditioning: Any, **named: Any) -> Any:
        """The state at the end of the interval, or at the times of ``at``.

        Further inputs of the field's module may be given by name.
        """
        if named:
            conditioning = self.field.placed(x, conditioning, named)
        x = augmented(x, self.augment, self.augment_axis)
        plan = self.plan()
        if plan is None:
            assert isinstance(self.solver, Adaptive)
            result, evaluations = solve_adaptively(
                self.field,
                x,
                self.interval,
                self.at,
                self.solver,
                self.gradient,
                conditioning,
                self.scale,
                self.check_finite,
            )
        else:
            result, evaluations = solve(
                plan, self.gradient, x, conditioning, stacked=self.at is not None
            )
        if not traced():
            self.nfe = evaluations
        return result

    def extra_repr(self) -> str:
        """The settings of the solve."""
        return (
            f"steps={self.steps}, solver={self.solver!r}, gradient={self.gradient!r}, "
            f"scale={self.scale}, interval={self.interval}"
        )


def augmented(x: Any, features: int, axis: int) -> Any:
    """x with so many zero features more along an axis."""
    if not features:
        return x
    if not isinstance(x, Tensor):
        raise ValueError(f"augment= needs a tensor as state, got {type(x).__name__}")
    if not -x.ndim <= axis < x.ndim:
        raise ValueError(f"augment_axis={axis} is no axis of a state of shape {tuple(x.shape)}")
    return F.pad(x, [0, 0] * (x.ndim - 1 - axis % x.ndim) + [0, features])


def flows(model: nn.Module) -> dict[str, ODEBlock]:
    """The flows of a model, by name."""
    return {name: part for name, part in model.named_modules() if isinstance(part, ODEBlock)}


@contextmanager
def uncompiled(blocks: Iterable[ODEBlock]) -> Iterator[None]:
    """Blocks by the methods that they would have without ``compile``."""
    own = {block: block.gradient for block in blocks if isinstance(block.gradient, Compiled)}
    for block, gradient in own.items():
        block.gradient = gradient.method
    try:
        yield
    finally:
        for block, gradient in own.items():
            block.gradient = gradient
