"""How far single ReLUs at their kinks take gradients in fp32 from those in float64.

Rounding opens or shuts a few of millions. With the float64 solve's own choices imposed on the fp32
one, nothing but rounding is left.

    python benchmarks/kinks.py > benchmarks/results/kinks-cpu.json
"""

import argparse
import json

import torch
import torch.nn.functional as F
from torch import Tensor

WIDTH, HIDDEN, SIDE, STEPS = 256, 64, 32, 10
SHAPES = [(HIDDEN, WIDTH, 1), (HIDDEN, HIDDEN, 3), (WIDTH, HIDDEN, 1)]


def solve(
    x: Tensor, kernels: list[Tensor], imposed: list[Tensor] | None = None
) -> tuple[Tensor, list[Tensor]]:
    """Euler steps of the bottleneck of ``compare.py``, and which ReLUs were open."""
    opened: list[Tensor] = []

    def activated(h: Tensor) -> Tensor:
        h = F.batch_norm(h, None, None, training=True)
        opened.append((h > 0).detach())
        return h * (opened[-1] if imposed is None else imposed[len(opened) - 1])

    for first, middle, last in zip(*kernels, strict=True):
        h = F.conv2d(activated(x), first)
        h = F.conv2d(activated(h), middle, padding=1)
        x = x + F.conv2d(activated(h), last) / STEPS
    return x, opened


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    torch.manual_seed(given.seed)
    exact = [
        torch.randn(STEPS, out, into, side, side, dtype=torch.float64)
        * (2 / (into * side**2)) ** 0.5
        for out, into, side in SHAPES
    ]
    x, cotangent = torch.randn(2, given.batch, WIDTH, SIDE, SIDE, dtype=torch.float64)

    def gradients(
        dtype: torch.dtype, imposed: list[Tensor] | None = None
    ) -> tuple[Tensor, list[Tensor]]:
        kernels = [kernel.to(dtype).requires_grad_() for kernel in exact]
        y, opened = solve(x.to(dtype), kernels, imposed)
        found = torch.autograd.grad(y, kernels, cotangent.to(dtype))
        return torch.cat([g.double().flatten() for g in found]), opened

    truth, meant = gradients(torch.float64)
    single, opened = gradients(torch.float32)
    forced, _ = gradients(torch.float32, meant)
    record = {
        "batch": given.batch,
        "seed": given.seed,
        "torch": torch.__version__,
        "relus": sum(m.numel() for m in meant),
        "opened_or_shut_by_rounding": sum(
            int((a != b).sum()) for a, b in zip(opened, meant, strict=True)
        ),
        "error": float((single - truth).norm() / truth.norm()),
        "error_with_the_same_open": float((forced - truth).norm() / truth.norm()),
    }
    print(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
