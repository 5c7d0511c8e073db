"""Adaptive steps: torchdiffeq's work, told about the jumps of the weights."""

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

import torch
from torch import Tensor, nn

from nanode.solvers.grid import as_numbers
from nanode.solvers.stepper import State
from nanode.stages import Side
from nanode.values import check_choice, check_flag

_METHODS = ("dopri5", "dopri8", "bosh3", "fehlberg2", "adaptive_heun")


@dataclass(frozen=True)
class Adaptive:
    """Steps chosen by an error estimate, by torchdiffeq (``pip install nanode[adaptive]``).

    ``method`` is any of torchdiffeq's adaptive ones (dopri5, dopri8, bosh3, fehlberg2,
    adaptive_heun). Breakpoints of the weights become its ``jump_t``, so that no step crosses one;
    those in ``options``, which are torchdiffeq's, are joined to them. The error of a step is kept
    below ``atol + rtol * |x|``, two numbers that hold for the whole state. It steps to every wanted
    time; with ``interpolate`` it goes its own way and interpolates between its steps, which is less
    accurate and much faster where many times are wanted. Gradients by
    ``Backprop`` (through torchdiffeq's own steps) or ``Backsolve`` (its adjoint, whose backward
    pass fails in torchdiffeq's own words: "underflow in dt" where the reversed solution grows too
    fast).
    """

    method: str = "dopri5"
    rtol: float = 1e-5
    atol: float = 1e-6
    options: dict[str, Any] = field(default_factory=dict)
    interpolate: bool = False

    def __post_init__(self) -> None:
        check_choice("method", self.method, _METHODS)
        _check_tolerance("rtol", self.rtol)
        _check_tolerance("atol", self.atol)
        check_flag("interpolate", self.interpolate)
        if not (self.rtol or self.atol):
            raise ValueError("rtol and atol are both 0, which no step can meet; raise one of them")
        if not isinstance(self.options, dict):
            raise ValueError(
                f"options must be a dict of torchdiffeq's options, got {self.options!r}"
            )
        for option in ("jump_t", "step_t"):
            self._own(option)  # refused now, not at the first solve

    def _own(self, option: str) -> tuple[float, ...]:
        """The times in one of torchdiffeq's options, as numbers."""
        values = self.options.get(option)
        try:
            times = () if values is None else as_numbers(values)
        except (TypeError, ValueError) as why:
            raise ValueError(f"options[{option!r}]: {why}") from None
        if not all(map(math.isfinite, times)):
            raise ValueError(f"options[{option!r}] must hold finite times, got {list(times)}")
        return times

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
        jump_t = _between(marks, (*breakpoints, *self._own("jump_t")))
        # Left alone torchdiffeq steps past a wanted time and interpolates.
        met = marks[[0, -1]] if self.interpolate else marks
        step_t = torch.cat([met, _between(marks, self._own("step_t"))]).unique()
        stops = {"jump_t": jump_t, "step_t": step_t[~torch.isin(step_t, jump_t)]}
        # By default torchdiffeq keeps times in double precision where the state is.
        own = ({"dtype": torch.float32} if x[0].device.type == "mps" else {}) | self.options
        norm = own.pop("norm", None)
        adjoint_norm = {"norm": norm} if norm == "seminorm" else {}  # else made of the state's
        options = own | stops | ({} if norm is None or adjoint_norm else {"norm": _of_state(norm)})
        sided = _Sided(f, jump_t.tolist(), forwards=first < last, adjoint=adjoint is not None)
        settings: dict[str, Any] = {
            "rtol": self.rtol,
            "atol": self.atol,
            "method": self.method,
            "options": options,
        }
        if adjoint is not None:
            # Where time runs backwards torchdiffeq's adjoint pass counts it negative.
            turned = {name: t if first < last else -t for name, t in stops.items()}
            settings |= {"adjoint_params": adjoint, "adjoint_options": own | adjoint_norm | turned}
        odeint = torchdiffeq.odeint if adjoint is None else torchdiffeq.odeint_adjoint
        with self._explained(sided):
            return list(odeint(sided, x, times, **settings))

    @contextmanager
    def _explained(self, sided: "_Sided") -> Iterator[None]:
        """Say what torchdiffeq's bare assertions mean; those of the field stay as they are."""
        try:
            yield
        except AssertionError as failed:
            reason = next((why for what, why in _FAILURES if str(failed).startswith(what)), None)
            if reason is None:
                raise
            tolerances = f"rtol={self.rtol} and atol={self.atol}"
            raise RuntimeError(
                f"{self.method} can't go on{sided.where()}: {reason.format(tolerances)}"
            ) from failed


#: How torchdiffeq's assertions begin, and what they say.
_TOO_HARD = (
    "Either the solution grows too fast there, or {} are too small for the state's dtype. Solve "
    "over a shorter interval, with larger tolerances or in float64, or by fixed steps such as "
    "nanode.RK4(); check_finite=True names the first time at which f isn't finite"
)
_FAILURES = (
    ("underflow in dt", f"its steps have become too small to move t. {_TOO_HARD}"),
    ("non-finite values in state", f"the state is no longer finite. {_TOO_HARD}"),
    (
        "max_num_steps exceeded",
        "it has made as many steps as max_num_steps allows at {}. Allow more in options, or solve "
        "with larger tolerances, over a shorter interval or by fixed steps such as nanode.RK4()",
    ),
)


def _check_tolerance(name: str, value: Any) -> None:
    number = isinstance(value, Real) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or value < 0:
        raise ValueError(f"{name} must be one finite number of at least 0, got {value!r}")


def _of_state(norm: Callable[[Any], Tensor]) -> Callable[[State], Tensor]:
    """A norm of the parts of a state, from one that takes a tensor where the state is one."""
    return lambda parts: norm(parts[0] if len(parts) == 1 else parts)


def _between(marks: Tensor, times: Iterable[float]) -> Tensor:
    """Those times that lie in the solve, each once and sorted, as the marks are."""
    # Rounded as the marks are before they are compared: a jump where the solve begins stays there.
    rounded = torch.tensor([*times], dtype=marks.dtype, device=marks.device).unique()
    low, high = marks[[0, -1]].sort().values
    found: Tensor = rounded[(low <= rounded) & (rounded <= high)]
    return found


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
        #: Where f was evaluated last.
        self.last: Tensor | None = None

    def where(self) -> str:
        """Where f was evaluated last, for a message; where f isn't finite, t may not be either."""
        now = math.nan if self.last is None else float(self.last)
        return f" near t = {now:.6g}" if math.isfinite(now) else ""

    def forward(self, t: Tensor, x: State) -> State:
        self.last = t.detach()
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
