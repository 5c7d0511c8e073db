"""Checks and measurements that a user can run on a block."""

from nanode.analysis.gradient_check import (
    Comparison,
    GradientCheck,
    check_gradients,
    reversal_drift,
)
from nanode.analysis.memory import Memory, measure_memory

__all__ = [
    "Comparison",
    "GradientCheck",
    "Memory",
    "check_gradients",
    "measure_memory",
    "reversal_drift",
]
