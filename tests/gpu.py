"""A field, its gradients and how to compare them, for tests on a GPU."""

import torch
from torch import nn

import nanode

COMBINATIONS = [
    (nanode.Euler(), nanode.Backprop()),
    (nanode.Euler(), nanode.Checkpointed()),
    (nanode.RK4(), nanode.Checkpointed(chunk=5)),
    (nanode.Coupled(nanode.Euler()), nanode.Reversal()),
    (nanode.Leapfrog(), nanode.Reversal()),
    (nanode.ReversibleHeun(), nanode.Reversal(chunk=3)),
]


def conv_field(
    *more: nn.Module, dropout: float = 0.0, norm: type[nn.Module] = nanode.BatchNorm
) -> nanode.TimeVarying:
    torch.manual_seed(0)
    module = nn.Sequential(
        norm(8), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.Dropout(dropout), *more
    )
    return nanode.TimeVarying(module, nanode.Trigonometric(order=3), start=nanode.Noisy(0.3))


def gradients(block: nanode.ODEBlock, x: torch.Tensor) -> list[torch.Tensor]:
    x = x.clone().requires_grad_()
    torch.manual_seed(1)
    y = block(x)
    cotangent = torch.randn(y.shape, generator=torch.Generator().manual_seed(2)).to(y)
    return list(torch.autograd.grad(y, [x, *block.parameters()], cotangent))


def close(found, expected, tolerance):
    for a, b in zip(found, expected, strict=True):
        assert (a - b).norm() <= tolerance * b.norm() + 1e-30
