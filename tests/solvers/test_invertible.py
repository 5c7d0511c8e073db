import math
from functools import partial

import pytest
import torch
from torch import nn

import nanode
from nanode.solvers import Uniform
from tests.solvers.problems import DOUBLE, Decay, Growth, Loop

RUNGE_KUTTA = [nanode.Euler, nanode.Midpoint, nanode.Heun, nanode.RK4, nanode.ThreeEighths]
INVERTIBLE = [
    nanode.Leapfrog(),
    nanode.ReversibleHeun(),
    *(nanode.Coupled(method()) for method in RUNGE_KUTTA),
]


def tanh_net(dtype, size=8):
    """Two layers of spectral norm 1: a field whose Lipschitz constant is at most 1."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(size, size), nn.Tanh(), nn.Linear(size, size)).double()
    with torch.no_grad():
        for layer in (net[0], net[2]):
            layer.weight.div_(torch.linalg.matrix_norm(layer.weight, 2))
    return net.to(dtype)


def drift(stepper, dtype, steps=100, autocast=False):
    """How far 100 steps and their inverses end from the start, and the dtypes carried."""
    net = tanh_net(dtype)
    torch.manual_seed(1)
    x = torch.randn(16, 8, dtype=dtype)
    loop = Loop(stepper, Uniform(steps).grid(0.0, 1.0), lambda stage, x: net(x))
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        there = loop.forth(x)
        back = loop.back(there)
    assert (there[0][0] - x).abs().max() > 0.1  # it went somewhere
    return float((back[0][0] - x).abs().max()), {part.dtype for (part,) in there[:2]}


@pytest.mark.parametrize("problem", [Growth(), Decay()], ids=["linear", "nonlinear"])
@pytest.mark.parametrize("stepper", INVERTIBLE, ids=repr)
def test_invert_undoes_step(stepper, problem):
    loop = Loop(stepper, Uniform(5).grid(0.2, 1.7), lambda stage, x: problem(stage.time, x))
    torch.manual_seed(0)
    # Any carry will do for step k > 0, except that reversible Heun's slope belongs to its shadow.
    before = loop.step(0, loop.start(problem.start))
    if not isinstance(loop.stepper, nanode.ReversibleHeun):
        before = tuple((part + 0.1 * torch.randn_like(part),) for (part,) in before)
    after = loop.invert(1, loop.step(1, before))
    for (a,), (b,) in zip(after, before, strict=True):
        # Some ten roundings of numbers of size one.
        assert (a - b).abs().max() < 1e-14


@pytest.mark.parametrize("stepper", INVERTIBLE, ids=repr)
def test_a_hundred_steps_return_in_double(stepper):
    # 100 steps' roundings of 1e-16, times at most e² from the default coupling.
    assert drift(stepper, DOUBLE)[0] < 1e-10


@pytest.mark.parametrize("stepper", INVERTIBLE, ids=repr)
def test_a_hundred_steps_return_in_single(stepper):
    # The same roundings, of 6e-8.
    assert drift(stepper, torch.float32)[0] < 1e-5


@pytest.mark.parametrize("stepper", INVERTIBLE, ids=repr)
def test_a_hundred_steps_return_with_f_in_bf16(stepper):
    # f is found again at a point off by 1e-7; where bf16 then rounds the other way, a step of 0.01
    # is off by 0.01 · 4e-3 · |f|: 4e-5 each time, and rare.
    error, dtypes = drift(stepper, torch.float32, autocast=True)
    assert error < 2e-4
    assert dtypes == {torch.float32}


def test_values_of_half_precision_are_widened_before_they_are_doubled():
    solve = partial(nanode.odeint, x=torch.zeros(1), steps=1, solver=nanode.Leapfrog())
    assert solve(lambda t, x: torch.full_like(x, 4e4, dtype=torch.float16)) == 4e4


@pytest.mark.parametrize("steps", [1, 10, 100])
def test_default_coupling_bounds_the_growth_of_rounding(steps):
    bound = nanode.Coupled(nanode.Midpoint()).bind(steps)
    assert math.isclose(bound.coupling, steps / (steps + 2))
    assert bound.coupling**-steps <= math.exp(2)
    assert nanode.Coupled(nanode.Midpoint(), coupling=0.9).bind(steps).coupling == 0.9
    assert nanode.Coupled(nanode.Midpoint(), damping=4).bind(steps).coupling == steps / (steps + 4)
    assert (
        nanode.Coupled(damping=0).bind(steps).coupling == nanode.Coupled(coupling=1).coupling == 1
    )


def test_a_small_coupling_drifts():
    """Why the default depends on K: λ^-100 = 4e4 at λ = 0.9."""
    loose = drift(nanode.Coupled(nanode.Midpoint(), coupling=0.9), DOUBLE)[0]
    tight = drift(nanode.Coupled(nanode.Midpoint()), DOUBLE)[0]
    assert loose > 100 * tight


def test_a_coupled_step_by_hand():
    """y' = λy + (1-λ)z + hf(z), z' = z + hf(y') for Euler, on dx/dt = -x."""
    stepper = nanode.Coupled(nanode.Euler(), coupling=0.75)
    loop = Loop(stepper, Uniform(2).grid(0.0, 1.0), lambda stage, x: -x)
    y, z = torch.tensor([2.0], dtype=DOUBLE), torch.tensor([1.0], dtype=DOUBLE)
    (y1,), (z1,) = loop.step(0, ((y,), (z,)))
    assert math.isclose(float(y1), 0.75 * 2 + 0.25 * 1 - 0.5 * 1)
    assert math.isclose(float(z1), 1 - 0.5 * float(y1))


def test_contracting_modes_within_the_bound_stay_bounded():
    # |μ|·T = 2 = c, the edge of what the default coupling promises; the exact value is e^-2.
    got = nanode.odeint(
        lambda t, x: -2 * x,
        torch.ones(1, dtype=DOUBLE),
        steps=100,
        solver=nanode.Coupled(nanode.Midpoint()),
    )
    assert abs(float(got) - math.exp(-2)) < 1e-3  # h² = 1e-4


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: nanode.Coupled(nanode.Leapfrog()), "needs an explicit Runge–Kutta method"),
        (lambda: nanode.Coupled(coupling=0.0), r"coupling must lie in \(0, 1\], got 0.0"),
        (lambda: nanode.Coupled(coupling=1.5), r"coupling must lie in \(0, 1\], got 1.5"),
        (lambda: nanode.Coupled(coupling=math.nan), "coupling must lie in"),
        (lambda: nanode.Coupled(damping=-1.0), "damping must be at least 0, got -1.0"),
        (lambda: nanode.Coupled(damping=math.nan), "damping must be at least 0"),
    ],
)
def test_refuses(make, message):
    with pytest.raises(ValueError, match=message):
        make()
