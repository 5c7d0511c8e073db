"""Any module as a field whose weights are functions of time."""

import copy
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from nanode.bases import Basis
from nanode.fields.field import ModuleField, Weights, check_module, check_norms
from nanode.fields.functions import takes_two, warn_of_order
from nanode.fields.swap import Lender, alone, refuse_lent
from nanode.stages import Side, Stages
from nanode.trajectories import (
    Expansion,
    Form,
    GivensWalk,
    Joined,
    Orthogonal,
    Start,
    Trajectory,
    TrajectoryFactory,
    Untied,
)
from nanode.trajectories.trajectory import Named
from nanode.values import check_flag

#: How a weight moves: a basis, a kind of trajectory, or None to leave it constant.
Motion = Basis | TrajectoryFactory | None


class TimeVarying(ModuleField):
    r"""A module whose weights move, :math:`f(t, x) = m(x; \theta(t; \alpha))`.

    The module may be anything: its parameters move out into ``trajectory``, under their own names,
    and come back at each evaluation. Parameters left constant stay in ``module``, and so do
    buffers.

    Args:
        module: maps x (and conditioning) to dx/dt. It is taken over, not copied.
        basis: the functions of time that every weight is expanded in.
        start: where the coefficients start; by default the module's own values, constant in t.
            ``"untied"`` draws the module anew for each bucket.
        weights: another kind of trajectory in place of ``basis``: a callable that makes one from
            named tensors, such as ``nanode.Hypernetwork``.
        overrides: by the name of a parameter or submodule, or a pattern with ``*`` (of submodules
            where it fits no parameter): another basis or trajectory for some weights, or None to
            leave them constant in time. Where several match, the last one counts.
        orthogonal: keeps moving matrices and kernels orthogonal by a form such as
            ``nanode.Householder()``: all of them, or some, by name as in ``overrides`` (None
            leaves some out). What has one axis (biases, most parameters of norms) moves as without.
        takes_time: calls the module as m(t, x), for an f that depends on t besides its weights; t
            is a tensor of x's precision.

    With a constant basis this is ``Autonomous(module)``.

    >>> import nanode, torch
    >>> from torch import nn
    >>> module = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4))
    >>> field = nanode.TimeVarying(
    ...     module, basis=nanode.Trigonometric(order=2), overrides={"*.bias": None}
    ... )
    >>> field(0.5, torch.randn(3, 4)).shape
    torch.Size([3, 4])
    >>> sorted(name for name, _ in field.named_parameters())  # doctest: +NORMALIZE_WHITESPACE
    ['module.0.bias', 'module.2.bias',
     'trajectory.coefficients.0.weight', 'trajectory.coefficients.2.weight']
    """

    trajectory: Trajectory

    def __init__(
        self,
        module: nn.Module,
        basis: Basis | None = None,
        *,
        start: Start | str | None = None,
        weights: TrajectoryFactory | None = None,
        overrides: Mapping[str, Motion] | None = None,
        orthogonal: Form | Mapping[str, Form | None] | None = None,
        takes_time: bool = False,
    ) -> None:
        super().__init__()
        check_module("TimeVarying", module)
        if takes_time and not takes_two(module):
            raise ValueError(
                f"with takes_time=True the module is called as m(t, x), and "
                f"{type(module).__name__} takes x alone"
            )
        check_flag("takes_time", takes_time)
        if takes_time:
            warn_of_order(module, depth=3)
        self.takes_time = takes_time
        if (basis is None) == (weights is None):
            raise ValueError("give TimeVarying either basis= or weights=, and not both")
        if basis is not None and not isinstance(basis, Basis):
            raise ValueError(
                f"basis must be a Basis such as nanode.Chebyshev(degree=3), got {basis!r}"
            )
        if weights is not None and not callable(weights):
            raise ValueError(
                f"weights must make a trajectory, such as nanode.Hypernetwork, got {weights!r}"
            )
        if start is not None and weights is not None:
            raise ValueError("start= belongs to basis=; a factory given as weights= starts itself")
        refuse_lent(module)
        parameters = dict(module.named_parameters())
        if not parameters:
            raise ValueError(
                f"{type(module).__name__} has no parameters, so nothing can move in time; "
                "use nanode.Autonomous(module)"
            )
        refuse_uninitialised(parameters)
        check_norms(module)
        if isinstance(start, str):
            if start != "untied":
                raise ValueError(f'start must be a Start or "untied", got {start!r}')
            start = Untied(partial(_fresh, module))
        motions = _motions(_names(module), basis if basis is not None else weights, overrides or {})
        moving = {name: parameters[name] for name, motion in motions.items() if motion is not None}
        for name, parameter in moving.items():
            if not (parameter.is_floating_point() or parameter.is_complex()):
                raise ValueError(
                    f"{name} holds {parameter.dtype} numbers, which can't move; leave it constant "
                    f"by overrides={{{name!r}: None}}"
                )
        forms = _forms(_names(module), moving, orthogonal)
        if forms and isinstance(start, GivensWalk):
            raise ValueError(
                "under orthogonal= a GivensWalk would be the start of the free numbers, not of the "
                "weights; use one of the two, or let some weights walk by overrides="
            )
        parts = [
            part
            for motion, names in _grouped(motions)
            for part in _parts(motion, {name: moving[name] for name in names}, forms, start)
        ]
        if not parts:
            raise ValueError("every parameter is left constant; use nanode.Autonomous(module)")
        self.trajectory = parts[0] if len(parts) == 1 else Joined(parts)
        self.interval = self.trajectory.interval
        self.settle()
        self._lender = Lender(module, moving=list(self.trajectory.shapes))
        self.module = module

    def settle(self) -> None:
        """Take over where the weights jump; again after their trajectory was replaced."""
        self.breakpoints, self.jumps = self.trajectory.breakpoints, self.trajectory.jumps

    def lent_by(self) -> Iterator[nn.Module]:
        """The modules whose weights this field moves."""
        lender = self._lender
        return (owner for owner, _, name, _ in lender.places if name in lender.moving)

    def extra_repr(self) -> str:
        """What the parts don't show."""
        return "takes_time=True" if self.takes_time else ""

    def weights(self, stages: Stages) -> Weights:
        """One table per moving weight, and the constant ones as they are."""
        with alone(self):  # another thread may have put other coefficients in
            constant = self._lender.constant(self.module)
            return Weights(self.trajectory.table(stages), constant)

    def weights_at(self, t: float | Tensor, side: Side = "right") -> Named:
        """Every weight at time t."""
        with alone(self):
            moving: Named = self.trajectory(t, side)
            return moving | self._lender.constant(self.module)


