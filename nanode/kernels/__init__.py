from nanode.kernels.activate import activate, activate_backward, activate_sums
from nanode.kernels.expand import expand
from nanode.kernels.expand_backward import expand_backward
from nanode.kernels.language import Norm, Tile
from nanode.kernels.moments import moments
from nanode.kernels.project import project
from nanode.kernels.project_backward import project_backward, project_backward_sums

__all__ = [
    "Norm",
    "Tile",
    "activate",
    "activate_backward",
    "activate_sums",
    "expand",
    "expand_backward",
    "moments",
    "project",
    "project_backward",
    "project_backward_sums",
]
