"""What the figures and the numbers of all analyses have in common."""

import math
from typing import Any, ClassVar

from torch import Tensor


class Findings:
    """The results of an analysis, a dataclass: numbers for JSON, and mostly a figure."""

    #: Properties to tell beside the fields.
    derived: ClassVar[tuple[str, ...]] = ()

    def numbers(self) -> dict[str, Any]:
        """All of it, for JSON; what is infinite or no number as None."""
        return {name: plain(getattr(self, name)) for name in (*vars(self), *self.derived)}


def axes(ax: Any = None) -> Any:
    """The axes to draw on; new ones for None."""
    return new_figure(5, 3.6).add_subplot() if ax is None else ax


def new_figure(width: float, height: float) -> Any:
    """An empty figure of so many inches, which needs no screen."""
    try:
        from matplotlib.figure import Figure
    except ImportError as missing:
        raise ImportError("figures need matplotlib: pip install nanode[plots]") from missing
    return Figure(figsize=(width, height), layout="constrained")


def lines(
    ax: Any,
    times: Tensor,
    values: Tensor,
    label: str,
    log: bool = True,
    **style: Any,
) -> Any:
    """Values over time, one line a column; of many columns the first, the last and a band."""
    ax = axes(ax)
    t = times.cpu().numpy()
    columns = values.detach().cpu().reshape(len(times), -1).numpy().T
    if len(columns) > 12:
        columns, between = columns[[0, -1]], columns
        ax.fill_between(t, between.min(0), between.max(0), alpha=0.15, color=style.get("color"))
    for n, column in enumerate(columns):
        ax.plot(t, column, label=label if n == 0 else None, **style)
    if log:
        log_scale(ax)
    ax.set_xlabel("t")
    ax.legend(fontsize=7)
    return ax


def log_scale(ax: Any) -> None:
    """A logarithmic axis over a factor of two at least: rounding errors are not to fill it."""
    ax.set_yscale("log")
    low, high = ax.dataLim.minposy, ax.dataLim.ymax
    if low <= high < 2 * low:
        room = (2 * low / high) ** 0.5
        ax.set_ylim(low / room, high * room)
    else:
        ax.autoscale(axis="y")


def plain(value: Any) -> Any:
    """Findings and tensors as dicts and lists, and what is no number as None, for JSON.

    >>> import torch
    >>> plain({"norm": torch.tensor([1.0, float("inf")])})
    {'norm': [1.0, None]}
    """
    if isinstance(value, Findings):
        return value.numbers()
    if isinstance(value, Tensor):
        return plain(value.tolist())
    if isinstance(value, dict):
        return {str(key): plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
