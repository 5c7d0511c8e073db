r"""How the gradient of a loss travels back in time, :math:`\|\partial L/\partial x(t)\|`."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten

from nanode.analysis.drawing import Findings, lines
from nanode.analysis.linearised import Linearised, Of, Steps
from nanode.analysis.subject import Subject
from nanode.block import ODEBlock
from nanode.doubles import in_double


@dataclass(frozen=True, eq=False)
class GradientNorms(Findings):
    """``norms`` (m,) of the gradient in the state at ``times`` (m,), the last at the end."""

    derived = ("growth",)

    times: Tensor
    norms: Tensor

    @property
    def growth(self) -> float:
        """The norm at the start over the norm at the end."""
        return float(self.norms[0] / self.norms[-1])

    def plot(self, ax: Any = None, label: str = "‖∂L/∂x(t)‖", **style: Any) -> Any:
        """The norm over time."""
        return lines(ax, self.times, self.norms, label, **style)


def gradient_norms(
    block: ODEBlock,
    x: Any,
    *conditioning: Any,
    gradient: Any = None,
    of: Of | None = None,
) -> GradientNorms:
    """‖∂L/∂x(t)‖ at the ends of all steps.

    Args:
        block: any block; it is looked at in eval mode, and left alone.
        x: its input.
        conditioning: the field's further inputs.
        gradient: ∂L/∂x(t1), in the structure of the block's state; by default a random direction of
            length one, the same at every call.
        of: the block's own ``Steps()`` (the default here: these gradients are what training sees)
            or ``Equation()``.

    >>> import nanode, torch
    >>> block = nanode.ODEBlock(lambda t, x: -x, steps=2)
    >>> gradient_norms(block, torch.ones(3)).norms
    tensor([0.2500, 0.5000, 1.0000], dtype=torch.float64)
    """
    solve = Linearised(Subject(block, x, conditioning), of or Steps())
    solve.require_memoryless("the gradient along the way")
    pulled = _direction(solve, gradient)[:, None]
    norms = [in_double(pulled).norm()]
    for k in reversed(range(solve.steps)):
        pulled = solve.pull(pulled, k, k + 1)
        norms.append(in_double(pulled).norm())
    times = torch.tensor(solve.times, dtype=torch.float64, device="cpu")
    return GradientNorms(times, torch.stack(norms[::-1]).cpu())


def _direction(solve: Linearised, gradient: Any) -> Tensor:
    if gradient is None:
        generator = torch.Generator().manual_seed(0)
        random = torch.randn(solve.size, generator=generator, dtype=torch.float64, device="cpu")
        direction: Tensor = random / random.norm()
        return direction.to(solve.begin)
    parts = tree_flatten(gradient)[0]
    expected = solve.subject.layout.shapes
    found = [getattr(part, "shape", None) for part in parts]
    if found != expected:
        raise ValueError(
            f"gradient must have the shapes of the block's state, {[tuple(s) for s in expected]}, "
            f"got {[None if s is None else tuple(s) for s in found]}"
        )
    return solve.subject.layout.vector(tuple(part.detach() for part in parts)).to(solve.begin)