def refuse_uninitialised(parameters: Mapping[str, Tensor]) -> None:
    """Refuse what a lazy module has before its first call."""
    for name, parameter in parameters.items():
        if isinstance(parameter, UninitializedParameter):
            raise ValueError(
                f"{name} has no shape yet, being of a lazy module; call the module once, with an "
                "input such as it will get, before it is wrapped"
            )


def _names(module: nn.Module) -> dict[str, str]:
    """Every name of every parameter, to the first name of the same parameter."""
    first: dict[int, str] = {}
    return {
        name: first.setdefault(id(parameter), name)
        for name, parameter in module.named_parameters(remove_duplicate=False)
    }


def _motions(
    names: Mapping[str, str], default: Motion, overrides: Mapping[str, Motion]
) -> dict[str, Motion]:
    """How each parameter moves; a shared one goes by any of its names."""
    if not isinstance(overrides, Mapping) or not all(isinstance(key, str) for key in overrides):
        raise ValueError(
            f"overrides must map names of parameters to how they move, got {overrides!r}"
        )
    motions: dict[str, Motion] = dict.fromkeys(names.values(), default)
    for pattern, motion in overrides.items():
        hits = _hits("override", pattern, names)
        kind: Any = motion  # a class may be a factory
        if isinstance(kind, type) and issubclass(kind, Basis):
            raise ValueError(
                f"the override {pattern!r} is the class {kind.__name__}; write "
                f"nanode.{kind.__name__}(...), an instance"
            )
        if not (motion is None or callable(motion)):
            raise ValueError(
                f"the override {pattern!r} must be a basis, a trajectory factory or None, "
                f"got {motion!r}"
            )
        for name in hits:
            motions[name] = motion
    return motions


