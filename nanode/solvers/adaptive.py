"""Adaptive steps: torchdiffeq's work, told about the jumps of the weights."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from nanode.solvers.stepper import State
from nanode.stages import Side

_METHODS = ("dopri5", "dopri8", "bosh3", "fehlberg2", "adaptive_heun")


@dataclass(frozen=True)
class Adaptive:
    """Steps chosen by an error estimate, by torchdiffeq (``pip install nanode[adaptive]``).

    ``method`` is any of torchdiffeq's adaptive ones (dopri5, dopri8, bosh3, fehlberg2,
    adaptive_heun). Breakpoints of the weights become its ``jump_t``, so that no step crosses one.
    Gradients by ``Backprop`` (through torchdiffeq's own steps) or ``Backsolve`` (its adjoint).
    """

    method: str = "dopri5"
    rtol: float = 1e-5
    atol: float = 1e-6
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.method not in _METHODS:
            raise ValueError(f"method must be one of {', '.join(_METHODS)}, got {self.method!r}")

    def solve(
        self,
        f: Callable[[Tensor, Side, State], State],
        x: State,
        times: Tensor,
        breakpoints: tuple[float, ...],
        adjoint: tuple[Tensor, ...] | None,
    ) -> list[Tensor]:
        """States at ``times`` with a leading axis; ``adjoint`` names tensors for a backsolve."""
        try:
            import torchdiffeq
        except ImportError as missing:
            raise ImportError(
                "adaptive solvers need torchdiffeq: pip install nanode[adaptive]"
            ) from missing
        marks = times.detach()
        first, last = marks[[0, -1]].tolist()
        jumps = [t for t in breakpoints if min(first, last) <= t <= max(first, last)]
        jump_t = torch.tensor(jumps, dtype=times.dtype, device=times.device)
        # Left alone torchdiffeq steps past a wanted time and interpolates, less accurately.
        stops = {"jump_t": jump_t, "step_t": marks[~torch.isin(marks, jump_t)]}
        options = self.options | stops
        sided = _Sided(f, jump_t.tolist(), forwards=first < last, adjoint=adjoint is not None)
        settings: dict[str, Any] = {
            "rtol": self.rtol,
            "atol": self.atol,
            "method": self.method,
            "options": options,
        }
        if adjoint is None:
            result = torchdiffeq.odeint(sided, x, times, **settings)
        else:
            # Where time runs backwards torchdiffeq's adjoint pass counts it negative.
            turned = {name: t if first < last else -t for name, t in stops.items()}
            result = torchdiffeq.odeint_adjoint(
                sided,
                x,
                times,
                adjoint_params=adjoint,
                adjoint_options=self.options | turned,
                **settings,
            )
        return list(result)


class _Sided(nn.Module):
    """f(t, x) for torchdiffeq, which steps to a jump and nudges t by an ulp to say from where."""

    def __init__(
        self,
        f: Callable[[Tensor, Side, State], State],
        jumps: list[float],
        forwards: bool,
        adjoint: bool,
    ) -> None:
        super().__init__()
        self.f, self.jumps, self.forwards, self.adjoint = f, jumps, forwards, adjoint

    def forward(self, t: Tensor, x: State) -> State:
        # Exactly on a jump only where a pass starts; torchdiffeq's adjoint pass, alone in
        # enabling grad, starts from the other end.
        turned = self.adjoint and torch.is_grad_enabled()
        side: Side = "right" if self.forwards != turned else "left"
        if self.jumps:
            now = float(t.detach())
            there = min(self.jumps, key=lambda b: abs(b - now))
            if now != there:
                side = "left" if now < there else "right"
        return self.f(t, side, x)
