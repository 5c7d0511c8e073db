"""Where the coefficients of an expansion start.

``Held`` is the default: the network starts as the wrapped module, at every time. The others trade
that promise for weights that differ in time from the first step on.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from nanode.bases import Basis

Coefficients = dict[str, Tensor]


class Start(ABC):
    """A rule for the first coefficients, ``name -> (d, *shape)``, given the module's own values."""

    @abstractmethod
    def __call__(self, parameters: Mapping[str, Tensor], basis: Basis) -> Coefficients:
        """The first coefficients."""


def check_start(start: Any) -> None:
    """Refuse what can't make coefficients, a class in place of its instance above all."""
    if isinstance(start, type):
        name = start.__name__
        raise ValueError(f"start is the class {name}; write nanode.{name}(...), an instance")
    if not (start is None or callable(start)):
        raise ValueError(f"start must be a Start such as nanode.Noisy(), got {start!r}")


@dataclass(frozen=True)
class Held(Start):
    """The module's own values, held constant in time."""

    def __call__(self, parameters: Mapping[str, Tensor], basis: Basis) -> Coefficients:
        """The coefficients of the constant function, times the values."""
        unit = basis.unit()
        return {name: _outer(unit, value) for name, value in parameters.items()}


@dataclass(frozen=True)
class Noisy(Start):
    r"""The module's own values, plus noise in every coefficient.

    .. math:: \alpha_k = c_k W + s\,\sigma_W \varepsilon_k

    with c the coefficients of the constant function, :math:`\sigma_W` the standard deviation of the
    module's values and s = ``scale``. Values that don't vary (norm scales, zero biases) get none.
    """

    scale: float = 0.1

    def __post_init__(self) -> None:
        if not self.scale >= 0:
            raise ValueError(f"scale must be at least 0, got {self.scale!r}")

    def __call__(self, parameters: Mapping[str, Tensor], basis: Basis) -> Coefficients:
        """The held coefficients with noise added."""
        held = Held()(parameters, basis)
        return {
            name: alpha + self.scale * spread(parameters[name]) * torch.randn_like(alpha)
            for name, alpha in held.items()
        }


@dataclass(frozen=True)
class Independent(Start):
    r"""Independent coefficients, scaled so that W(t) has the module's variance, averaged over t.

    .. math:: \alpha_k = c_k \bar W + \sigma \varepsilon_k, \qquad
              \sigma^2 \, \frac{1}{t_1 - t_0} \int \sum_k z_k(t)^2 dt = \mathrm{Var}(W)

    The mean of the module's values is held, so norm scales stay at one.
    """

    def __call__(self, parameters: Mapping[str, Tensor], basis: Basis) -> Coefficients:
        """Independent normal coefficients around the held mean."""
        unit = basis.unit()
        mean_square = float(basis.gram(0).trace()) / basis.length
        alphas = {}
        for name, value in parameters.items():
            alpha = _outer(unit, value.detach().mean().expand_as(value))
            alphas[name] = alpha + spread(value) / mean_square**0.5 * torch.randn_like(alpha)
        return alphas


@dataclass(frozen=True)
class Untied(Start):
    """An independent draw of the whole module per bucket, as the layers of a residual network have.

    The first bucket has the module's own values. ``draw`` makes a module of the same kind for each
    of the others, in their order. For bases whose coefficients are values of the weight somewhere:
    buckets, piecewise linear knots, spline control points.
    """

    draw: Callable[[], nn.Module]

    def __call__(self, parameters: Mapping[str, Tensor], basis: Basis) -> Coefficients:
        """One draw per coefficient; the first is the module's own."""
        if not torch.equal(basis.unit(), torch.ones(basis.size, dtype=torch.float64, device="cpu")):
            raise ValueError(
                f"Untied needs a basis whose coefficients are values of the weight (Bucketed, "
                f"PiecewiseLinear, BSpline), got {type(basis).__name__}; use Independent() instead"
            )
        rows: list[Mapping[str, Tensor]] = [parameters]
        for _ in range(basis.size - 1):
            fresh = dict(self.draw().named_parameters())
            missing = [name for name in parameters if name not in fresh]
            if missing:
                raise ValueError(f"draw() made a module without the parameters {missing}")
            for name, value in parameters.items():
                if fresh[name].shape != value.shape:
                    raise ValueError(
                        f"draw() made {name!r} of shape {tuple(fresh[name].shape)}, expected "
                        f"{tuple(value.shape)}, the shape of the numbers that move"
                    )
            rows.append(fresh)
        return {
            name: torch.stack([row[name].detach().to(value) for row in rows])
            for name, value in parameters.items()
        }


def _outer(unit: Tensor, value: Tensor) -> Tensor:
    """unit ⊗ value, exact where unit holds zeros and ones."""
    unit = unit.to(device=value.device, dtype=value.dtype)
    return unit.view(-1, *[1] * value.ndim) * value.detach()


def spread(value: Tensor) -> Tensor:
    """The standard deviation of the values, real for complex ones; zero for a single one."""
    wide = torch.promote_types(value.dtype, torch.float32)
    return value.detach().to(wide).std(correction=0).to(value.dtype.to_real())
