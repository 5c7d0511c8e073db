"""θ(t; α): weights as functions of time."""

from nanode.trajectories.expansion import Expansion
from nanode.trajectories.hypernetwork import Hypernetwork
from nanode.trajectories.initial import Held, Independent, Noisy, Start, Untied
from nanode.trajectories.joined import Joined
from nanode.trajectories.penalties import (
    coefficient_penalty,
    function_penalty,
    smoothness_penalty,
)
from nanode.trajectories.trajectory import Trajectory, TrajectoryFactory

__all__ = [
    "Expansion",
    "Held",
    "Hypernetwork",
    "Independent",
    "Joined",
    "Noisy",
    "Start",
    "Trajectory",
    "TrajectoryFactory",
    "Untied",
    "coefficient_penalty",
    "function_penalty",
    "smoothness_penalty",
]
