"""One step of x, and where the steps lie."""

from nanode.solvers.adaptive import Adaptive
from nanode.solvers.grid import Aligned, Given, Grid, Schedule, Uniform, as_schedule
from nanode.solvers.invertible import Coupled, Leapfrog, ReversibleHeun
from nanode.solvers.runge_kutta import (
    RK4,
    Euler,
    Heun,
    Midpoint,
    RungeKutta,
    Tableau,
    ThreeEighths,
)
from nanode.solvers.stepper import Invertible, Stepper

__all__ = [
    "RK4",
    "Adaptive",
    "Aligned",
    "Coupled",
    "Euler",
    "Given",
    "Grid",
    "Heun",
    "Invertible",
    "Leapfrog",
    "Midpoint",
    "ReversibleHeun",
    "RungeKutta",
    "Schedule",
    "Stepper",
    "Tableau",
    "ThreeEighths",
    "Uniform",
    "as_schedule",
]
