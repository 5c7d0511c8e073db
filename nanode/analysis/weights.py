"""Size and conditioning of each moving weight along time."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nanode.analysis.drawing import Findings, axes, lines, log_scale
from nanode.analysis.linearised import field_stages
from nanode.analysis.subject import field_of
from nanode.block import ODEBlock
from nanode.doubles import in_double
from nanode.fields import Field
from nanode.solvers import Uniform
from nanode.trajectories.trajectory import Named
from nanode.values import checked_count


@dataclass(frozen=True, eq=False)
class WeightNorms(Findings):
    """Of each moving weight by name at ``times`` (m,): spectral norm and condition number, (m,).

    Kernels of convolutions are read as matrices (out, in · height · width); their norm is that of
    the matrix, not of the convolution as a map of images. Weights with fewer than two axes (biases,
    norms' scales) have their Euclidean norm and no condition number.
    """

    times: Tensor
    norms: dict[str, Tensor]
    conditions: dict[str, Tensor]

    def plot(self, ax: Any = None, **style: Any) -> Any:
        """Norms (lines) and condition numbers (dashes) of the weights with two axes or more."""
        ax = axes(ax)
        for name in self.conditions:
            (line,) = ax.plot(self.times, self.norms[name].cpu(), label=f"‖{name}‖₂", **style)
            condition = self.conditions[name].cpu()
            ax.plot(self.times, condition, "--", color=line.get_color())
        if not self.conditions:
            return lines(ax, self.times, torch.stack([*self.norms.values()], 1), "norms", **style)
        ax.plot([], [], "--", color="grey", label="condition number")
        log_scale(ax)
        ax.set_xlabel("t")
        ax.legend(fontsize=7)
        return ax


@torch.no_grad()
def weight_norms(field: Field | ODEBlock, points: int = 101) -> WeightNorms:
    """Spectral norm and condition number of each weight that moves, over the interval of its solve.

    >>> import nanode, torch
    >>> field = nanode.TimeVarying(torch.nn.Linear(3, 3), basis=nanode.Legendre(degree=2))
    >>> found = weight_norms(field, points=11)
    >>> list(found.norms), list(found.conditions)
    (['weight', 'bias'], ['weight'])
    """
    times, moving = moving_weights(field, points)
    norms, conditions = {}, {}
    for name, table in moving.items():
        if table.ndim < 3:
            norms[name] = in_double(table).reshape(len(table), -1).norm(dim=1)
            continue
        values = torch.linalg.svdvals(in_double(table).flatten(2))
        norms[name], conditions[name] = values[:, 0], values[:, 0] / values[:, -1]
    return WeightNorms(times, norms, conditions)


def moving_weights(field: Field | ODEBlock, points: int) -> tuple[Tensor, Named]:
    """Equidistant times over the interval, and the weights that move at them."""
    inner = field_of(field)
    interval = field.interval if field.interval is not None else (0.0, 1.0)
    grid = Uniform(checked_count("points", points, least=2) - 1).grid(*interval)
    # The starts of the steps, and the end of the last: the start of the first one backwards.
    there, back = field_stages(grid), field_stages(grid.reversed())[:1]
    tables = inner.weights(there).moving, inner.weights(back).moving
    moving = {name: torch.cat([table, tables[1][name]]) for name, table in tables[0].items()}
    if not moving:
        raise ValueError("no weight of this field moves in time")
    times = torch.tensor([float(point) for point in grid.points], dtype=torch.float64, device="cpu")
    return times, moving
