"""Solves of the pre-activation bottleneck by fused kernels."""

from nanode.gradients.fused.solve import Fused, serves

__all__ = ["Fused", "serves"]
