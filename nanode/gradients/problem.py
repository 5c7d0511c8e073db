"""One solve, stated: the field, the stepper, the grid, and how f is called at a stage."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from numbers import Real
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from nanode.fields.field import Field, Weights
from nanode.fields.swap import taken, turns_of
from nanode.gradients.precision import autocast_of
from nanode.solvers.grid import Grid
from nanode.solvers.stepper import Carry, Evaluate, State, Stepper
from nanode.stages import Stage, Stages
from nanode.tracing import traced
from nanode.trajectories.trajectory import Named
from nanode.values import finite

#: What is done to the weights of a solve before they are handed out.
Prepare = Callable[[Weights], Weights]

CHANGED = (
    "the field changed x in place, which would corrupt the state; make its first operation out of "
    "place (nn.ReLU() instead of nn.ReLU(inplace=True))"
)


def as_they_are(weights: Weights) -> Weights:
    """No preparation."""
    return weights


@dataclass
class Evaluations:
    """How often a solve evaluated its field."""

    forward: int = 0
    backward: int = 0


@dataclass(frozen=True)
class Plan:
    """What a solve needs to know before it sees x; made once and used for any number of solves."""

    field: Field
    stepper: Stepper
    grid: Grid
    stages: Stages
    #: Of the stages.
    times: tuple[float, ...]
    widths: tuple[float, ...]
    #: The grid points whose states are wanted, in order; point 0 is x itself.
    wanted: tuple[int, ...]
    check_finite: bool = False

    @cached_property
    def stages_backwards(self) -> Stages:
        """The evaluations of the same steps taken backwards, with what is kept beside them."""
        return self.grid.reversed().stages(self.stepper)


@dataclass
class Problem:
    """A plan and the structure of one x and its conditioning."""

    plan: Plan
    structure: TreeSpec
    conditioning: "Conditioning"
    evaluations: Evaluations
    #: Evaluates in place of the field's own code: compiled, and drawing no random numbers.
    evaluator: Callable[[Named, Stage, State, tuple[Any, ...]], State] | None = None
    #: Whether x, the states made from it and the incoming gradients may be overwritten, as in a
    #: captured solve, whose memory is filled anew for every pass.
    owned: bool = False
    #: Those of the field, as they are now.
    modules: Sequence[nn.Module] = ()
    #: Whether norms in eval mode have statistics of another grid, which they interpolate.
    interpolates: bool = False
    #: What is done to the weights before they are handed out.
    prepare: Prepare = as_they_are

    def evaluate(
        self, stages: Stages, i: int, weights: Named, x: State, conditioning: tuple[Any, ...]
    ) -> State:
        """f at stage i, checked to be a derivative of x."""
        if self.evaluator is not None:
            return self.evaluator(weights, stages[i], x, conditioning)
        field = self.plan.field
        return evaluate_checked(field, self.structure, weights, stages[i], x, conditioning)

    def open(self, f: Callable[[int, State], State], x: State) -> Carry:
        """What the first step starts from; ``f`` takes stage indices."""
        return self.plan.stepper.start(self.local(f, 0), x)

    def march(
        self,
        f: Callable[[int, State], State],
        carry: Carry,
        visit: Callable[[int, Carry], None],
        first: int = 0,
        last: int | None = None,
    ) -> Carry:
        """Steps ``first`` up to ``last``, telling ``visit`` each point reached."""
        plan = self.plan
        for k in range(first, plan.grid.steps if last is None else last):
            carry = plan.stepper.step(self.local(f, k), plan.widths[k], carry)
            if plan.check_finite:
                self._check_finite(k, carry[0])
            visit(k + 1, carry)
        return carry

    def local(self, f: Callable[[int, State], State], k: int) -> Evaluate:
        """f of stage indices as the stepper sees it in step k."""
        base = self.plan.stepper.first_stage(k)
        return lambda j, x: f(base + j, x)

    def _check_finite(self, k: int, x: State) -> None:
        if not all(bool(torch.isfinite(part).all()) for part in x):
            points = self.plan.grid.points
            raise ValueError(
                f"the state is not finite after step {k} of {self.plan.grid.steps}, from t = "
                f"{float(points[k]):.6g} to t = {float(points[k + 1]):.6g}"
            )


def own_parameters(field: Field) -> Named:
    """The field's parameters by name; never weights lent to an evaluation in another thread."""
    with taken(turns_of(field)):
        return dict(field.named_parameters())


