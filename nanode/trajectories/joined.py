"""Several trajectories read as one, each for its own weights."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from nanode.stages import Side, Stages
from nanode.trajectories.trajectory import Named, Trajectory


def joined(trajectory: Trajectory) -> list[Trajectory]:
    """Those that a trajectory is joined from, or itself."""
    if not isinstance(trajectory, Joined):
        return [trajectory]
    return [one for part in trajectory._trajectories() for one in joined(part)]


class Joined(Trajectory):
    """The union of trajectories with different names on one interval."""

    def __init__(self, parts: Sequence[Trajectory]) -> None:
        super().__init__()
        intervals = {part.interval for part in parts}
        if len(intervals) != 1:
            raise ValueError(
                f"the weights of one field must share an interval, got {sorted(intervals)}; "
                "give every basis the same interval=(t0, t1)"
            )
        self.interval = intervals.pop()
        self.parts = nn.ModuleList(parts)
        self.shapes = {name: shape for part in parts for name, shape in part.shapes.items()}
        self.settle()

    def settle(self) -> None:
        """Take over where the parts jump; again after a part was replaced."""
        parts = self._trajectories()
        self.breakpoints = tuple(sorted({t for part in parts for t in part.breakpoints}))
        self.jumps = tuple(sorted({t for part in parts for t in part.jumps}))

    def forward(self, t: float | Tensor, side: Side = "right") -> Named:
        """Every weight at time t."""
        return {name: w for part in self.parts for name, w in part(t, side).items()}

    def table(self, stages: Stages) -> Named:
        """Every weight at every stage."""
        return {name: w for part in self._trajectories() for name, w in part.table(stages).items()}

    def energy(self, m: int = 0) -> Tensor:
        """The sum of the parts' energies."""
        return torch.stack([part.energy(m) for part in self._trajectories()]).sum()

    def _trajectories(self) -> list[Trajectory]:
        return [part for part in self.parts if isinstance(part, Trajectory)]
