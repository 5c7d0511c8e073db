"""Integrals of products of waves cos(ζt + η), shared by the bases made of them."""

import math

import torch
from torch import Tensor

from nanode.bases.basis import Interval


def wave_gram(frequencies: Tensor, phases: Tensor, interval: Interval, m: int) -> Tensor:
    r"""The Gram matrix of the m-th derivatives of waves, in closed form.

    .. math:: G_{ij} = \tfrac12 \zeta_i^m \zeta_j^m \left[ C(\zeta_i - \zeta_j, \eta_i - \eta_j)
              + (-1)^m C(\zeta_i + \zeta_j, \eta_i + \eta_j) \right], \qquad
              C(a, b) = \int_{t_0}^{t_1} \cos(at + b)\,dt

    Shapes: frequencies and phases ``(n,)`` in float64, the result ``(n, n)``. A frequency of zero
    is the constant cos η.

    >>> zero = torch.zeros(1, dtype=torch.float64)
    >>> wave_gram(zero, zero, (0.0, 3.0), m=0)
    tensor([[3.]], dtype=torch.float64)
    """
    apart = cosine_integral(frequencies[:, None] - frequencies, phases[:, None] - phases, interval)
    together = cosine_integral(
        frequencies[:, None] + frequencies, phases[:, None] + phases, interval
    )
    power = torch.pow(frequencies, m)
    sign = -1 if m % 2 else 1
    return power[:, None] * power * (apart + sign * together) / 2


def cosine_integral(a: Tensor, b: Tensor, interval: Interval) -> Tensor:
    r"""The integral of cos(at + b) over an interval of length L and middle c.

    .. math:: C(a, b) = L \cos(ac + b)\, \frac{\sin(aL/2)}{aL/2}

    Unlike a difference of sines over a, this loses no digits as a → 0, where it is L cos b.

    >>> cosine_integral(torch.tensor(0.0), torch.tensor(0.0), (1.0, 3.0))
    tensor(2.)
    """
    t0, t1 = interval
    length = t1 - t0
    return length * torch.cos(a * ((t0 + t1) / 2) + b) * torch.sinc(a * (length / (2 * math.pi)))
