"""A solve written out: one ordinary module an evaluation, and the solver's sums between them.

Nothing moves any more and nothing is lent: layers can be pruned, quantised, exported or trained one
by one. The other way round, one bucket an evaluation, is ``TimeVarying(module, Bucketed(K))``.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from nanode.block import ODEBlock, augmented
from nanode.fields import BatchNorm, Callback, Field, Gated, TimeVarying
from nanode.fields.field import ConstantField, time_for
from nanode.fields.gated import mixed
from nanode.fields.swap import StageAware, put
from nanode.fields.walk import replaced
from nanode.gradients import Plan
from nanode.gradients.problem import checked_state
from nanode.solvers.stepper import State
from nanode.stages import Stage
from nanode.trajectories.trajectory import Named


class Unrolled(nn.Module):
    """Evaluations one after the other, as a fixed-step solver takes them.

    ``evaluations[i]`` is the field at evaluation i, a module of its own. Called as the block was:
    with x and the field's further inputs.
    """

    def __init__(self, block: ODEBlock, plan: Plan, evaluations: Sequence[nn.Module]) -> None:
        super().__init__()
        self.evaluations = nn.ModuleList(evaluations)
        self.stepper, self.widths, self.wanted = plan.stepper, plan.widths, plan.wanted
        self.stacked = block.at is not None
        self.augment, self.augment_axis = block.augment, block.augment_axis

    def forward(self, x: Any, *conditioning: Any) -> Any:
        """The state at the end, or at the wanted times."""
        parts, structure = tree_flatten(augmented(x, self.augment, self.augment_axis))
        state = checked_state(parts, ())

        def f(i: int, at: State) -> State:
            value = self.evaluations[i](tree_unflatten(list(at), structure), *conditioning)
            return tuple(tree_flatten(value)[0])

        def local(k: int) -> Callable[[int, State], State]:
            base = self.stepper.first_stage(k)
            return lambda j, at: f(base + j, at)

        carry = self.stepper.start(local(0), state)
        states = {0: state}
        for k, width in enumerate(self.widths):
            carry = self.stepper.step(local(k), width, carry)
            states[k + 1] = carry[0]
        columns = zip(*(states[k] for k in self.wanted), strict=True)
        ends = [torch.stack(column) if self.stacked else column[0] for column in columns]
        return tree_unflatten(ends, structure)

    def extra_repr(self) -> str:
        """The solver."""
        return f"solver={self.stepper!r}"


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
    with torch.enable_grad():  # which tells what is trained
        weights = block.field.weights(plan.stages)
    shared: dict[int, Any] = {
        id(parameter): nn.Parameter(parameter.detach().clone(), parameter.requires_grad)
        for parameter in block.field.parameters()
    }
    evaluations = [
        _evaluation(block.field, weights.at(i), stage, shared)
        for i, stage in enumerate(plan.stages)
    ]
    found = Unrolled(block, plan, evaluations)
    found.training = block.training  # each part has its own mode
    return found


def _evaluation(field: Field, weights: Named, stage: Stage, shared: Mapping[int, Any]) -> nn.Module:
    """The field at one stage, as a module of x."""
    if isinstance(field, Gated):
        pairs = zip(field.members(), field.split(weights), strict=True)
        members = [_evaluation(member, own, stage, shared) for member, own in pairs]
        return Mixture(members, torch.sigmoid(weights["logits"]))
    if isinstance(field, TimeVarying | ConstantField):
        module = _filled(field, weights, stage, shared)
        return AtTime(module, float(stage.time)) if isinstance(field, Callback) else module
    raise ValueError(f"{type(field).__name__} is no field that can be written out as modules")


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
            put(owner, leaf, new)
            owner.__dict__.pop("_lent", None)
    for part in module.modules():
        if isinstance(part, StageAware):
            part.stage = stage  # for good
    return replaced(module, (BatchNorm,), lambda norm: _plain_norm(norm, stage))


class Norm(nn.modules.batchnorm._BatchNorm):
    """torch's batch norm for an input of any number of axes."""

    def _check_input_dim(self, input: Tensor) -> None:
        """Any will do."""


def _plain_norm(norm: BatchNorm, stage: Stage) -> Norm:
    found = Norm(norm.features, norm.eps, norm.momentum, norm.affine)
    if norm.affine:
        found.weight, found.bias = norm.weight, norm.bias
    mean, var = norm.statistics(stage)
    found.running_mean, found.running_var = mean.detach().clone(), var.detach().clone()
    assert found.num_batches_tracked is not None
    found.num_batches_tracked = found.num_batches_tracked.to(mean.device)
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
