"""What the tests of trajectories and fields share: one of every basis, stages, quadrature."""

from fractions import Fraction
from itertools import pairwise

import numpy as np
import torch

import nanode
from nanode.stages import Stage, Stages

MAKERS = {
    "constant": lambda interval: nanode.Constant(interval=interval),
    "bucketed": lambda interval: nanode.Bucketed(4, interval=interval),
    "monomial": lambda interval: nanode.Monomial(3, interval=interval),
    "chebyshev": lambda interval: nanode.Chebyshev(3, interval=interval),
    "legendre": lambda interval: nanode.Legendre(3, interval=interval),
    "trigonometric": lambda interval: nanode.Trigonometric(2, interval=interval),
    "random_fourier": lambda interval: nanode.RandomFourier(4, seed=1, interval=interval),
    "piecewise_linear": lambda interval: nanode.PiecewiseLinear(4, interval=interval),
    "bspline": lambda interval: nanode.BSpline(4, degree=3, interval=interval),
}
EVERY = tuple(MAKERS)
#: Their functions sum to 1 with rounding; the others hold constants to the last bit.
SPLINES = ("piecewise_linear", "bspline")
#: Their coefficients are values of the weight.
LOCAL = ("constant", "bucketed", *SPLINES)


def make(name, interval=(0.0, 1.0)):
    return MAKERS[name](interval)


def step_stages(steps, interval=(0.0, 1.0)):
    """One evaluation at the start of each of K equal steps."""
    t0, t1 = (Fraction(end) for end in interval)
    starts = [t0 + (t1 - t0) * k / steps for k in range(steps)]
    return Stages(tuple(Stage(k, k, time=float(t), start=t) for k, t in enumerate(starts)))


def stirred(model, seed=7, size=0.5):
    """The model, its parameters moved away from where they started."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.add_(size * noise.to(parameter.dtype))
    return model


def quadrature(interval, breakpoints=()):
    """Composite Gauss nodes and weights, no panel across a breakpoint.

    Each piece is cut in four panels of 12 nodes: exact for polynomials up to degree 23, and below
    rounding for the few waves that the tests integrate.
    """
    ends = [interval[0], *breakpoints, interval[1]]
    edges = np.unique(np.concatenate([np.linspace(a, b, 5) for a, b in pairwise(ends)]))
    x, w = np.polynomial.legendre.leggauss(12)
    middle, half = (edges[1:] + edges[:-1]) / 2, np.diff(edges) / 2
    t, w = (middle[:, None] + half[:, None] * x).ravel(), (half[:, None] * w).ravel()
    return torch.from_numpy(t), torch.from_numpy(w)
