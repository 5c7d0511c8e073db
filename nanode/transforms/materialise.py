"""A solve written out: one ordinary module an evaluation, and the solver's sums between them.

Nothing moves any more and nothing is lent: layers can be pruned, quantised, exported or trained one
by one. The way back, where they are residual layers, is ``from_layers``.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from nanode.block import ODEBlock, augmented
from nanode.fields import BatchNorm, Field, Gated
from nanode.fields.field import ModuleField, Weights, time_for
from nanode.fields.functions import by_position
from nanode.fields.gated import mixed
from nanode.fields.swap import StageAware, put
from nanode.fields.walk import replaced
from nanode.gradients import Backprop, Plan
from nanode.integrate import solve
from nanode.stages import Side, Stage, Stages
from nanode.trajectories.trajectory import Named


class Unrolled(nn.Module):
    """Evaluations one after the other, as a fixed-step solver takes them.

    ``evaluations[i]`` is the field at evaluation i, a module of its own. Called as the block was:
    with x and the field's further inputs.
    """

    def __init__(self, block: ODEBlock, plan: Plan, evaluations: Sequence[nn.Module]) -> None:
        super().__init__()
        self.evaluations = nn.ModuleList(evaluations)
        stages = Stages(plan.stages.stages)
        self._plan = replace(plan, field=_Written(self.evaluations), stages=stages)
        self.stacked = block.at is not None
        self.augment, self.augment_axis = block.augment, block.augment_axis

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == "evaluations" and "_plan" in vars(self):
            self._plan = replace(self._plan, field=_Written(self.evaluations))

    def forward(self, x: Any, *conditioning: Any, **named: Any) -> Any:
        """The state at the end, or at the wanted times."""
        if named:
            conditioning = self._plan.field.placed(x, conditioning, named)
        x = augmented(x, self.augment, self.augment_axis)
        return solve(self._plan, Backprop(), x, conditioning, stacked=self.stacked)[0]

    def extra_repr(self) -> str:
        """The solver."""
        return f"solver={self._plan.stepper!r}"


class _Written(Field):
    """A field by the number of its evaluation."""

    def __init__(self, evaluations: nn.ModuleList) -> None:
        super().__init__()
        self.evaluations = evaluations

    def weights(self, stages: Stages) -> Weights:
        """None that a solve would have to know."""
        return Weights({}, {})

    def weights_at(self, t: float | Tensor, side: Side = "right") -> Named:
        """None."""
        return {}

    def placed(self, x: Any, conditioning: tuple[Any, ...], named: Mapping[str, Any]) -> Any:
        """In the order of the arguments that the modules have."""
        one = self.evaluations[0]
        if isinstance(one, Mixture):
            return super().placed(x, conditioning, named)
        if isinstance(one, AtTime):
            return by_position(one.module, (0.0, x), conditioning, named)
        return by_position(one, (x,), conditioning, named)

    def evaluate(self, weights: Named, stage: Stage, x: Any, *conditioning: Any) -> Any:
        """The module of this evaluation at x."""
        assert isinstance(stage.index, int)
        return self.evaluations[stage.index](x, *conditioning)


def materialise(block: ODEBlock) -> Unrolled:
    """A block on its fixed grid as ordinary modules, with weights of their own at each evaluation.

    The result computes what the block does, in train and in eval mode. Weights that move become
    independent parameters, one set an evaluation; those that are constant stay one parameter that
    all evaluations share. ``nanode.BatchNorm`` becomes torch's, with the statistics of its
    evaluation.

    >>> import nanode, torch
    >>> field = nanode.TimeVarying(torch.nn.Linear(3, 3), nanode.Legendre(degree=2))
    >>> block = nanode.ODEBlock(field, steps=4, solver=nanode.Heun())
    >>> plain, x = nanode.materialise(block), torch.randn(2, 3)
    >>> len(plain.evaluations), torch.equal(plain(x), block(x))
    (8, True)
    """
    if not isinstance(block, ODEBlock):
        raise ValueError(
            f"materialise takes an ODEBlock, got {type(block).__name__}; in a model replace each "
            "block by itself"
        )
    plan = block.plan()
    if plan is None:
        raise ValueError("an adaptive solver has no fixed evaluations to write out; give steps=")
    shared = _copies(block.field)
    with torch.enable_grad():  # which tells what is trained
        weights = block.field.weights(plan.stages)
        evaluations = [
            _evaluation(block.field, weights.at(i), stage, shared)
            for i, stage in enumerate(plan.stages)
        ]
    found = Unrolled(block, plan, evaluations)
    found.training = block.training  # each part has its own mode
    return found


def module_at(field: Field | ODEBlock, t: float, side: Side = "right") -> nn.Module:
    """The field at one time as an ordinary module of x, its weights copies of what they are then.

    So what a parametrised weight is at a time can be read; ``weights_at`` gives what the
    parametrisation makes it of.

    >>> import nanode, torch
    >>> from torch.nn.utils import parametrize
    >>> layer = torch.nn.Linear(2, 2)
    >>> layer = parametrize.register_parametrization(layer, "weight", torch.nn.Softplus())
    >>> field = nanode.TimeVarying(layer, nanode.Legendre(2), start=nanode.Independent())
    >>> bool((nanode.module_at(field, 0.3).weight > 0).all())
    True
    """
    if isinstance(field, ODEBlock):
        field = field.field
    if not isinstance(field, Field):
        raise ValueError(f"module_at takes a field or an ODEBlock, got {type(field).__name__}")
    with torch.enable_grad():
        weights = field.weights_at(t, side)
        return _evaluation(field, weights, Stage.alone(t, side), _copies(field))


def _copies(field: Field) -> dict[int, Any]:
    """A parameter for each of the field's, by the latter's id."""
    return {
        id(parameter): nn.Parameter(parameter.detach().clone(), parameter.requires_grad)
        for parameter in field.parameters()
    }


def _evaluation(field: Field, weights: Named, stage: Stage, shared: Mapping[int, Any]) -> nn.Module:
    """The field at one stage, as a module of x."""
    if type(field).evaluate is Gated.evaluate:
        assert isinstance(field, Gated)
        pairs = zip(field.members(), field.split(weights), strict=True)
        members = [_evaluation(member, own, stage, shared) for member, own in pairs]
        return Mixture(members, torch.sigmoid(weights["logits"]))
    if type(field).evaluate is ModuleField.evaluate:
        assert isinstance(field, ModuleField)
        module = _filled(field, weights, stage, shared)
        return AtTime(module, float(stage.time)) if field.takes_time else module
    raise ValueError(
        f"{type(field).__name__} evaluates in a way of its own, which can't be written out as "
        "modules"
    )


def _filled(field: Any, weights: Named, stage: Stage, shared: Mapping[int, Any]) -> nn.Module:
    """A copy of the field's module with the weights of a stage in their places."""
    module: nn.Module = copy.deepcopy(field.module, dict(shared))
    made: dict[str, nn.Parameter] = {}
    for *_, name, own in field._lender.places:
        if name in field._lender.moving:
            w = weights[name]
            path, _, leaf = own.rpartition(".")
            new = made.setdefault(name, nn.Parameter(w.detach().clone(), w.requires_grad))
            owner = module.get_submodule(path)
            if leaf not in owner._parameters:
                raise ValueError(
                    f"{own} isn't where it was when the module was wrapped: another layer has been "
                    "put around it since. Write the block out first, and put it there"
                )
            put(owner, leaf, new)
            owner.__dict__.pop("_lent", None)
    for part in module.modules():
        if parametrize.is_parametrized(part):
            # Copies share their class, which removing parametrisations changes.
            kind = type(part)
            part.__class__ = type(kind.__name__, kind.__bases__, dict(kind.__dict__))
        if isinstance(part, StageAware):
            part.stage = stage  # for good
    return replaced(module, (BatchNorm,), lambda norm: _plain_norm(norm, stage))


