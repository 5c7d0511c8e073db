"""Small systems whose derivatives are known, or can be found another way."""

import torch
from torch import nn

import nanode

torch64 = {"dtype": torch.float64}


class Matrix(nn.Module):
    """x ↦ Ax or tanh(Ax), A as it is or made skew-symmetric, of the same size either way."""

    def __init__(self, size, skew=False, bend=False):
        super().__init__()
        self.a = nn.Parameter(torch.randn(size, size, **torch64) / size**0.5)
        self.skew, self.bend = skew, bend

    def forward(self, x):
        a = (self.a - self.a.T) / 2**0.5 if self.skew else self.a
        y = x @ a.T
        return y.tanh() if self.bend else y


def moving(size, basis, seed=0, **kind):
    """A matrix field whose entries move independently."""
    torch.manual_seed(seed)
    return nanode.TimeVarying(Matrix(size, **kind), basis, start=nanode.Independent())


def network(size=4, seed=0, basis=None, **options):
    """A small network with moving weights, far from linear."""
    torch.manual_seed(seed)
    module = nn.Sequential(nn.Linear(size, 5), nn.Tanh(), nn.Linear(5, size)).double()
    basis = basis or nanode.Chebyshev(degree=2)
    return nanode.TimeVarying(module, basis, start=nanode.Noisy(0.7), **options)


def gaussian(size, seed=0):
    """A block whose Jacobian is a Gaussian matrix: its spectrum has no gaps to go by."""
    torch.manual_seed(seed)
    return nanode.ODEBlock(nanode.Autonomous(Matrix(size)), steps=2)


def sample(*shape, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), **torch64)


def jacobian_in_x(block, x):
    """By reverse mode through the whole block, row by row."""
    n = x.numel()
    return torch.autograd.functional.jacobian(block, x).reshape(n, n)


def jacobian_in_parameters(block, x):
    """By reverse mode through the whole block, row by row; parameters side by side."""
    parameters = [p for p in block.parameters() if p.requires_grad]
    out = block(x).reshape(-1)
    rows = [
        torch.cat([g.reshape(-1) for g in torch.autograd.grad(y, parameters, retain_graph=True)])
        for y in out
    ]
    return torch.stack(rows)


def largest(difference):
    return float(difference.detach().abs().max())
