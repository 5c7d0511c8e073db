"""Lending parameters to a field for the length of a call."""

import torch
from torch import nn

import nanode
from nanode.fields.swap import with_parameters


class Named(nn.Module):
    """A module whose first layer has several names, and a last one that shares its weight."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(3, 3).double(), nn.Linear(3, 3).double()
        self.again = nn.ModuleList([self.first, self.first])
        self.last.weight = self.first.weight

    def forward(self, x):
        return torch.tanh(self.last(self.again[1](self.first(x))))


def test_every_parameter_comes_back_where_it_was():
    module = Named()
    field = nanode.Autonomous(module)
    before = dict(field.named_parameters(remove_duplicate=False))
    others = {name: torch.randn_like(p) for name, p in field.named_parameters()}

    x = torch.randn(2, 3).double()
    got = with_parameters(field, others, field, 0.0, x)

    w, a, b = others.values()
    y = x
    for bias in (a, a, b):
        y = y @ w.T + bias
    assert torch.allclose(got, torch.tanh(y), rtol=1e-12)
    after = dict(field.named_parameters(remove_duplicate=False))
    assert after.keys() == before.keys()
    assert all(after[name] is before[name] for name in before)


def test_values_that_differ_where_they_were_shared():
    field = nanode.Autonomous(Named())
    others = {
        name: torch.zeros_like(p)
        for name, p in field.named_parameters(remove_duplicate=False)
        if "again" not in name
    }
    others["module.last.weight"] = torch.eye(3).double()
    others["module.first.bias"] = torch.arange(3.0).double()

    got = with_parameters(field, others, field, 0.0, torch.zeros(1, 3).double())

    assert torch.equal(got, torch.tanh(torch.arange(3.0).double()[None]))
    assert field.module.last.weight is field.module.first.weight


def test_an_adaptive_adjoint_trains_a_layer_with_two_names():
    field = nanode.Autonomous(Named())
    solver = nanode.Adaptive(rtol=1e-9, atol=1e-9)
    found = []
    for gradient in (nanode.Backprop(), nanode.Backsolve()):
        block = nanode.ODEBlock(field, solver=solver, gradient=gradient)
        before = list(block.parameters())
        for _ in range(2):
            block.zero_grad()
            block(torch.linspace(-1, 1, 6).double().view(2, 3)).square().sum().backward()
        assert all(a is b for a, b in zip(before, block.parameters(), strict=True))
        found.append([p.grad.clone() for p in before])
    for exact, got in zip(*found, strict=True):
        assert (got - exact).norm() < 1e-7 * exact.norm()
