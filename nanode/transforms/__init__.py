"""From one model to another that does the same, or nearly."""

from nanode.transforms.materialise import Unrolled, materialise, module_at
from nanode.transforms.projection import project, projection_errors
from nanode.transforms.residual import from_layers

__all__ = [
    "Unrolled",
    "from_layers",
    "materialise",
    "module_at",
    "project",
    "projection_errors",
]
