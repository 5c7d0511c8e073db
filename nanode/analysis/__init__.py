"""Checks and measurements that a user can run on a block.

How gradients travel in time: ``state_transition``, ``sensitivity``, ``jacobian_spectrum``,
``gradient_norms``, ``growth_rates``, each of the block's ``Steps`` or of its ``Equation``. Weights
and bases: ``weight_norms``, ``trajectory_spectrum``, ``basis_condition``. All of it on one page:
``analyse``; of a trained run, ``nanode.training.analyse_run``.
"""

from nanode.analysis.conditioning import BasisCondition, basis_condition
from nanode.analysis.gradient_check import (
    Comparison,
    GradientCheck,
    check_gradients,
    reversal_drift,
)
from nanode.analysis.gradients import GradientNorms, gradient_norms
from nanode.analysis.growth import GrowthRates, growth_rates
from nanode.analysis.implicit_midpoint import ImplicitMidpoint
from nanode.analysis.jacobian import JacobianSpectrum, jacobian_spectrum
from nanode.analysis.linearised import Equation, Steps
from nanode.analysis.memory import Memory, measure_memory
from nanode.analysis.page import Analysis, FlowAnalysis, SampleAnalysis
from nanode.analysis.random_weights import (
    ChebyshevFigure,
    RandomWeights,
    chebyshev_figure,
    random_weights,
)
from nanode.analysis.sensitivities import Sensitivity, sensitivity, sensitivity_values
from nanode.analysis.spectrum import TrajectorySpectrum, trajectory_spectrum
from nanode.analysis.survey import Effort, analyse
from nanode.analysis.transition import (
    SingularValues,
    Transition,
    state_transition,
    transition_values,
)
from nanode.analysis.weights import WeightNorms, weight_norms

__all__ = [
    "Analysis",
    "BasisCondition",
    "ChebyshevFigure",
    "Comparison",
    "Effort",
    "Equation",
    "FlowAnalysis",
    "GradientCheck",
    "GradientNorms",
    "GrowthRates",
    "ImplicitMidpoint",
    "JacobianSpectrum",
    "Memory",
    "RandomWeights",
    "SampleAnalysis",
    "Sensitivity",
    "SingularValues",
    "Steps",
    "TrajectorySpectrum",
    "Transition",
    "WeightNorms",
    "analyse",
    "basis_condition",
    "chebyshev_figure",
    "check_gradients",
    "gradient_norms",
    "growth_rates",
    "jacobian_spectrum",
    "measure_memory",
    "random_weights",
    "reversal_drift",
    "sensitivity",
    "sensitivity_values",
    "state_transition",
    "trajectory_spectrum",
    "transition_values",
    "weight_norms",
]
