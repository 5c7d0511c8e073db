"""What the docs tell those who come from torchdiffeq, against torchdiffeq."""

import pytest
import torch
import torchdiffeq
from torch import nn

import nanode
from tests.solvers.problems import DOUBLE

SAME = {
    "euler": nanode.Euler(),
    "midpoint": nanode.Midpoint(),
    "heun2": nanode.Heun(),
    "rk4": nanode.ThreeEighths(),
}
TIMES = torch.linspace(0, 1, 6, dtype=DOUBLE)
ROUNDING = 1e-14  # some ten steps of numbers of size one


class Swing(nn.Module):
    """A small field that depends on time."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.inner = nn.Linear(3, 3, dtype=DOUBLE)
        self.start = torch.randn(4, 3, dtype=DOUBLE)

    def forward(self, t, x):
        return torch.tanh(self.inner(x)) * torch.cos(t)


def gradients(f, states):
    return torch.autograd.grad(states[-1].sin().sum(), list(f.parameters()))


def furthest(found, expected):
    return max((a - b).abs().max() for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("method", SAME)
def test_fixed_steps_are_the_same(method):
    f, solver = Swing(), SAME[method]
    states = torchdiffeq.odeint(f, f.start, TIMES, method=method)
    assert furthest(nanode.odeint(f, f.start, at=TIMES, solver=solver), states) < ROUNDING
    end = torchdiffeq.odeint(f, f.start, TIMES[[0, -1]], method=method, options={"step_size": 0.1})
    assert furthest(nanode.odeint(f, f.start, steps=10, solver=solver), end[-1]) < ROUNDING


def test_rk4_is_another_method_here():
    f = Swing()
    states = torchdiffeq.odeint(f, f.start, TIMES, method="rk4")
    classical = nanode.odeint(f, f.start, at=TIMES, solver=nanode.RK4())
    assert 1e-8 < furthest(classical, states) < 1e-4  # both of order 4, at steps of 0.2


def test_adaptive_steps_agree_to_the_tolerance():
    f, tolerances = Swing(), {"rtol": 1e-7, "atol": 1e-9}
    states = torchdiffeq.odeint(f, f.start, TIMES, method="dopri5", **tolerances)
    solver = nanode.Adaptive("dopri5", **tolerances)
    # Looser than a step's 1e-7: torchdiffeq interpolates between the ends of its steps.
    assert furthest(nanode.odeint(f, f.start, at=TIMES, solver=solver), states) < 1e-5
    adjoint = torchdiffeq.odeint_adjoint(f, f.start, TIMES, **tolerances)
    ours = nanode.odeint(f, f.start, at=TIMES, solver=solver, gradient=nanode.Backsolve())
    assert furthest(gradients(f, ours), gradients(f, adjoint)) < 1e-5


def test_what_stands_for_the_adjoint():
    f, solver = Swing(), nanode.ThreeEighths()
    exact = gradients(f, torchdiffeq.odeint(f, f.start, TIMES, method="rk4"))
    adjoint = gradients(f, torchdiffeq.odeint_adjoint(f, f.start, TIMES, method="rk4"))

    def ours(solver, gradient=None):
        return gradients(f, nanode.odeint(f, f.start, at=TIMES, solver=solver, gradient=gradient))

    # Fourth order at steps of 0.2: off by about 1e-6, theirs and ours.
    assert 1e-8 < furthest(adjoint, exact) < 1e-4
    assert furthest(ours(solver, nanode.Backsolve()), adjoint) < 1e-4
    assert furthest(ours(solver, nanode.Checkpointed()), exact) < ROUNDING
    undone = nanode.Coupled(solver)
    assert furthest(ours(undone, nanode.Reversal()), ours(undone)) < ROUNDING
