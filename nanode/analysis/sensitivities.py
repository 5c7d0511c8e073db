r"""The sensitivity: how the state at a time depends on the trained parameters.

.. math:: S(t) = \frac{\partial x(t)}{\partial \theta}, \qquad
          \dot S = s \left(\frac{\partial f}{\partial x} S + \frac{\partial f}{\partial \theta}
          \right), \qquad S(t_0) = 0

The gradient of a loss of the end state is :math:`S(t_1)^\top \partial L/\partial x`. For weights
that move, θ are the coefficients of their trajectories.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nanode.analysis.drawing import Findings, plain
from nanode.analysis.linearised import Equation, Linearised, Of
from nanode.analysis.operator import DEPTH, Operator, largest_singular_values
from nanode.analysis.subject import Subject, check_small
from nanode.analysis.transition import SingularValues, wanted_times
from nanode.analysis.variational import solve_variational
from nanode.block import ODEBlock
from nanode.doubles import hosted, in_double


@dataclass(frozen=True, eq=False)
class Sensitivity(Findings):
    """S(t) at ``times`` (m,): ``matrices`` (m, n, parameters), the first zero."""

    times: Tensor
    matrices: Tensor
    #: The columns of each parameter of the field.
    columns: dict[str, slice]

    def of(self, name: str) -> Tensor:
        """∂x(t)/∂θ for one parameter by its name in the field, ``(m, n, numel)``."""
        if name not in self.columns:
            raise ValueError(
                f"there is no parameter {name!r}; there are: {', '.join(self.columns)}"
            )
        return self.matrices[:, :, self.columns[name]]

    @property
    def singular_values(self) -> SingularValues:
        """Those of each matrix."""
        return SingularValues("S(t)", self.times, torch.linalg.svdvals(hosted(self.matrices)))

    def numbers(self) -> dict[str, Any]:
        """The times, the singular values, and the norm by parameter, for JSON."""
        norms = {name: self.of(name).norm(dim=(1, 2)) for name in self.columns}
        return {**self.singular_values.numbers(), "norms": plain(norms)}

    def plot(self, ax: Any = None, **style: Any) -> Any:
        """The singular values over time; S(t0) = 0 is left out."""
        return self.singular_values.after_start().plot(ax, **style)


def sensitivity(
    block: ODEBlock,
    x: Any,
    *conditioning: Any,
    at: Sequence[float] | None = None,
    of: Of | None = None,
    limit: int = 2**18,
) -> Sensitivity:
    """S(t) as a matrix, of up to ``limit`` entries, for parameters that require grad.

    The arguments are those of ``state_transition``. Larger systems have ``sensitivity_values``.

    >>> import nanode, torch
    >>> decay = torch.nn.Linear(1, 1, bias=False).double()
    >>> _ = torch.nn.init.constant_(decay.weight, -1.0)
    >>> block = nanode.ODEBlock(nanode.Autonomous(decay), steps=4)
    >>> found = sensitivity(block, torch.ones(1, dtype=torch.float64))
    >>> found.of("module.weight")[-1].round(decimals=6)  # d e^(wt)/dw at w = -1, t = 1
    tensor([[0.3679]], dtype=torch.float64)
    """
    of = of or Equation()
    subject = Subject(block, x, conditioning)
    check_small(
        "the number of entries of S(t), the size of the state times the number of parameters,",
        subject.size * len(subject.theta),
        limit,
        "nanode.analysis.sensitivity_values(count=…)",
    )
    begin, wanted = wanted_times(subject.block, None, at)
    if of.adaptive:
        matrices = solve_variational(subject, of.adaptive, [begin, *wanted], parameters=True)
    else:
        matrices = _of_steps(Linearised(subject, of, wanted, parameters=True), wanted)
    times = torch.tensor([begin, *wanted], dtype=torch.float64, device="cpu")
    start = torch.zeros_like(matrices[0])
    return Sensitivity(times, torch.stack([start, *matrices]), subject.columns)


def sensitivity_values(
    block: ODEBlock,
    x: Any,
    *conditioning: Any,
    count: int = 6,
    at: Sequence[float] | None = None,
    of: Of | None = None,
    depth: int = DEPTH,
    seed: int = 0,
) -> SingularValues:
    """The largest singular values of S(t), estimated without forming it.

    The arguments are those of ``transition_values``.
    """
    subject = Subject(block, x, conditioning)
    _, wanted = wanted_times(subject.block, None, [block.interval[1]] if at is None else at)
    solve = Linearised(subject, of or Equation(), wanted, parameters=True)
    values = []
    for k in solve.positions(wanted):
        operator = _of_parameters(solve.transition(0, k), subject.size)
        values.append(largest_singular_values(operator, count, depth=depth, seed=seed))
    times = torch.tensor(wanted, dtype=torch.float64, device="cpu")
    return SingularValues("S(t)", times, in_double(torch.stack(values)))


def _of_steps(solve: Linearised, wanted: Sequence[float]) -> list[Tensor]:
    size, count, like = solve.size, len(solve.subject.theta), solve.begin
    positions = solve.positions(wanted)
    if size * len(wanted) < count:  # by rows, of which there are fewer than columns
        eye = torch.eye(size, dtype=like.dtype, device=like.device)
        return [solve.pull(eye, 0, k)[size:].T for k in positions]
    eye = torch.eye(count, dtype=like.dtype, device=like.device)
    return solve.reached(torch.cat([eye.new_zeros(size, count), eye]), 0, positions)


def _of_parameters(joint: Operator, size: int) -> Operator:
    """∂x/∂θ of a derivative in (x, θ)."""

    def apply(columns: Tensor) -> Tensor:
        return joint.apply(torch.cat([columns.new_zeros(size, columns.shape[1]), columns]))

    def transpose(columns: Tensor) -> Tensor:
        return joint.transpose(columns)[size:]

    return Operator(joint.size - size, joint.like, apply, transpose)
