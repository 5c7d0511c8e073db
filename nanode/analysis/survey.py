"""Every analysis of every flow in a model."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from nanode.analysis.conditioning import basis_condition
from nanode.analysis.gradients import gradient_norms
from nanode.analysis.growth import growth_rates
from nanode.analysis.jacobian import evenly, jacobian_spectrum
from nanode.analysis.linearised import Equation, Linearised, Of, Steps, marks
from nanode.analysis.operator import DEPTH
from nanode.analysis.page import Analysis, FlowAnalysis, SampleAnalysis
from nanode.analysis.sensitivities import sensitivity, sensitivity_values
from nanode.analysis.spectrum import trajectory_spectrum
from nanode.analysis.subject import Subject, refuse_inference_mode
from nanode.analysis.transition import SingularValues, state_transition, transition_values
from nanode.analysis.weights import weight_norms
from nanode.bases import Basis
from nanode.block import ODEBlock, flows
from nanode.fields import TimeVarying
from nanode.gradients import Backprop
from nanode.gradients.randomness import undrawn
from nanode.stages import Stages


@dataclass(frozen=True)
class Effort:
    """How much is computed: up to which size matrices are formed, and how many values beyond."""

    #: The largest state, and the most entries of S(t), to form matrices for.
    state_limit: int = 256
    entry_limit: int = 2**16
    #: How many singular values to estimate, how many growth rates to follow.
    count: int = 3
    #: Of the randomised method.
    depth: int = DEPTH
    #: At how many times, evenly chosen, Φ, S and the Jacobian are looked at. With one alone Φ and S
    #: are those of the whole solve, and the Jacobian that at its start.
    points: int = 5


def analyse(
    model: nn.Module,
    x: Tensor,
    out: str | Path | None = None,
    *,
    loss: Callable[[Any, int], Tensor] | None = None,
    rows: int | None = None,
    effort: Effort | None = None,
) -> Analysis:
    """The stability of every flow in a model: all analyses of this package, on one page.

    Args:
        model: an ``ODEBlock``, or any module with some in it. It is looked at in eval mode (batch
            norms use their stored statistics) and left alone.
        x: samples along the first axis, each looked at by itself.
        out: a folder for ``analysis.png`` and ``analysis.json``; by default nothing is written.
        loss: of the model's output for one sample and the sample's number; its gradient is the one
            followed back in time. By default a random direction at the end of each flow, which is
            also taken where a flow has outputs at several times.
        rows: how many rows along the first axis of a flow's input are looked at, where a model
            makes several of one sample, such as the frames of a clip; by default all.
        effort: how much to compute.

    A flow is looked at as the steps it takes (``Steps``). Where these carry more than x along, as
    coupled ones do, Φ and S are theirs, and the rest is of the differential equation
    (``Equation``), as is all of a flow whose solver chooses its steps. Of a flow that a model
    calls several times the last call counts. One inside a field whose weights move has them from
    there, and is left out.

    >>> import nanode, torch
    >>> field = nanode.TimeVarying(torch.nn.Linear(3, 3), basis=nanode.Legendre(degree=2))
    >>> found = analyse(nanode.ODEBlock(field, steps=4), torch.randn(2, 3))
    >>> len(found.flows[""].samples)
    2
    """
    effort = effort or Effort()
    refuse_inference_mode()
    if not isinstance(x, Tensor) or x.ndim < 1 or not len(x):
        raise ValueError(f"x must be a tensor of samples along its first axis, got {x!r}")
    twin = copy.deepcopy(model).eval()
    blocks = _own_weights(twin)
    if not blocks:
        raise ValueError(f"{type(model).__name__} has no ODEBlock in it, so there is no flow")
    # Models may draw random numbers even in eval mode.
    with undrawn([x.device]):
        met = [_met(twin, blocks, x[n : n + 1], n, loss, rows) for n in range(len(x))]
    analyses = {}
    for name, block in blocks.items():
        missed = [n for n, by_name in enumerate(met) if name not in by_name]
        if missed:
            raise ValueError(f"the model doesn't call its flow {name!r} on the samples {missed}")
        analyses[name] = _flow(block, [by_name[name] for by_name in met], effort)
    found = Analysis(analyses)
    if out is not None:
        found.save(out)
    return found


def _own_weights(model: nn.Module) -> dict[str, ODEBlock]:
    """The flows whose weights aren't moved by a field around them."""
    fields = [part for part in model.modules() if isinstance(part, TimeVarying)]

    def taken(block: ODEBlock) -> bool:
        inside = {*block.modules()}
        around = (field for field in fields if field not in inside)
        return any(owner in inside for field in around for owner in field.lent_by())

    return {name: block for name, block in flows(model).items() if not taken(block)}


@dataclass(frozen=True)
class _Met:
    """What a flow was given for one sample, and the gradient of the loss at its end."""

    x: Any
    conditioning: tuple[Any, ...]
    gradient: Any = None

    def first(self, rows: int | None) -> "_Met":
        """The same for the first rows of x, and of all that has as many rows as x."""
        if rows is None:
            return self
        count = len(tree_leaves(self.x)[0])

        def cut(value: Any) -> Any:
            whole = isinstance(value, Tensor) and value.ndim > 0 and len(value) == count
            return value[:rows] if whole else value

        return _Met(*tree_map(cut, (self.x, self.conditioning, self.gradient)))


