"""Neural ODEs whose weights are explicit functions of time.

The folders are the equation, read from the inside out: ``bases`` z(t), ``trajectories`` θ(t; α),
``fields`` f(t, x), ``solvers`` one step, ``gradients`` the whole solve and its derivative.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nanode.analysis import check_gradients, measure_memory, reversal_drift
    from nanode.bases import (
        Basis,
        BSpline,
        Bucketed,
        Chebyshev,
        Constant,
        Legendre,
        Monomial,
        PiecewiseLinear,
        RandomFourier,
        Trigonometric,
    )
    from nanode.block import ODEBlock
    from nanode.fields import (
        Autonomous,
        BatchNorm,
        Callback,
        Field,
        Gated,
        TimeAppended,
        TimeVarying,
        convert_norms,
    )
    from nanode.gradients import Backprop, Backsolve, Checkpointed, Gradient, Reversal
    from nanode.integrate import odeint
    from nanode.solvers import (
        RK4,
        Adaptive,
        Aligned,
        Coupled,
        Euler,
        Given,
        Heun,
        Leapfrog,
        Midpoint,
        ReversibleHeun,
        RungeKutta,
        Tableau,
        ThreeEighths,
        Uniform,
    )
    from nanode.trajectories import (
        Cayley,
        Expansion,
        Exponential,
        Form,
        GivensWalk,
        Held,
        Householder,
        Hypernetwork,
        Independent,
        Noisy,
        Orthogonal,
        Skew,
        Start,
        Trajectory,
        Untied,
        coefficient_penalty,
        function_penalty,
        givens_coefficients,
        givens_product,
        smoothness_penalty,
    )
    from nanode.transforms import (
        from_layers,
        materialise,
        module_at,
        project,
        projection_errors,
    )

__version__ = "0.1.0"

__all__ = [
    "RK4",
    "Adaptive",
    "Aligned",
    "Autonomous",
    "BSpline",
    "Backprop",
    "Backsolve",
    "Basis",
    "BatchNorm",
    "Bucketed",
    "Callback",
    "Cayley",
    "Chebyshev",
    "Checkpointed",
    "Constant",
    "Coupled",
    "Euler",
    "Expansion",
    "Exponential",
    "Field",
    "Form",
    "Gated",
    "Given",
    "GivensWalk",
    "Gradient",
    "Held",
    "Heun",
    "Householder",
    "Hypernetwork",
    "Independent",
    "Leapfrog",
    "Legendre",
    "Midpoint",
    "Monomial",
    "Noisy",
    "ODEBlock",
    "Orthogonal",
    "PiecewiseLinear",
    "RandomFourier",
    "Reversal",
    "ReversibleHeun",
    "RungeKutta",
    "Skew",
    "Start",
    "Tableau",
    "ThreeEighths",
    "TimeAppended",
    "TimeVarying",
    "Trajectory",
    "Trigonometric",
    "Uniform",
    "Untied",
    "check_gradients",
    "coefficient_penalty",
    "convert_norms",
    "from_layers",
    "function_penalty",
    "givens_coefficients",
    "givens_product",
    "materialise",
    "measure_memory",
    "module_at",
    "odeint",
    "project",
    "projection_errors",
    "reversal_drift",
    "smoothness_penalty",
]

# Torch takes seconds to import, and the command's help and its errors can do without: so what is
# imported above in the eyes of type checkers comes with the first name that is asked for.
if not TYPE_CHECKING:
    _PARTS = (
        "stages",
        "bases",
        "trajectories",
        "fields",
        "solvers",
        "kernels",
        "gradients",
        "integrate",
        "block",
        "transforms",
        "analysis",
    )
    #: None of whose names are the package's own.
    _OTHERS = ("models", "data", "training")

    def __getattr__(name: str) -> Any:
        if name in _OTHERS:
            return import_module(f"{__name__}.{name}")
        if name not in (*__all__, *_PARTS):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        for part in _PARTS:
            module = vars(import_module(f"{__name__}.{part}"))
            globals().update({known: module[known] for known in __all__ if known in module})
        return globals()[name]

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__, *_PARTS, *_OTHERS})
