"""One solve by fused kernels: what it is besides its tensors."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from nanode.fields import BatchNorm
from nanode.gradients.checkpointed import Checkpointed
from nanode.gradients.fused.bottleneck import Bottlenecks
from nanode.gradients.gradient import Gradient
from nanode.gradients.problem import Problem
from nanode.kernels import Norm
from nanode.kernels.project import Moments

#: The norms of one evaluation, with the statistics they used.
Norms = tuple[Norm, Norm, Norm]


class Run:
    """What one solve needs besides tensors."""

    def __init__(self, method: Gradient, problem: Problem, moving: Sequence[bool]) -> None:
        plan = problem.plan
        self.method, self.moving, self.owned = method, moving, problem.owned
        self.keeps = torch.is_grad_enabled()
        self.widths = plan.widths
        self.stepper = plan.stepper
        module: Any = plan.field.module
        self.norms: list[BatchNorm] = list(module)[::3]

    def dtype(self, x: Tensor) -> torch.dtype:
        """The precision of products: autocast's, or the state's."""
        kind = x.device.type
        return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype

    def fixed(self) -> Sequence[tuple[Moments, ...]]:
        """The norms' own statistics in every evaluation, in eval mode."""
        if self.norms[0].training:
            return ()
        parts = [(n.running_mean, torch.rsqrt(n.running_var + n.eps)) for n in self.norms]
        return [tuple((m[i], r[i]) for m, r in parts) for i in range(len(parts[0][0]))]

    def bounds(self, x: Tensor, fields: Bottlenecks) -> list[int]:
        """Where the segments of a checkpointed solve start; none if all middles can be kept.

        They can where they take no more than the states that checkpoints are made of: those at the
        segments' starts, and those inside the segment that is being solved again.
        """
        steps = len(self.widths)
        if not self.keeps or not isinstance(self.method, Checkpointed):
            return []
        bounds = self.method.bounds(steps)
        states = len(bounds) - 1 + max(b - a for a, b in pairwise(bounds))
        middle = fields.weights(0).last.shape[1] * fields.dtype.itemsize
        return [] if steps * middle <= states * x.shape[1] * x.itemsize else bounds[:-1]

    def record(self, seen: Sequence[Norms], pixels: int) -> None:
        """Move every evaluation's running statistics towards what was measured."""
        sizes = [norm.mean.numel() for norm in seen[0]]
        mean = torch.cat([norm.mean for norms in seen for norm in norms]).view(len(seen), -1)
        rstd = torch.cat([norm.rstd for norms in seen for norm in norms]).view(len(seen), -1)
        var = (rstd**-2).sub_(self.norms[0].eps).clamp_min_(0).mul_(pixels / max(pixels - 1, 1))
        running = [r for norm in self.norms for r in (norm.running_mean, norm.running_var)]
        pairs = zip(mean.split(sizes, 1), var.split(sizes, 1), strict=True)
        new = [part for pair in pairs for part in pair]
        found = [part.to(r.dtype) for part, r in zip(new, running, strict=True)]
        torch._foreach_lerp_(running, found, self.norms[0].momentum)