def _met(
    model: nn.Module,
    blocks: dict[str, ODEBlock],
    x: Tensor,
    number: int,
    loss: Callable[[Any, int], Tensor] | None,
    rows: int | None,
) -> dict[str, _Met]:
    """Call the model on one sample, and note what its flows meet."""
    given: dict[str, tuple[Any, ...]] = {}
    reached: dict[str, Any] = {}
    hooks = []
    for name, block in blocks.items():
        block.gradient = Backprop()  # uncompiled, and good for every field

        def note(block: Any, inputs: Any, named: Any, output: Any, name: str = name) -> None:
            x, *rest = inputs or (named.pop("x"),)
            rest = block.field.placed(x, tuple(rest), named) if named else rest
            given[name], reached[name] = (x, *rest), output

        hooks.append(block.register_forward_hook(note, with_kwargs=True))
    with torch.enable_grad():
        leaf = x.detach().requires_grad_(x.is_floating_point())
        result = model(leaf.clone())  # which it may change in place
        value = None if loss is None else loss(result, number)
        found = {}
        for name, (start, *conditioning) in given.items():
            # Of a flow with several outputs in time the last alone would not be the whole gradient.
            followed = value is not None and blocks[name].at is None
            gradient = _gradient(value, reached[name]) if followed else None
            found[name] = _Met(start, tuple(conditioning), gradient).first(rows)
    for hook in hooks:
        hook.remove()
    return found


def _gradient(value: Any, reached: Any) -> Any:
    parts, structure = tree_flatten(reached)
    grads = torch.autograd.grad(value, parts, retain_graph=True, allow_unused=True)
    whole = [torch.zeros_like(p) if g is None else g for p, g in zip(parts, grads, strict=True)]
    return tree_unflatten(whole, structure)


def _flow(block: ODEBlock, met: list[_Met], effort: Effort) -> FlowAnalysis:
    look = _Look(block, Subject(block, met[0].x, met[0].conditioning), effort)
    moves = bool(block.field.weights(Stages.alone([block.interval[0]])).moving)
    return FlowAnalysis(
        of=look.words,
        size=look.size,
        parameters=look.parameters,
        exact=look.exact,
        exact_sensitivity=look.exact_sensitivity,
        samples=tuple(look.at(one) for one in met),
        weights=weight_norms(block) if moves else None,
        spectrum=trajectory_spectrum(block) if moves else None,
        bases={
            name: basis_condition(part, points=max(part.size, 1000))
            for name, part in block.field.named_modules()
            if isinstance(part, Basis)
        },
    )


class _Look:
    """How a flow is looked at, the same way for all samples."""

    def __init__(self, block: ODEBlock, subject: Subject, effort: Effort) -> None:
        self.block, self.effort = block, effort
        self.of = _viewpoint(subject)
        #: Of Φ and S from the start, which all steps have.
        self.whole = self.of if block.steps is None else Steps()
        self.size, self.parameters = subject.size, sum(subject.named.sizes)
        self.exact = self.size <= effort.state_limit
        self.exact_sensitivity = self.size * self.parameters <= effort.entry_limit
        ends = marks(block)[:0:-1]  # from the last: of one alone it is the end of the solve
        self.times = [ends[k] for k in evenly(len(ends), effort.points)][::-1]

    @property
    def words(self) -> str:
        """What is looked at."""
        if self.whole == self.of:
            return repr(self.of)
        return f"Φ and S of {self.whole!r}, the rest of {self.of!r}"

    def at(self, met: _Met) -> SampleAnalysis:
        """One sample."""
        inputs, of, effort = (met.x, *met.conditioning), self.of, self.effort
        count = min(effort.count, self.size)
        return SampleAnalysis(
            transition=self.transition(inputs, count),
            sensitivity=self.sensitivity(inputs) if self.parameters else None,
            jacobian=jacobian_spectrum(
                self.block,
                *inputs,
                count=None if self.exact else count,
                points=effort.points,
                of=of,
                limit=effort.state_limit,
                depth=effort.depth,
            ),
            gradients=gradient_norms(self.block, *inputs, gradient=met.gradient, of=of),
            growth=growth_rates(self.block, *inputs, count=count, of=of),
        )

    def transition(self, inputs: tuple[Any, ...], count: int) -> SingularValues:
        """All singular values of Φ, or the largest."""
        where: dict[str, Any] = {"at": self.times, "of": self.whole}
        if self.exact:
            found = state_transition(self.block, *inputs, **where, limit=self.size)
            return found.singular_values.after_start()
        return transition_values(self.block, *inputs, **where, count=count, depth=self.effort.depth)

    def sensitivity(self, inputs: tuple[Any, ...]) -> SingularValues:
        """All singular values of S, or the largest."""
        where: dict[str, Any] = {"at": self.times, "of": self.whole}
        if self.exact_sensitivity:
            limit = self.effort.entry_limit
            found = sensitivity(self.block, *inputs, **where, limit=limit)
            return found.singular_values.after_start()
        count = min(self.effort.count, self.parameters)
        return sensitivity_values(
            self.block, *inputs, **where, count=count, depth=self.effort.depth
        )


def _viewpoint(subject: Subject) -> Of:
    """The block's own steps where they go from x to x, else the equation on the same steps."""
    if subject.block.steps is None or not Linearised(subject, Steps()).memoryless:
        # Of order four: close enough for a page, and four evaluations a step.
        return Equation(steps=len(marks(subject.block)) - 1)
    return Steps()
