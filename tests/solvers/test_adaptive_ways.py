"""Adaptive solves that interpolate, take a norm of one's own, or lie in a compiled model."""

import math

import pytest
import torch
import torchdiffeq
from torch import nn

import nanode
from tests.solvers.problems import DOUBLE


@pytest.mark.parametrize("interval", [(0.0, 10.0), (10.0, 0.0)])
def test_interpolating_between_own_steps(interval):
    """As torchdiffeq does by itself: far fewer evaluations, and not as accurate between them."""
    calls = 0

    def f(t, x):
        nonlocal calls
        calls += 1
        return torch.sin(3 * t) - 0.1 * x

    x = torch.ones(3, dtype=DOUBLE)
    at = torch.linspace(*interval, 501, dtype=DOUBLE)
    exact = nanode.odeint(
        f, x, interval=interval, at=at, solver=nanode.Adaptive(rtol=1e-11, atol=1e-12)
    )
    counts, errors = [], []
    for interpolate in (False, True):
        calls = 0
        solver = nanode.Adaptive(rtol=1e-5, atol=1e-6, interpolate=interpolate)
        found = nanode.odeint(f, x, interval=interval, at=at, solver=solver)
        counts.append(calls)
        errors.append((found - exact).abs())
    assert counts[1] < 0.1 * counts[0]
    assert errors[0].max() < errors[1].max() < 1e-3
    theirs = torchdiffeq.odeint(f, x, at, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(found, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("gradient", [nanode.Backprop(), nanode.Backsolve()], ids=repr)
@pytest.mark.parametrize("state", ["tensor", "tuple"])
def test_a_norm_of_ones_own_takes_the_state(gradient, state):
    seen = set()

    def norm(x):
        seen.add(type(x))
        parts = x if isinstance(x, tuple) else (x,)
        return max(part.abs().max() for part in parts)

    class Still(nn.Module):
        def __init__(self):
            super().__init__()
            self.rate = nn.Parameter(torch.tensor(-0.5, dtype=DOUBLE))

        def forward(self, t, x):
            return tuple(self.rate * part for part in x) if isinstance(x, tuple) else self.rate * x

    field, x = Still(), torch.ones(3, dtype=DOUBLE)
    start = (x, x[:2]) if state == "tuple" else x
    solver = nanode.Adaptive(rtol=1e-9, atol=1e-10, options={"norm": norm})
    end = nanode.odeint(field, start, solver=solver, gradient=gradient)
    total = sum(part.sum() for part in end) if state == "tuple" else end.sum()
    (grad,) = torch.autograd.grad(total, field.rate)
    count = 5 if state == "tuple" else 3
    assert float(grad) == pytest.approx(count * math.exp(-0.5), rel=1e-6)
    assert seen == {tuple if state == "tuple" else torch.Tensor}


@pytest.mark.parametrize("gradient", [nanode.Backprop(), nanode.Backsolve()], ids=repr)
def test_the_compiler_leaves_an_adaptive_solve_alone(gradient):
    """How many steps there are depends on values; torch's compiler failed in the midst of them."""
    field = nanode.TimeVarying(nn.Linear(4, 4), nanode.Legendre(2))
    model = nn.Sequential(
        nn.Linear(4, 4), nanode.ODEBlock(field, solver=nanode.Adaptive(), gradient=gradient)
    )
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph.code)
        return graph.forward

    x, parameters = torch.randn(2, 4), list(model.parameters())
    found = torch.compile(model, backend=backend)(x)
    expected = model(x)
    assert torch.equal(found, expected)
    grads = (torch.autograd.grad(y.sum(), parameters) for y in (found, expected))
    assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True))
    assert len(graphs) == 1
    assert "unique" not in graphs[0]
