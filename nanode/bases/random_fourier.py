"""Random Fourier features of time."""

import math
from collections.abc import Callable
from typing import Any, Self, final

import torch
from torch import Tensor

from nanode.bases.basis import Basis, Interval, one
from nanode.bases.waves import wave_gram
from nanode.doubles import hosted, widened
from nanode.stages import Side
from nanode.values import checked_count, checked_positive


@final
class RandomFourier(Basis):
    r"""A constant, then waves of random frequency and phase, drawn once from a seed.

    .. math:: z_0(t) = 1, \qquad z_k(t) = \cos(\zeta_k t + \eta_k), \qquad
              \zeta_k \sim N(0, \mathrm{scale}^2), \quad \eta_k \sim U(0, 2\pi)

    Shapes: t of any shape gives ``(*t.shape, features + 1)``; t is the raw time. The default scale
    2π / (t1 − t0) lets a typical wave turn once over the interval. As scale → 0 all features become
    constants.

    ζ and η are buffers, saved with the model, and stay in float64 whatever dtype the model is cast
    to, since tables of values are made in float64 (float32 on MPS, which has no other). Coming
    from the meta device, through ``to_empty``, they are drawn again from the seed.

    >>> basis = RandomFourier(features=8, seed=1)
    >>> basis(torch.tensor(0.5)).shape
    torch.Size([9])
    >>> basis.half().frequencies.dtype
    torch.float64
    """

    frequencies: Tensor
    phases: Tensor

    def __init__(
        self,
        features: int,
        seed: int = 0,
        scale: float | None = None,
        interval: Interval = (0.0, 1.0),
    ) -> None:
        super().__init__(interval)
        hint = "; for weights that do not move use Constant()"
        self.features = checked_count("features", features, 1, hint)
        self.seed = checked_count("seed", seed, 0)
        default = 2 * math.pi / self.length
        self.scale = default if scale is None else checked_positive("scale", scale, hint)
        self.size = self.features + 1
        for name, drawn in self.draw().items():
            self.register_buffer(name, drawn)

    def draw(self) -> dict[str, Tensor]:
        """Frequencies ζ and phases η from the seed, each ``(features,)`` in float64 on CPU."""
        generator = torch.Generator(device="cpu").manual_seed(self.seed)
        like: dict[str, Any] = {"dtype": torch.float64, "device": "cpu", "generator": generator}
        frequencies = self.scale * torch.randn(self.features, **like)
        phases = 2 * math.pi * torch.rand(self.features, **like)
        return {"frequencies": frequencies, "phases": phases}

    def values(self, t: Tensor, side: Side) -> Tensor:
        """The constant, then the waves."""
        time = widened(t)[..., None]
        frequencies = hosted(self.frequencies).to(device=t.device, dtype=time.dtype)
        phases = hosted(self.phases).to(device=t.device, dtype=time.dtype)
        waves = torch.cos(frequencies * time + phases)
        return torch.cat([one(time), waves], dim=-1).to(t.dtype)

    def gram(self, m: int = 0) -> Tensor:
        """Products of waves turned into sums, integrated in closed form."""
        m = checked_count("m", m, 0)
        zero = torch.zeros(1, dtype=torch.float64, device="cpu")
        frequencies = torch.cat([zero, hosted(self.frequencies).to(zero)])
        phases = torch.cat([zero, hosted(self.phases).to(zero)])
        return wave_gram(frequencies, phases, self.interval, m)

    def unit(self) -> Tensor:
        """The first function is 1."""
        return torch.eye(self.size, dtype=torch.float64, device="cpu")[0]

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        # Casts must not reach the buffers, moves must. A probe tells where fn sends things without
        # letting it round or empty (``to_empty``) what is kept here.
        for name, drawn in self.draw().items():
            held = getattr(self, name)
            device = fn(torch.empty(0, dtype=torch.float32, device=held.device)).device
            dtype = torch.float32 if device.type == "mps" else torch.float64
            source = drawn if held.is_meta else held
            setattr(self, name, hosted(source).to(device=device, dtype=dtype))
        return self

    def extra_repr(self) -> str:
        """Seed and scale besides."""
        return f"seed={self.seed}, scale={self.scale:.4g}, {super().extra_repr()}"
