"""Adaptive steps: torchdiffeq's work, told about the jumps of the weights."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from nanode.solvers.stepper import State
from nanode.stages import Side


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
        first, last = (float(t) for t in times.detach()[[0, -1]])
        # Those at the ends too: torchdiffeq steps past the end and interpolates.
        jumps = [t for t in breakpoints if min(first, last) <= t <= max(first, last)]
        options = dict(self.options)
        if jumps:
            options["jump_t"] = torch.tensor(jumps, dtype=times.dtype, device=times.device)
        sided = _Sided(f, jumps, forwards=first < last, adjoint=adjoint is not None)
        settings: dict[str, Any] = {
            "rtol": self.rtol,
            "atol": self.atol,
            "method": self.method,
            "options": options,
        }
        if adjoint is None:
            result = torchdiffeq.odeint(sided, x, times, **settings)
        else:
            result = torchdiffeq.odeint_adjoint(
                sided, x, times, adjoint_params=adjoint, adjoint_options=options, **settings
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
            now = float(t)
            jump = min(self.jumps, key=lambda b: abs(b - now))
            # The jump as torchdiffeq sees it, in t's own precision.
            there = float(torch.tensor(jump, dtype=t.dtype))
            if now != there:
                side = "left" if now < there else "right"
        return self.f(t, side, x)
