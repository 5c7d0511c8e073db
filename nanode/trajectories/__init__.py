"""θ(t; α): weights as functions of time."""

from nanode.trajectories.expansion import Expansion
from nanode.trajectories.forms import Cayley, Exponential, Form, Skew
from nanode.trajectories.givens import GivensWalk, givens_coefficients, givens_product
from nanode.trajectories.householder import Householder
from nanode.trajectories.hypernetwork import Hypernetwork
from nanode.trajectories.initial import Held, Independent, Noisy, Start, Untied
from nanode.trajectories.joined import Joined
from nanode.trajectories.orthogonal import Orthogonal
from nanode.trajectories.penalties import (
    coefficient_penalty,
    function_penalty,
    smoothness_penalty,
)
from nanode.trajectories.trajectory import Trajectory, TrajectoryFactory

__all__ = [
    "Cayley",
    "Expansion",
    "Exponential",
    "Form",
    "GivensWalk",
    "Held",
    "Householder",
    "Hypernetwork",
    "Independent",
    "Joined",
    "Noisy",
    "Orthogonal",
    "Skew",
    "Start",
    "Trajectory",
    "TrajectoryFactory",
    "Untied",
    "coefficient_penalty",
    "function_penalty",
    "givens_coefficients",
    "givens_product",
    "smoothness_penalty",
]
