"""Differential equations that carry their exact solutions, and a bare loop over a stepper.

The first two know the time and are solved on any interval, the third has weights that jump; the
last three are the ones that torchdiffeq tests its own methods with.
"""

import math
from dataclasses import dataclass

import torch
from torch import nn

import nanode

DOUBLE = torch.float64


def tight(method="dopri5", tolerance=1e-8):
    return nanode.Adaptive(method, rtol=tolerance, atol=tolerance)


class Growth:
    """dx/dt = cos(t) x: linear, its rate changes sign."""

    start = torch.tensor([1.0, -0.5], dtype=DOUBLE)

    def __call__(self, t, x):
        return math.cos(t) * x

    def exact(self, t0, t):
        return self.start * math.exp(math.sin(t) - math.sin(t0))


class Decay:
    """dx/dt = -2t x²: nonlinear."""

    start = torch.tensor([0.2, 0.25], dtype=DOUBLE)  # no pole on [0.2, 1.7], either way

    def __call__(self, t, x):
        return -2 * t * x.square()

    def exact(self, t0, t):
        return 1 / (t * t - t0 * t0 + 1 / self.start)


class Wave(nn.Module):
    """f(x; w) = w sin x, solved by tan(x/2) = tan(x0/2) exp(∫w)."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.zeros((), dtype=DOUBLE))

    def forward(self, x, factor=1.0):
        return factor * self.w * torch.sin(x)


#: Of the weight w over [0, 1], and where x starts.
BUCKETS, START = [3.0, -1.0, 0.5, 2.0], torch.tensor([0.5, 1.0], dtype=DOUBLE)


def jumping():
    """The field of a wave whose weight jumps."""
    field = nanode.TimeVarying(Wave(), basis=nanode.Bucketed(len(BUCKETS)))
    with torch.no_grad():
        field.trajectory.coefficients.w.copy_(torch.tensor(BUCKETS, dtype=DOUBLE)[:, None])
    return field


def flowed(x, total):
    """The solution from x where w has that integral."""
    return 2 * torch.atan(torch.tan(x / 2) * torch.as_tensor(total, dtype=DOUBLE).exp())


class ConstantSlope:
    """dx/dt = a + (x - at - b)^5, whose solution through b at 0 is a line."""

    a, b = 0.2, 3.0

    def __call__(self, t, x):
        return self.a + (x - (self.a * t + self.b)) ** 5

    def exact(self, t):
        return (self.a * t + self.b)[:, None]


class Rotation:
    """dx/dt = Ax with a skew matrix."""

    def __init__(self, size=10):
        noise = torch.randn(size, size, generator=torch.Generator().manual_seed(0), dtype=DOUBLE)
        self.matrix = 0.1 * (noise - noise.T)

    def __call__(self, t, x):
        return self.matrix @ x

    def exact(self, t):
        ones = torch.ones(len(self.matrix), dtype=DOUBLE)
        return torch.stack([torch.matrix_exp(self.matrix * float(s)) @ ones for s in t])


class Sine:
    """dx/dt = 2x/t + t⁴ sin 2t - t² + 4t³."""

    def __call__(self, t, x):
        t = torch.as_tensor(t, dtype=DOUBLE)
        return 2 * x / t + t**4 * torch.sin(2 * t) - t**2 + 4 * t**3

    def exact(self, t):
        waves = -(t**4) * torch.cos(2 * t) / 2 + t**3 * torch.sin(2 * t) / 2
        rest = t**2 * torch.cos(2 * t) / 4 - t**3 + 2 * t**4 + (math.pi - 0.25) * t**2
        return (waves + rest)[:, None]


KNOWN = {"constant": ConstantSlope(), "linear": Rotation(), "sine": Sine()}


@dataclass
class Loop:
    """A stepper on a grid with f(stage, x), without anything else of nanode."""

    stepper: object
    grid: object
    f: object

    def __post_init__(self):
        self.stepper = self.stepper.bind(self.grid.steps)
        self.stages = self.grid.stages(self.stepper)
        self.widths = self.grid.widths()

    def local(self, k):
        base = int(self.stepper.opening) + k * len(self.stepper.fractions)
        return lambda j, x: (self.f(self.stages[base + j], x[0]),)

    def start(self, x):
        return self.stepper.start(self.local(0), (x,))

    def step(self, k, carry):
        return self.stepper.step(self.local(k), self.widths[k], carry)

    def invert(self, k, carry):
        return self.stepper.invert(self.local(k), self.widths[k], carry)

    def forth(self, x):
        carry = self.start(x)
        for k in range(self.grid.steps):
            carry = self.step(k, carry)
        return carry

    def back(self, carry):
        for k in reversed(range(self.grid.steps)):
            carry = self.invert(k, carry)
        return carry


def fitted_order(steps, errors):
    """The slope of log error over log step width, by least squares."""
    h = -torch.tensor(steps, dtype=DOUBLE).log()
    e = torch.tensor(errors, dtype=DOUBLE).log()
    h, e = h - h.mean(), e - e.mean()
    return float((h @ e) / (h @ h))
