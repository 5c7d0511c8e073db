r"""The variational equation as a field, for solvers that choose their own steps.

.. math:: \dot x = s f(t, x, \theta), \qquad \dot\Phi = s\,\frac{\partial f}{\partial x} \Phi,
          \qquad \dot S = s \left(\frac{\partial f}{\partial x} S + \frac{\partial f}{\partial
          \theta} \right)

Note *equation or steps* in ``linearised`` says why others don't need it.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from nanode.analysis.operator import derivative, forward_mode, push_forward
from nanode.analysis.subject import Subject
from nanode.fields import Field, Weights
from nanode.gradients.problem import evaluate_checked
from nanode.integrate import odeint
from nanode.solvers import Adaptive
from nanode.stages import Side, Stage, Stages
from nanode.trajectories.trajectory import Named


class Variational(Field):
    """The field of (x, V): x as one vector, V a matrix of as many rows, Φ or S."""

    def __init__(self, subject: Subject, parameters: bool) -> None:
        super().__init__()
        self.subject, self.parameters_too = subject, parameters
        field = self.field = subject.block.field
        self.interval, self.breakpoints, self.jumps = field.interval, field.breakpoints, field.jumps

    def weights(self, stages: Stages) -> Weights:
        """The field's own."""
        return self.field.weights(stages)

    def weights_at(self, t: float | Tensor, side: Side = "right") -> Named:
        """The field's own."""
        return self.field.weights_at(t, side)

    def evaluate(self, weights: Named, stage: Stage, x: Any, *conditioning: Any) -> Any:
        """(f, ∂f/∂x V), with ∂f/∂θ added to the second for S."""
        state, tangents = x
        f = partial(self._slopes, stage, weights)
        moved = push_forward(f, state, tangents)
        if self.parameters_too:
            moved = moved + self._in_parameters(stage, state)
        return f(state), moved

    def _in_parameters(self, stage: Stage, state: Tensor) -> Tensor:
        """∂f/∂θ, by rows: there are fewer of them."""

        def f(theta: Tensor) -> Tensor:
            return self.subject.with_theta(theta, self._anew, stage, state)

        eye = torch.eye(len(state), dtype=state.dtype, device=state.device)
        return derivative(f, self.subject.theta).transpose(eye).T

    def _anew(self, stage: Stage, x: Tensor) -> Tensor:
        return self._slopes(stage, self.weights_at(stage.time, stage.side), x)

    def _slopes(self, stage: Stage, weights: Named, x: Tensor) -> Tensor:
        subject = self.subject
        state = subject.layout.parts(x)
        slopes = evaluate_checked(
            self.field, subject.structure, weights, stage, state, subject.conditioning
        )
        return subject.layout.vector(slopes)


def solve_variational(
    subject: Subject, solver: Adaptive, times: Sequence[float], parameters: bool = False
) -> list[Tensor]:
    """Φ from the identity at the first of the times, or S from zero, at all times after it."""
    block, x = subject.block, subject.x
    begin = torch.eye(len(x), dtype=x.dtype, device=x.device)
    if parameters:
        begin = x.new_zeros(len(x), len(subject.theta))
    with forward_mode():
        if times[0] != block.interval[0]:
            before = odeint(
                block.field,
                tree_unflatten(list(subject.state), subject.structure),
                interval=(block.interval[0], times[0]),
                conditioning=subject.conditioning,
                solver=solver,
                scale=block.scale,
            )
            x = subject.layout.vector(tuple(tree_flatten(before)[0]))
        field = Variational(subject, parameters)
        found = odeint(field, (x, begin), at=times, solver=solver, scale=block.scale)
    return list(found[1])[1:]
