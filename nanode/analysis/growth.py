r"""Growth rates of small changes along a solution: finite-time Lyapunov exponents.

Benettin's method: orthonormal columns are pushed through every step and made orthonormal again by
QR; the logarithms of the diagonal of R add up to

.. math:: \lambda_i(t) = \frac{1}{|t - t_0|} \sum_k \log |R^{(k)}_{ii}|

the rate of the i-th direction. The first is how fast a random small change grows, the first two
together a small area, and so on; all n together the volume, exactly:
:math:`|t - t_0| \sum_i \lambda_i = \log |\det \Phi(t, t_0)|`. Over a long time they become the
largest rates that there are, whatever the columns that one starts from; over a short one they are
those of random directions, well below the largest, :math:`\log \sigma_1(\Phi) / |t - t_0|`. Rates
above zero mean exploding gradients, below zero vanishing ones.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nanode.analysis.drawing import Findings, lines
from nanode.analysis.linearised import Equation, Linearised, Of
from nanode.analysis.subject import Subject
from nanode.block import ODEBlock
from nanode.doubles import hosted, in_double
from nanode.values import checked_count


@dataclass(frozen=True, eq=False)
class GrowthRates(Findings):
    """``rates`` (m, count) from the start up to each of ``times`` (m,)."""

    times: Tensor
    rates: Tensor

    def plot(self, ax: Any = None, **style: Any) -> Any:
        """The rates over time."""
        return lines(ax, self.times, self.rates, "rates of random changes", log=False, **style)


def growth_rates(
    block: ODEBlock,
    x: Any,
    *conditioning: Any,
    count: int = 4,
    of: Of | None = None,
    seed: int = 0,
) -> GrowthRates:
    """Growth rates of ``count`` random small changes of x, or of all where there are fewer.

    The block is looked at in eval mode, and left alone. ``of`` is ``Equation()`` (the default) or
    the block's own ``Steps()``; ``seed`` draws the directions to start from.

    >>> import nanode, torch
    >>> block = nanode.ODEBlock(lambda t, x: x * torch.tensor([-1.0, 2.0]), 100, interval=(0, 30))
    >>> growth_rates(block, torch.ones(2)).rates[-1].round(decimals=1)
    tensor([ 2., -1.], dtype=torch.float64)
    """
    solve = Linearised(Subject(block, x, conditioning), of or Equation())
    solve.require_memoryless("a growth rate")
    count = min(checked_count("count", count, least=1), solve.size)
    generator = torch.Generator().manual_seed(seed)
    start = torch.randn(solve.size, count, generator=generator, dtype=torch.float64, device="cpu")
    columns = torch.linalg.qr(start)[0]
    grown = []
    for k in range(solve.steps):
        columns, upper = torch.linalg.qr(hosted(solve.step(k).apply(columns.to(solve.begin))))
        grown.append(in_double(upper.diagonal().abs()).log())
    times = torch.tensor(solve.times[1:], dtype=torch.float64, device="cpu")
    total = torch.stack(grown).cumsum(0).cpu()
    return GrowthRates(times, total / (times - solve.times[0]).abs()[:, None])
