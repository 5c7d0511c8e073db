"""How the solve is differentiated."""

from nanode.gradients.backprop import Backprop
from nanode.gradients.backsolve import Backsolve
from nanode.gradients.checkpointed import Checkpointed
from nanode.gradients.compiled import Compiled
from nanode.gradients.gradient import Gradient
from nanode.gradients.problem import Evaluations, Plan, Problem
from nanode.gradients.reversal import Reversal

__all__ = [
    "Backprop",
    "Backsolve",
    "Checkpointed",
    "Compiled",
    "Evaluations",
    "Gradient",
    "Plan",
    "Problem",
    "Reversal",
]
