"""Small fields, and what a solve gives back for them."""

import torch
from torch import nn

import nanode
from nanode.models.layers import bottleneck

DOUBLE = torch.float64
RUNGE_KUTTA = [nanode.Euler, nanode.Midpoint, nanode.Heun, nanode.RK4, nanode.ThreeEighths]
INVERTIBLE = [
    nanode.Leapfrog(),
    nanode.ReversibleHeun(),
    *(nanode.Coupled(method()) for method in RUNGE_KUTTA),
]


X = torch.randn(3, 4, 5, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


class Net(nn.Module):
    """Two layers and an optional input between them."""

    def __init__(self, size=3, hidden=4):
        super().__init__()
        self.first = nn.Linear(size, hidden)
        self.last = nn.Linear(hidden, size)

    def forward(self, x, between=None):
        h = self.first(x)
        if between is not None:
            h = h + between
        return self.last(torch.tanh(h))


def moving(basis, *, net=None, overrides=None, seed=0):
    """A field whose coefficients all differ, so that no gradient vanishes by symmetry."""
    torch.manual_seed(seed)
    net = (net if net is not None else Net()).double()
    return nanode.TimeVarying(net, basis, start=nanode.Noisy(1.0), overrides=overrides)


BASES = {
    "aligned buckets": lambda: nanode.Bucketed(4),
    "fewer buckets": lambda: nanode.Bucketed(3),
    "trigonometric": lambda: nanode.Trigonometric(order=1),
    "constant": lambda: nanode.Constant(),
}


def inputs(batch=2, size=3, hidden=4):
    torch.manual_seed(1)
    x = torch.randn(batch, size, dtype=DOUBLE, requires_grad=True)
    between = torch.randn(batch, hidden, dtype=DOUBLE, requires_grad=True)
    return x, between


def gradients(block, x, *conditioning, parameters=None):
    """The output, and the gradients of x, conditioning tensors and parameters by name."""
    leaves = {"x": x, **{f"conditioning {n}": c for n, c in enumerate(conditioning)}}
    leaves = {name: leaf for name, leaf in leaves.items() if isinstance(leaf, torch.Tensor)}
    leaves |= dict(block.named_parameters()) if parameters is None else parameters
    y = block(x, *conditioning)
    weight = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view_as(y)
    found = torch.autograd.grad((y * weight).sum(), list(leaves.values()), allow_unused=True)
    return y.detach(), dict(zip(leaves, found, strict=True))


def distance(got, reference):
    """The largest relative distance of two sets of gradients, over their names."""
    assert got.keys() == reference.keys()
    assert all(grad is not None and grad.abs().max() > 0 for grad in reference.values())
    return max(float((got[n] - g).norm() / g.norm()) for n, g in reference.items())


def total_distance(got, reference):
    """The relative distance of all gradients taken as one vector."""
    difference = sum(float((got[n] - g).square().sum()) for n, g in reference.items())
    return (difference / sum(float(g.square().sum()) for g in reference.values())) ** 0.5


def conv_field(*more):
    """A norm that stays, and a convolution that moves."""
    torch.manual_seed(0)
    module = nn.Sequential(nanode.BatchNorm(4), nn.Tanh(), nn.Conv2d(4, 4, 3, padding=1), *more)
    return nanode.TimeVarying(
        module.double(),
        nanode.Trigonometric(order=2),
        start=nanode.Noisy(0.3),
        overrides={"0": None},
    )


def bottleneck_field(kind, width=16, hidden=8):
    """The field that fused kernels serve, its norms away from ones and zeros."""
    torch.manual_seed(0)
    module = bottleneck(width, hidden, nanode.BatchNorm)
    for norm in list(module)[::3]:
        nn.init.normal_(norm.weight, 1, 0.2)
        nn.init.normal_(norm.bias, 0, 0.2)
    if kind == "autonomous":
        return nanode.Autonomous(module)
    overrides = dict.fromkeys(["0", "3", "6"]) if kind == "constant norms" else None
    basis = nanode.Bucketed(3) if kind == "buckets" else nanode.Trigonometric(order=2)
    return nanode.TimeVarying(module, basis, start=nanode.Noisy(0.3), overrides=overrides)


def passed(block, x):
    """The output, the gradients of x and all parameters, and the statistics, of one pass."""
    x = x.clone().requires_grad_()
    y = block(x)
    found = y.detach().clone()  # a solve that owns its memory may write over its end
    cotangent = torch.randn(y.shape, generator=torch.Generator().manual_seed(1)).to(y)
    grads = torch.autograd.grad(y, [x, *block.parameters()], cotangent)
    return [found, *grads, *(buffer.clone() for buffer in block.buffers())]


def passed_twice(block, x):
    """The same in training mode, and the output in eval mode."""
    found = passed(block.train(), x)
    with torch.no_grad():
        return [*found, block.eval()(x)]


def refuse(*args):
    """In the place of a method that must not be called."""
    raise AssertionError("the plain method ran")
