"""Functional transforms are Backprop's."""

import torch
from torch.func import functional_call

import nanode
from tests.block.common import make
from tests.gradients.models import DOUBLE, inputs


class TestTransforms:
    def test_vmap(self):
        block = make()
        x = torch.randn(5, 2, 3, dtype=DOUBLE)
        assert (torch.func.vmap(block)(x) - block(x)).abs().max() < 1e-14

    def test_jvp(self):
        block = make(solver=nanode.RK4())
        x, v = torch.randn(2, 2, 3, dtype=DOUBLE)
        _, slope = torch.func.jvp(block, (x,), (v,))
        h = 1e-6
        with torch.no_grad():
            expected = (block(x + h * v) - block(x - h * v)) / (2 * h)
        # Central differences: h² from f''', 1e-16 / h from rounding.
        assert (slope - expected).abs().max() < 1e-8

    def test_jacobians_of_parameters(self):
        block = make()
        x = torch.randn(3, dtype=DOUBLE)
        parameters = {n: p.detach() for n, p in block.named_parameters()}
        jacobian = torch.func.jacrev(lambda p: functional_call(block, p, (x,)))(parameters)
        for n, p in enumerate(torch.eye(3, dtype=DOUBLE)):
            rows = torch.autograd.grad((block(x) * p).sum(), list(block.parameters()))
            for row, name in zip(rows, parameters, strict=True):
                assert (jacobian[name][n] - row).abs().max() < 1e-14

    def test_double_backward(self):
        block = make(solver=nanode.Midpoint(), steps=4)
        assert torch.autograd.gradgradcheck(block, inputs(), atol=1e-7, fast_mode=True)
