"""Fixed functions of time, z: t ↦ R^d. One file a family; nothing here is learned."""

from nanode.bases.basis import Basis
from nanode.bases.bspline import BSpline
from nanode.bases.bucketed import Bucketed
from nanode.bases.constant import Constant
from nanode.bases.piecewise_linear import PiecewiseLinear
from nanode.bases.polynomials import Chebyshev, Legendre, Monomial
from nanode.bases.random_fourier import RandomFourier
from nanode.bases.trigonometric import Trigonometric

__all__ = [
    "BSpline",
    "Basis",
    "Bucketed",
    "Chebyshev",
    "Constant",
    "Legendre",
    "Monomial",
    "PiecewiseLinear",
    "RandomFourier",
    "Trigonometric",
]
