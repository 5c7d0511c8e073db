r"""The variational equation: how small changes of a state, and of the weights, travel in time.

.. math:: \dot x = s f(t, x, \theta), \qquad \dot V = s \left(\frac{\partial f}{\partial x} V
          + \frac{\partial f}{\partial \theta} \Theta\right)

A column of V with no part in θ is a change of x; with a unit vector in Θ it is the derivative in
one parameter. Solved together with x by any solver of the library, adaptive ones included.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from nanode.analysis.linearised import Equation
from nanode.analysis.operator import forward_mode, push_forward
from nanode.analysis.subject import Subject
from nanode.fields import Field, Weights
from nanode.gradients.problem import evaluate_checked
from nanode.integrate import odeint
from nanode.solvers import Adaptive
from nanode.solvers.stepper import State
from nanode.stages import Side, Stage, Stages
from nanode.trajectories.trajectory import Named


class Variational(Field):
    """The field of (x, V): x as one vector, V a matrix of as many rows.

    ``directions`` are the columns of Θ, or None for changes of x alone.
    """

    def __init__(self, subject: Subject, directions: Tensor | None = None) -> None:
        super().__init__()
        self.subject, self.directions = subject, directions
        self.probe = _Probe(subject)
        field = self.field = subject.block.field
        self.interval, self.breakpoints, self.jumps = field.interval, field.breakpoints, field.jumps

    def weights(self, stages: Stages) -> Weights:
        """The field's own; none where they are made at each evaluation, as functions of θ."""
        return self.field.weights(stages) if self.directions is None else Weights({}, {})

    def weights_at(self, t: float | Tensor, side: Side = "right") -> Named:
        """The field's own; none where they are made at each evaluation, as functions of θ."""
        return self.field.weights_at(t, side) if self.directions is None else {}

    def evaluate(self, weights: Named, stage: Stage, x: Any, *conditioning: Any) -> Any:
        """(f, JV + ∂f/∂θ Θ)."""
        state, tangents = x
        if self.directions is None:
            f = partial(self.probe, stage, weights=weights)
            return f(state), push_forward(f, state, tangents)
        size, theta = self.subject.size, self.subject.theta

        def of_both(joined: Tensor) -> Tensor:
            named = self.subject.names(joined[size:])
            lent = {f"field.{name}": w for name, w in named.items()}
            result: Tensor = torch.func.functional_call(self.probe, lent, (stage, joined[:size]))
            return result

        both = torch.cat([state, theta])
        moved = push_forward(of_both, both, torch.cat([tangents, self.directions]))
        return of_both(both), moved


class _Probe(nn.Module):
    """x ↦ f at a stage, between vectors, as a module that can be lent other parameters."""

    def __init__(self, subject: Subject) -> None:
        super().__init__()
        self.field, self._subject = subject.block.field, subject

    def forward(self, stage: Stage, x: Tensor, weights: Named | None = None) -> Tensor:
        subject, field = self._subject, self.field
        if weights is None and isinstance(stage.time, Tensor):  # an adaptive solver's
            weights = field.weights_at(stage.time, stage.side)
        elif weights is None:
            weights = field.weights(Stages((stage,))).at(0)
        state = subject.layout.parts(x)
        slopes = evaluate_checked(
            field, subject.structure, weights, stage, state, subject.conditioning
        )
        return subject.layout.vector(slopes)


def solve_variational(
    subject: Subject, of: Equation, times: Sequence[float], parameters: bool = False
) -> Tensor:
    """V at all times: from the identity at the first, or with θ from zero; ``(times, n, ·)``."""
    directions = None
    begin = torch.eye(subject.size, dtype=subject.x.dtype, device=subject.x.device)
    if parameters:
        theta = subject.theta
        directions = torch.eye(len(theta), dtype=theta.dtype, device=theta.device)
        begin = theta.new_zeros(subject.size, len(theta))
    with forward_mode():
        x = subject.state
        if times[0] != subject.block.interval[0]:
            x = _advanced(subject, of, times[0])
        field = Variational(subject, directions)
        start = (subject.layout.vector(x), begin)
        ends = (times[0], times[-1])
        found = odeint(field, start, at=times, **_options(subject, of, ends))
    matrices: Tensor = found[1]
    return matrices


def _advanced(subject: Subject, of: Equation, until: float) -> State:
    """x at a later time."""
    ends = (subject.block.interval[0], until)
    found = odeint(
        subject.block.field,
        tree_unflatten(list(subject.state), subject.structure),
        interval=ends,
        conditioning=subject.conditioning,
        **_options(subject, of, ends),
    )
    return tuple(tree_flatten(found)[0])


def _options(subject: Subject, of: Equation, ends: tuple[float, float]) -> dict[str, Any]:
    block, adaptive = subject.block, isinstance(of.solver, Adaptive)
    steps = None if adaptive else of.schedule(block, ends)
    return {"steps": steps, "solver": of.solver, "scale": block.scale}