class Norm(nn.BatchNorm1d):
    """torch's batch norm for an input of any number of axes."""

    def _check_input_dim(self, input: Tensor) -> None:
        """Any will do."""


def _plain_norm(norm: BatchNorm, stage: Stage) -> Norm:
    found = Norm(norm.features, norm.eps, norm.momentum, norm.affine)
    if norm.affine:
        found.weight, found.bias = norm.weight, norm.bias
    if norm.times:
        mean, var = norm.statistics(stage)
    elif len(norm.running_mean) == 1:  # those of a plain norm, for all times
        mean, var = norm.running_mean[0], norm.running_var[0]
    else:
        mean, var = (
            norm.running_mean.new_zeros(norm.features),
            norm.running_var.new_ones(norm.features),
        )
    found.running_mean, found.running_var = mean.detach().clone(), var.detach().clone()
    found.num_batches_tracked = torch.zeros((), dtype=torch.long, device=mean.device)
    return found.train(norm.training)


class Mixture(nn.Module):
    """Modules added up in fixed proportions."""

    def __init__(self, modules: Sequence[nn.Module], gates: Tensor) -> None:
        super().__init__()
        self.members = nn.ModuleList(modules)
        self.gates = nn.Parameter(gates.detach().clone(), gates.requires_grad)

    def forward(self, x: Any, *conditioning: Any) -> Any:
        """The weighted sum of all members at x."""
        return mixed(self.gates, (member(x, *conditioning) for member in self.members))


class AtTime(nn.Module):
    """A module of (t, x) at one time."""

    def __init__(self, module: nn.Module, time: float) -> None:
        super().__init__()
        self.module, self.time = module, time

    def forward(self, x: Any, *conditioning: Any) -> Any:
        """The module at (t, x)."""
        return self.module(time_for(x, self.time), x, *conditioning)
