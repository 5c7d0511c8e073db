r"""The field's Jacobian along a solution: its singular values and its logarithmic norm.

.. math:: J(t) = s\,\frac{\partial f}{\partial x}(t, x(t)), \qquad
          \mu_2(t) = \lambda_{\max}\left(\tfrac12 (J + J^\top)\right), \qquad
          \|\Phi(t, \tau)\|_2 \le e^{\int_\tau^t \mu_2}

The largest singular value says how fast a step must be; the logarithmic norm how fast two nearby
solutions can part (:math:`\mu_2 \le 0`: never). A skew-symmetric Jacobian has :math:`\mu_2 = 0`.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nanode.analysis.drawing import Findings, lines
from nanode.analysis.linearised import Equation, Linearised, Of
from nanode.analysis.operator import (
    DEPTH,
    Operator,
    largest_eigenvalue,
    largest_singular_values,
    symmetric_part,
)
from nanode.analysis.subject import Subject, check_small
from nanode.block import ODEBlock
from nanode.doubles import hosted, in_double
from nanode.values import checked_count


@dataclass(frozen=True, eq=False)
class JacobianSpectrum(Findings):
    """Of J at ``times`` (m,): ``singular_values`` (m, count), ``logarithmic_norm`` (m,)."""

    times: Tensor
    singular_values: Tensor
    logarithmic_norm: Tensor

    def plot(self, ax: Any = None, **style: Any) -> Any:
        """The largest singular value and the logarithmic norm over time."""
        ax = lines(ax, self.times, self.singular_values[:, 0], "‖J(t)‖₂", log=False, **style)
        style |= {"linestyle": "--"}
        return lines(ax, self.times, self.logarithmic_norm, "μ₂(J(t))", log=False, **style)


def jacobian_spectrum(
    block: ODEBlock,
    x: Any,
    *conditioning: Any,
    count: int | None = None,
    points: int | None = None,
    of: Of | None = None,
    limit: int = 512,
    depth: int = DEPTH,
    seed: int = 0,
) -> JacobianSpectrum:
    """Singular values and logarithmic norm of J at the starts of steps along the solution from x.

    Args:
        block: any block; it is looked at in eval mode, and left alone.
        x: its input, all of which is the state.
        conditioning: the field's further inputs.
        count: how many of the largest singular values to estimate by products with J and its
            transpose; by default all of them, and both exactly, from the matrix.
        points: at how many steps, evenly chosen; by default at all.
        of: along the solution of ``Equation()`` (the default) or the block's own ``Steps()``.
        limit: the largest state to form matrices for.
        depth: of the randomised method; larger is closer, and takes longer in proportion.
        seed: of its random columns.

    >>> import nanode, torch
    >>> block = nanode.ODEBlock(lambda t, x: x * torch.tensor([-1.0, -2.0]), steps=4)
    >>> found = jacobian_spectrum(block, torch.ones(2), points=2)
    >>> found.singular_values, found.logarithmic_norm
    (tensor([[2., 1.],
            [2., 1.]], dtype=torch.float64), tensor([-1., -1.], dtype=torch.float64))
    """
    subject = Subject(block, x, conditioning)
    if count is None:
        check_small(
            "the size of the state",
            subject.size,
            limit,
            "nanode.analysis.jacobian_spectrum(count=…)",
        )
    solve = Linearised(subject, of or Equation())
    start, end = block.interval
    where, sign = evenly(solve.steps, points), 1 if start < end else -1
    values, norms = [], []
    for k in where:
        operator = solve.jacobian(k)
        if count is None:
            found, norm = _exactly(operator.dense(), sign)
        else:
            found, norm = _estimated(operator, sign, count, depth, seed)
        values.append(in_double(found))
        norms.append(norm)
    return JacobianSpectrum(
        torch.tensor([solve.times[k] for k in where], dtype=torch.float64, device="cpu"),
        torch.stack(values),
        torch.tensor(norms, dtype=torch.float64, device="cpu"),
    )


def evenly(steps: int, points: int | None) -> list[int]:
    """So many of the numbers 0 … steps − 1, the first and the last among them; None for all.

    >>> evenly(10, 4)
    [0, 3, 6, 9]
    """
    if points is None or points >= steps:
        return list(range(steps))
    points = checked_count("points", points, least=1)
    return [round(i * (steps - 1) / max(1, points - 1)) for i in range(points)]


def _exactly(matrix: Tensor, sign: int) -> tuple[Tensor, float]:
    matrix = hosted(matrix)
    norm = torch.linalg.eigvalsh(sign * (matrix + matrix.T) / 2)[-1]
    return torch.linalg.svdvals(matrix), float(norm)


def _estimated(
    operator: Operator, sign: int, count: int, depth: int, seed: int
) -> tuple[Tensor, float]:
    values = largest_singular_values(operator, count, depth=depth, seed=seed)
    norm = largest_eigenvalue(symmetric_part(operator, sign), depth=3 * depth, seed=seed)
    return values, norm
