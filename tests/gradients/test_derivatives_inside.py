"""Fields that take derivatives themselves: energies, densities."""

import pytest
import torch
from torch import nn

import nanode
from tests.gradients.models import DOUBLE, distance

#: By how much each may be off Backprop: rounding, undoing, and the solver's own error at 400 steps.
METHODS = [
    (nanode.Checkpointed(), nanode.RK4(), 1e-13),
    (nanode.Reversal(), nanode.Coupled(nanode.RK4()), 1e-11),
    (nanode.Backsolve(), nanode.RK4(), 1e-6),
]


class Pendulum(nn.Module):
    """dq/dt = ∂H/∂p, dp/dt = −∂H/∂q, written as for torchdiffeq."""

    def __init__(self):
        super().__init__()
        layers = nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1, bias=False)
        self.energy = nn.Sequential(*layers).to(DOUBLE)

    def forward(self, t, state):
        q, p = state
        with torch.enable_grad():
            q.requires_grad_()
            p.requires_grad_()
            energy = self.energy(torch.cat([q, p], 1)).sum()
            down, up = torch.autograd.grad(energy, (q, p), create_graph=True)
        return up, -down


class Density(nn.Module):
    """x and log p(x), whose derivative is −tr ∂f/∂x, exactly."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 2)).to(DOUBLE)

    def forward(self, t, state):
        x, _ = state
        with torch.set_grad_enabled(True):
            x = x.requires_grad_(True) if x.is_leaf else x
            slope = self.net(x)
            columns = [
                torch.autograd.grad(slope[:, i].sum(), x, create_graph=True)[0][:, i]
                for i in range(2)
            ]
        return slope, -sum(columns)


STATES = {
    Pendulum: lambda: (torch.randn(3, 2, dtype=DOUBLE), torch.randn(3, 2, dtype=DOUBLE)),
    Density: lambda: (torch.randn(3, 2, dtype=DOUBLE), torch.zeros(3, dtype=DOUBLE)),
}


def found(field, solver, gradient, steps=400):
    torch.manual_seed(1)
    state = tuple(part.requires_grad_() for part in STATES[type(field)]())
    end = nanode.odeint(field, state, steps=steps, solver=solver, gradient=gradient)
    loss = sum(part.square().sum() for part in end)
    named = {"x": state[0], **dict(field.named_parameters())}
    grads = torch.autograd.grad(loss, list(named.values()))
    return dict(zip(named, grads, strict=True))


@pytest.mark.parametrize("kind", [Pendulum, Density])
@pytest.mark.parametrize(("gradient", "solver", "tolerance"), METHODS, ids=repr)
def test_gradients(kind, gradient, solver, tolerance):
    torch.manual_seed(0)
    field = kind()
    steps = 400 if isinstance(gradient, nanode.Backsolve) else 5
    expected = found(field, solver, nanode.Backprop(), steps)
    assert distance(found(field, solver, gradient, steps), expected) < tolerance


@pytest.mark.parametrize("kind", [Pendulum, Density])
def test_gradients_of_adaptive_steps(kind):
    torch.manual_seed(0)
    field, solver = kind(), nanode.Adaptive(rtol=1e-9, atol=1e-10)
    expected = found(field, solver, nanode.Backprop(), None)
    assert distance(found(field, solver, nanode.Backsolve(), None), expected) < 1e-5


@pytest.mark.parametrize(("gradient", "solver", "tolerance"), METHODS, ids=repr)
def test_without_gradients_the_state_requires_none(gradient, solver, tolerance):
    field, state = Pendulum(), STATES[Pendulum]()
    with torch.no_grad():
        end = nanode.odeint(field, state, steps=20, solver=solver, gradient=gradient)
    assert not any(part.requires_grad for part in (*state, *end))


@pytest.mark.parametrize(("gradient", "solver", "tolerance"), METHODS, ids=repr)
def test_a_hidden_tensor_is_refused_beside_x(gradient, solver, tolerance):
    hidden = torch.ones(2, dtype=DOUBLE, requires_grad=True)

    def f(t, x):
        with torch.enable_grad():
            x.requires_grad_()
            (slope,) = torch.autograd.grad((hidden * x.sin()).sum(), x, create_graph=True)
        return slope

    x = torch.ones(3, 2, dtype=DOUBLE)
    with pytest.raises(ValueError, match="neither x, conditioning, nor a parameter"):
        nanode.odeint(f, x, steps=20, solver=solver, gradient=gradient)
    with pytest.raises(ValueError, match="neither x, conditioning, nor a parameter"):
        nanode.odeint(lambda t, x: hidden, x[0], steps=20, solver=solver, gradient=gradient)


@pytest.mark.parametrize("gradient", [nanode.Checkpointed(), nanode.Backsolve()], ids=repr)
def test_a_hidden_tensor_in_the_memory_of_the_start_is_refused(gradient):
    """In one step there is no later evaluation at which it would be told from x."""
    base = torch.ones(4, dtype=DOUBLE, requires_grad=True)
    fields = {
        "the start itself": (lambda t, x: x * base, base),
        "its neighbour": (lambda t, x: x * base[2:], base[:2]),
    }
    for f, x in fields.values():
        with pytest.raises(ValueError, match="neither x, conditioning, nor a parameter"):
            nanode.odeint(f, x, steps=1, solver=nanode.RK4(), gradient=gradient)
        with pytest.raises(ValueError, match="neither x, conditioning, nor a parameter"):
            nanode.odeint(f, x, steps=1, solver=nanode.Midpoint(), gradient=gradient)


def test_hooks_on_x_inside_f():
    """The gradient that a hook changes is that of the state, which goes on to earlier steps."""

    class Hooked(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(2, 2).to(DOUBLE)

        def forward(self, t, x):
            if x.requires_grad:
                x.register_hook(lambda g: 2 * g)
            return torch.tanh(self.layer(x))

    field, found = Hooked(), []
    for gradient in (nanode.Backprop(), nanode.Checkpointed(), nanode.Checkpointed(segments=4)):
        x = torch.ones(3, 2, dtype=DOUBLE, requires_grad=True)
        y = nanode.odeint(field, x, steps=4, gradient=gradient)
        found.append(torch.autograd.grad(y.sum(), x)[0])
    assert (found[1] - found[0]).abs().max() < 1e-12
    assert (found[2] - found[0]).abs().max() < 1e-12


class Descent(nn.Module):
    """f goes down the slope of what a whole solve inside of it makes of x."""

    def __init__(self, gradient):
        super().__init__()
        field = nanode.Autonomous(nn.Linear(2, 2).to(DOUBLE))
        self.inner = nanode.ODEBlock(field, 3, gradient=gradient)

    def forward(self, t, x):
        with torch.enable_grad():
            at = x.detach().requires_grad_()
            (slope,) = torch.autograd.grad(self.inner(at).square().sum(), at)
        return x - slope


@pytest.mark.timeout(60)
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("gradient", [nanode.Backprop(), nanode.Checkpointed()], ids=repr)
def test_a_solve_inside_of_f_that_f_differentiates(gradient, device):
    """Its backward pass evaluates in the midst of an evaluation that has its weights, too."""
    torch.manual_seed(0)
    plain, recomputed = Descent(nanode.Backprop()), Descent(nanode.Checkpointed())
    recomputed.load_state_dict(plain.state_dict())
    start, ends = torch.randn(4, 2, dtype=DOUBLE), []
    for field in (plain, recomputed):
        x = start.to(device, copy=True).requires_grad_()
        end = nanode.odeint(field.to(device), x, steps=2, gradient=gradient)
        ends.append([end.detach(), *torch.autograd.grad(end.sum(), x)])
    for found, expected in zip(*ends, strict=True):
        assert (found - expected).abs().max() < 1e-13


def test_derivatives_inside_of_f_are_the_work_of_its_own_thread():
    """On a GPU autograd's thread would wait for a turn that the waiting one has."""
    within = []

    def f(t, x):
        within.append(torch._C._is_multithreading_enabled())
        return x

    nanode.odeint(f, torch.ones(2), steps=1)
    assert within
    assert not any(within)
    assert torch._C._is_multithreading_enabled()
