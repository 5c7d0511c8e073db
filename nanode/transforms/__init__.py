"""From one model to another that does the same, or nearly."""

from nanode.transforms.materialise import Unrolled, materialise
from nanode.transforms.projection import project, projection_errors

__all__ = ["Unrolled", "materialise", "project", "projection_errors"]