def evaluate_checked(
    field: Field,
    structure: TreeSpec,
    weights: Named,
    stage: Stage,
    x: State,
    conditioning: tuple[Any, ...],
    watched: bool = False,
) -> State:
    """f at a stage, checked to be a derivative of x and to have left x alone.

    ``watched`` says that the caller sees to the latter.
    """
    versions: list[int] | None = None
    if not watched and has_versions(x):
        versions = [part._version for part in x]
    elif not watched and any(getattr(part, "inplace", False) for part in field.modules()):
        x = tuple(part.clone() for part in x)  # which may be changed
    value = field.evaluate(weights, stage, tree_unflatten(x, structure), *conditioning)
    slopes, found = tree_flatten(value)
    if found != structure:
        slopes, found = _in_order(value, structure) or (slopes, found)
    if found != structure or any(
        not isinstance(slope, Tensor) or slope.shape != part.shape
        for slope, part in zip(slopes, x, strict=True)
    ):
        raise ValueError(
            f"the field must return dx/dt in the shape of x: expected {_shapes(x, structure)}, "
            f"got {_shapes(slopes, found)}"
        )
    for slope, part in zip(slopes, x, strict=True):
        if slope.is_complex() and not part.is_complex():
            raise ValueError(
                f"the field returned dx/dt of {slope.dtype} for a state of {part.dtype}, whose "
                "imaginary part would be lost; give it a complex state, or return the real part"
            )
    if versions is not None and [part._version for part in x] != versions:
        raise ValueError(CHANGED)
    return tuple(slopes)


def has_versions(x: State) -> bool:
    """Whether torch counts changes in place: a tracer, inference mode and vmap don't."""
    return not traced() and not any(
        part.is_inference() or torch._C._functorch.is_functorch_wrapped_tensor(part) for part in x
    )


class Conditioning:
    """Extra inputs of the field: tensors that get gradients, and anything else as it is."""

    def __init__(self, values: tuple[Any, ...]) -> None:
        leaves, self.structure = tree_flatten(values)
        self.tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        #: What isn't a tensor, with its type (1 == True); None for tensors.
        self.others = tuple(
            None if isinstance(leaf, Tensor) else (type(leaf), leaf) for leaf in leaves
        )

    def rebuilt(self, tensors: list[Tensor] | tuple[Tensor, ...]) -> tuple[Any, ...]:
        """The same values with other tensors."""
        supply = iter(tensors)
        leaves = [next(supply) if other is None else other[1] for other in self.others]
        values: tuple[Any, ...] = tree_unflatten(leaves, self.structure)
        return values

    def forget(self) -> "Conditioning":
        """The structure alone, for a backward pass that is handed the tensors."""
        bare = object.__new__(Conditioning)
        bare.__dict__.update(self.__dict__, tensors=[])
        return bare


def _in_order(value: Any, structure: TreeSpec) -> tuple[list[Any], TreeSpec] | None:
    """The parts of a value whose dicts name the same keys in another order."""
    try:
        parts = structure.flatten_up_to(value)
    except ValueError:
        return None
    return (parts, structure) if all(isinstance(part, Tensor) for part in parts) else None


def _shapes(parts: Any, structure: TreeSpec) -> Any:
    shapes = [tuple(p.shape) if isinstance(p, Tensor) else type(p).__name__ for p in parts]
    return tree_unflatten(shapes, structure)


def checked_state(parts: list[Any], modules: Iterable[nn.Module]) -> State:
    """The state's tensors, in the precision that a state needs, on the device of these modules."""
    if not parts or not all(isinstance(part, Tensor) for part in parts):
        raise ValueError(
            "the state must be a tensor, or a tuple or dict of tensors, got "
            f"{[type(part).__name__ for part in parts]}"
        )
    for part in parts:
        if not (part.is_floating_point() or part.is_complex()):
            raise ValueError(f"the state must be floating point, got {part.dtype}")
    devices = {part.device for part in parts}
    devices |= {
        parameter.device
        for module in modules
        for parameter in module._parameters.values()
        if parameter is not None
    }
    if len(devices) > 1:
        raise ValueError(
            f"the state and the field must be on one device, got {sorted(map(str, devices))}; "
            "move one of them with .to(device)"
        )
    enabled, _ = autocast_of(parts[0].device)
    if enabled:
        # Under autocast f runs in half precision; a state that small steps add up in must not.
        halves = (torch.float16, torch.bfloat16)
        parts = [part.float() if part.dtype in halves else part for part in parts]
    return tuple(parts)


def check_scale(scale: float) -> None:
    """Raise unless the scale is a number."""
    if not isinstance(scale, Real) or not finite(scale):
        raise ValueError(f"scale must be a finite number and no tensor, got {scale!r}")
