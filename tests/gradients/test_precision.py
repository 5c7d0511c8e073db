"""Shapes without numbers: the meta device, which has no autocast."""

import pytest
import torch
from torch import nn

import nanode


@pytest.mark.parametrize("compile", [False, True])
@pytest.mark.parametrize(
    ("solver", "gradient"),
    [
        (nanode.Euler(), nanode.Backprop()),
        (nanode.Euler(), nanode.Checkpointed()),
        (nanode.Coupled(nanode.Euler()), nanode.Reversal()),
    ],
)
def test_shapes_on_the_meta_device(solver, gradient, compile):
    net = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    field = nanode.TimeVarying(net, nanode.Trigonometric(2))
    block = nanode.ODEBlock(field, 4, solver=solver, gradient=gradient, compile=compile)
    x = torch.empty(3, 4, device="meta", requires_grad=True)
    y = block.to("meta")(x)
    y.backward(torch.empty_like(y))
    assert y.shape == x.grad.shape == (3, 4)
    assert all(p.grad.shape == p.shape for p in block.parameters())
