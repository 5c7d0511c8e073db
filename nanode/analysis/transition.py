r"""The state-transition matrix: how a small change of x at one time shows at another.

.. math:: \Phi(t, \tau) = \frac{\partial x(t)}{\partial x(\tau)}, \qquad
          \dot\Phi = s\,\frac{\partial f}{\partial x}\,\Phi, \qquad \Phi(\tau, \tau) = I

Gradients travel back by its transpose, :math:`\partial L/\partial x(\tau) = \Phi(t_1, \tau)^\top
\partial L/\partial x(t_1)`: singular values above one make them explode, below one vanish. Where
the Jacobian is skew-symmetric Φ is orthogonal.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from nanode.analysis.drawing import Findings, lines, plain
from nanode.analysis.linearised import Equation, Linearised, Of, marks, same
from nanode.analysis.operator import DEPTH, largest_singular_values
from nanode.analysis.subject import Subject, check_small
from nanode.analysis.variational import solve_variational
from nanode.block import ODEBlock
from nanode.doubles import hosted, in_double


@dataclass(frozen=True, eq=False)
class SingularValues(Findings):
    """Singular values along time, the largest first: ``times`` (m,), ``values`` (m, count)."""

    what: str
    times: Tensor
    values: Tensor

    def after_start(self) -> "SingularValues":
        """Without the first time, where Φ is the identity and S is zero."""
        return SingularValues(self.what, self.times[1:], self.values[1:])

    def numbers(self) -> dict[str, Any]:
        """All of it, for JSON."""
        found: dict[str, Any] = plain({"times": self.times, "singular_values": self.values})
        return found

    def plot(self, ax: Any = None, **style: Any) -> Any:
        """The values over time."""
        return lines(ax, self.times, self.values, f"singular values of {self.what}", **style)


@dataclass(frozen=True, eq=False)
class Transition(Findings):
    """Φ(t, τ) at ``times`` (m,): ``matrices`` (m, n, n), the first the identity."""

    tau: float
    times: Tensor
    matrices: Tensor

    @property
    def singular_values(self) -> SingularValues:
        """Those of each matrix."""
        return SingularValues("Φ(t, τ)", self.times, torch.linalg.svdvals(hosted(self.matrices)))

    def numbers(self) -> dict[str, Any]:
        """τ, the times and the singular values, for JSON."""
        return {"tau": self.tau, **self.singular_values.numbers()}

    def plot(self, ax: Any = None, **style: Any) -> Any:
        """The singular values over time."""
        return self.singular_values.plot(ax, **style)


def state_transition(
    block: ODEBlock,
    x: Any,
    *conditioning: Any,
    tau: float | None = None,
    at: Sequence[float] | None = None,
    of: Of | None = None,
    limit: int = 512,
) -> Transition:
    """Φ(t, τ) as a matrix, for states of up to ``limit`` numbers.

    Args:
        block: any block; it is looked at in eval mode, and left alone.
        x: its input, all of which is the state: give one sample, ``x[:1]``, for that sample's Φ.
        conditioning: the field's further inputs.
        tau: where the change is made; by default the start of the interval.
        at: where it is seen, after tau; by default the ends of the block's steps.
        of: ``Equation()``, the differential equation (the default), or ``Steps()``, the steps that
            the block takes.
        limit: the largest state to form matrices for; larger ones have ``transition_values``.

    >>> import nanode, torch
    >>> turn = torch.tensor([[0.0, -1.0], [1.0, 0.0]])
    >>> block = nanode.ODEBlock(lambda t, x: x @ turn.T, steps=4)
    >>> state_transition(block, torch.randn(2)).matrices[-1].round(decimals=4)
    tensor([[ 0.5403, -0.8415],
            [ 0.8415,  0.5403]])
    """
    of = of or Equation()
    subject = Subject(block, x, conditioning)
    check_small(
        "the size of the state", subject.size, limit, "nanode.analysis.transition_values(count=…)"
    )
    begin, wanted = wanted_times(subject.block, tau, at)
    eye = torch.eye(subject.size, dtype=subject.x.dtype, device=subject.x.device)
    if of.adaptive:
        matrices = solve_variational(subject, of.adaptive, [begin, *wanted])
    else:
        solve = Linearised(subject, of, [begin, *wanted])
        first, *rest = solve.positions([begin, *wanted])
        matrices = solve.reached(eye, first, rest)
    times = torch.tensor([begin, *wanted], dtype=torch.float64, device="cpu")
    return Transition(begin, times, torch.stack([eye, *matrices]))


def transition_values(
    block: ODEBlock,
    x: Any,
    *conditioning: Any,
    count: int | None = None,
    tau: float | None = None,
    at: Sequence[float] | None = None,
    of: Of | None = None,
    depth: int = DEPTH,
    seed: int = 0,
) -> SingularValues:
    """The largest singular values of Φ(t, τ), by default six, estimated without forming it.

    The arguments are those of ``state_transition``, but for ``at``, by default the end alone.
    ``depth`` and ``seed`` are those of the randomised method: it makes (count + 1)(depth + 1)
    products with Φ and as many with its transpose. Estimates are never too large but by rounding.

    >>> import nanode, torch
    >>> field = nanode.TimeVarying(torch.nn.Linear(600, 600), basis=nanode.Constant())
    >>> block = nanode.ODEBlock(field, steps=2)
    >>> transition_values(block, torch.randn(600), count=3, of=nanode.analysis.Steps()).values.shape
    torch.Size([1, 3])
    """
    subject = Subject(block, x, conditioning)
    count = min(6, subject.size) if count is None else count
    begin, wanted = wanted_times(subject.block, tau, [block.interval[1]] if at is None else at)
    solve = Linearised(subject, of or Equation(), [begin, *wanted])
    first, *rest = solve.positions([begin, *wanted])
    values = [
        largest_singular_values(solve.transition(first, k), count, depth=depth, seed=seed)
        for k in rest
    ]
    return SingularValues(
        "Φ(t, τ)",
        torch.tensor(wanted, dtype=torch.float64, device="cpu"),
        in_double(torch.stack(values)),
    )


def wanted_times(
    block: ODEBlock, tau: float | None, at: Sequence[float] | None
) -> tuple[float, list[float]]:
    """Where the change is made, and where it is seen."""
    ends = block.interval
    sign = 1 if ends[0] < ends[1] else -1
    begin = ends[0] if tau is None else float(tau)
    given = {"tau": tau, "at": at}
    if at is None:
        at = [t for t in marks(block) if sign * t > sign * begin and not same(t, begin, block)]
    wanted = [float(t) for t in at]
    ordered = all(
        sign * a < sign * b and not same(a, b, block) for a, b in pairwise([begin, *wanted])
    )
    inside = all(min(ends) <= t <= max(ends) for t in [begin, *wanted])
    if not wanted or not ordered or not inside:
        raise ValueError(
            f"times must follow {'the start' if tau is None else 'tau'} and each other in the "
            f"direction of the solve, inside {ends}, got "
            + ", ".join(f"{name}={value}" for name, value in given.items() if value is not None)
        )
    return begin, wanted