def _hits(what: str, pattern: str, names: Mapping[str, str]) -> list[str]:
    """The parameters that a pattern names, by their first names."""
    hits = [
        first
        for name, first in names.items()
        if fnmatchcase(name, pattern) or name.startswith(f"{pattern}.")
    ]
    # Of submodules only where it names no parameter: *.weight isn't all that is inside a weight.
    hits = hits or [first for name, first in names.items() if fnmatchcase(name, f"{pattern}.*")]
    if not hits:
        raise ValueError(
            f"the {what} {pattern!r} names no parameter; there are: {', '.join(names)}"
        )
    return hits


def _forms(
    names: Mapping[str, str],
    moving: Mapping[str, Tensor],
    orthogonal: Form | Mapping[str, Form | None] | None,
) -> dict[str, Form]:
    """The form of each matrix that is to be kept orthogonal."""
    if orthogonal is None:
        return {}
    if isinstance(orthogonal, Form):
        orthogonal = {"*": orthogonal}
    if not isinstance(orthogonal, Mapping):
        raise ValueError(
            "orthogonal must be a form such as nanode.Householder(), or forms by parameter name, "
            f"got {orthogonal!r}"
        )
    chosen: dict[str, Form | None] = {}
    for pattern, form in orthogonal.items():
        if not (form is None or isinstance(form, Form)):
            raise ValueError(
                f"the form for {pattern!r} must be one such as nanode.Householder(), got {form!r}"
            )
        hits = _hits("form for", pattern, names)
        matrices = [name for name in hits if name in moving and moving[name].ndim >= 2]
        if not matrices:
            raise ValueError(
                f"the form for {pattern!r} names no matrix or kernel that moves, only "
                f"{', '.join(hits)}; leave it out, or give a weight that is left constant the "
                "basis nanode.Constant()"
            )
        chosen |= dict.fromkeys(matrices, form)
    return {name: form for name, form in chosen.items() if form is not None}


def _grouped(motions: Mapping[str, Motion]) -> list[tuple[Basis | TrajectoryFactory, list[str]]]:
    """Names by motion, each motion once, constants left out."""
    groups: dict[int, tuple[Basis | TrajectoryFactory, list[str]]] = {}
    for name, motion in motions.items():
        if motion is not None:
            groups.setdefault(id(motion), (motion, []))[1].append(name)
    return list(groups.values())


def _parts(
    motion: Basis | TrajectoryFactory,
    parameters: Mapping[str, Tensor],
    forms: Mapping[str, Form],
    start: Start | None,
) -> Iterator[Trajectory]:
    """The trajectory of what moves freely, and that of what is kept orthogonal."""
    make = partial(Expansion, basis=motion, start=start) if isinstance(motion, Basis) else motion
    free = {name: value for name, value in parameters.items() if name not in forms}
    bound = {name: value for name, value in parameters.items() if name in forms}
    if free:
        yield make(free)
    if bound:
        yield Orthogonal(bound, make, {name: forms[name] for name in bound})


def _fresh(module: nn.Module) -> nn.Module:
    """A copy of the module, initialised anew by its layers' own rules."""
    module = copy.deepcopy(module)
    # Parts before the whole, as constructors do: attention sets its own rule for its layers.
    for name, part in reversed(list(module.named_modules())):
        reset = getattr(part, "reset_parameters", None) or getattr(part, "_reset_parameters", None)
        if callable(reset):
            reset()
        elif any(True for _ in part.parameters(recurse=False)):
            raise ValueError(
                f"{name or type(part).__name__} has parameters but no reset_parameters(), so it "
                "can't be drawn anew; pass start=nanode.Untied(draw) with a function that makes a "
                "fresh module"
            )
    return module
