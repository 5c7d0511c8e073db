"""Fields that aren't the same when they are evaluated again for the backward pass."""

import math
import warnings
from functools import partial
from unittest.mock import Mock

import pytest
import torch
from torch import nn

import nanode
from nanode.gradients import repeats
from nanode.gradients.repeats import TRIALS, differ, looked_at, sample

EXACT = [
    (nanode.Checkpointed(), nanode.RK4()),
    (nanode.Reversal(), nanode.Leapfrog()),
    (nanode.Reversal(), nanode.Coupled(nanode.Midpoint())),
]
exact = pytest.mark.parametrize(("gradient", "solver"), EXACT, ids=repr)
CHANGED = "came to other states"


class Density(nn.Module):
    """A flow and Hutchinson's estimate of its divergence, the noise an attribute."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2))
        self.noise = None

    def forward(self, state):
        x, _ = state
        if self.noise is None:
            self.noise = torch.randn_like(x)
        with torch.enable_grad():
            x = x.view_as(x).requires_grad_()
            dx = self.net(x)
            (product,) = torch.autograd.grad(dx, x, self.noise, create_graph=True)
        return dx, -(product * self.noise).sum(1)


@exact
@pytest.mark.parametrize("solves", [1, 2])
def test_noise_that_is_set_anew_before_each_solve(gradient, solver, solves):
    field = nanode.TimeVarying(Density(), nanode.Legendre(2))
    losses = []
    for x in torch.randn(solves, 32, 2):
        field.module.noise = None
        end = nanode.odeint(field, (x, torch.zeros(32)), steps=8, solver=solver, gradient=gradient)
        losses.append(end[1].square().sum())
    if solves == 1:  # found in the first evaluation, the same ever after
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            losses[0].backward()
        return
    with pytest.warns(UserWarning, match=CHANGED):
        sum(losses).backward()


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.scale, self.calls = nn.Linear(3, 3), 1.0, 0

    def forward(self, x):
        self.calls += 1
        return self.layer(x).tanh() * self.scale


@exact
def test_a_number_that_changes_before_the_backward_pass(gradient, solver):
    field = nanode.TimeVarying(Scaled(), nanode.Legendre(2))
    end = nanode.odeint(field, torch.randn(4, 3), steps=8, solver=solver, gradient=gradient)
    field.module.scale = 0.5
    with pytest.warns(UserWarning, match=CHANGED):
        end.sum().backward()


@exact
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_counting_is_no_change(gradient, solver, dtype):
    field = nanode.TimeVarying(Scaled(), nanode.Trigonometric(order=2)).to(dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        x = torch.randn(4, 3, dtype=dtype)
        for scale in (1.0, 0.0):  # the second goes nowhere
            field.module.scale = scale
            nanode.odeint(field, x, steps=50, solver=solver, gradient=gradient).sum().backward()
    assert field.module.calls > 200


@pytest.mark.parametrize("gradient", [nanode.Checkpointed(), nanode.Reversal()], ids=repr)
def test_half_precision_is_no_change(gradient):
    field = nanode.TimeVarying(Scaled(), nanode.Legendre(2))
    x = torch.randn(4, 3)
    with warnings.catch_warnings(), torch.autocast("cpu", torch.bfloat16):
        warnings.simplefilter("error")
        end = nanode.odeint(field, x, steps=50, solver=nanode.Leapfrog(), gradient=gradient)
        end.sum().backward()


@pytest.mark.parametrize(
    "state", [(torch.zeros(0, 3), torch.randn(2, 3)), (torch.tensor(0.5), torch.randn(3))]
)
@exact
def test_states_without_numbers_or_axes(gradient, solver, state):
    scale = nn.Parameter(torch.tensor(0.5))

    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = scale

        def forward(self, parts):
            return tuple(self.scale * part for part in parts)

    field = nanode.TimeVarying(Both(), nanode.Constant())
    end = nanode.odeint(field, state, steps=9, solver=solver, gradient=gradient)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        end[1].sum().backward()


class Counted(nn.Module):
    """torch's own batch norm, whose buffers move without a change that torch counts."""

    def __init__(self, size=3):
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.register_buffer("mean", torch.zeros(3))
        self.register_buffer("var", torch.ones(3))
        self.register_buffer("gap", torch.tensor([float("nan"), float("inf")]))

    def forward(self, x):
        x = nn.functional.batch_norm(x, self.mean, self.var, training=self.training)
        return self.layer(x)


@pytest.mark.parametrize(
    ("gradient", "solver"),
    [*EXACT, (nanode.Backsolve(), nanode.RK4()), (nanode.Backsolve(), nanode.Adaptive())],
    ids=repr,
)
def test_buffers_that_move_uncounted_are_an_error(gradient, solver):
    field = nanode.TimeVarying(Counted(), nanode.Legendre(2))
    steps = None if isinstance(solver, nanode.Adaptive) else 4
    x = torch.randn(8, 3)
    with pytest.raises(ValueError, match=r"changes its buffer '.*mean'"):
        nanode.odeint(field, x, steps=steps, solver=solver, gradient=gradient)
    field.eval()
    nanode.odeint(field, x, steps=steps, solver=solver, gradient=gradient).sum().backward()


def test_a_gpu_is_waited_for_in_the_first_passes_only(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing)
    monkeypatch.setattr(repeats, "is_plain", lambda part: part.device.type != "meta")
    field, there = nanode.Autonomous(nn.Linear(2, 2)), Mock(device=torch.device("cuda"))
    capturing = True
    assert not looked_at(field, [there])
    capturing = False
    assert [looked_at(field, [there]) for _ in range(TRIALS + 2)] == [True] * TRIALS + [False] * 2
    assert looked_at(field, [torch.ones(2)])
    assert not looked_at(field, [torch.ones(2, device="meta")])


class Turning(nn.Module):
    """Volume is preserved: the divergence is zero up to rounding."""

    def __init__(self):
        super().__init__()
        self.energy = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 1))

    def forward(self, state):
        def flow(x):
            dq, dp = torch.func.grad(lambda x: self.energy(x).sum())(x)
            return torch.stack([dp, -dq])

        x, _ = state
        jacobians = torch.func.vmap(torch.func.jacrev(flow))(x)
        return torch.func.vmap(flow)(x), jacobians.diagonal(dim1=1, dim2=2).sum(1)


@pytest.mark.parametrize(
    "solver", [nanode.Leapfrog(), nanode.Coupled(), nanode.ReversibleHeun()], ids=repr
)
def test_a_part_of_the_size_of_rounding_is_no_change(solver):
    torch.manual_seed(0)
    field = nanode.TimeVarying(Turning(), nanode.Legendre(2))
    state = torch.randn(16, 2), torch.zeros(16)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        end = nanode.odeint(field, state, steps=20, solver=solver, gradient=nanode.Reversal())
        (end[0].sum() + end[1].sum()).backward()


@pytest.mark.parametrize(
    "solver", [nanode.Leapfrog(), nanode.Coupled(), nanode.ReversibleHeun()], ids=repr
)
def test_a_state_that_comes_back_is_no_change(solver):
    class Round(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Parameter(torch.tensor(3.0))

        def forward(self, t, x):
            return self.a * torch.sin(2 * math.pi * t) + 0 * x

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        end = nanode.odeint(
            Round(), torch.zeros(3), steps=16, solver=solver, gradient=nanode.Reversal()
        )
        end.sum().backward()


def test_half_precision_that_undoes_coarsely_is_no_change():
    torch.manual_seed(0)
    layer = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 8))
    field = nanode.TimeVarying(layer, nanode.Legendre(2))
    solver = nanode.Coupled(nanode.Midpoint())
    with warnings.catch_warnings(), torch.autocast("cpu", torch.bfloat16):
        warnings.simplefilter("error")
        block = nanode.ODEBlock(field, 40, solver, nanode.Reversal(), scale=5.0)
        block(torch.randn(16, 8)).sum().backward()


def test_the_warning_comes_once_a_field():
    field = nanode.TimeVarying(Scaled(), nanode.Legendre(2))
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        for _ in range(5):
            field.module.scale = 1.0
            end = nanode.odeint(field, torch.randn(4, 3), steps=25, gradient=nanode.Checkpointed())
            field.module.scale = 0.5
            end.sum().backward()
    assert len([one for one in found if CHANGED in str(one.message)]) == 1


def test_numbers_of_a_sample_are_spread():
    for shape in ((), (1,), (16,), (260,), (3, 5, 7), (0, 4)):
        x = torch.arange(math.prod(shape), dtype=torch.float32).reshape(shape)
        (found,) = sample([x])
        assert len(found) == min(16, x.numel())
        if x.numel():
            assert (found[0], found[-1]) == (0, x.numel() - 1)
    big = torch.zeros(1).expand(2**13, 2**12, 2)  # more numbers than float32 can count
    assert len(sample([big])[0]) == 16
    turned = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    assert torch.equal(sample([turned])[0], sample([turned.contiguous()])[0])


@pytest.mark.parametrize("gradient", [nanode.Checkpointed(), nanode.Reversal()], ids=repr)
def test_looking_is_never_what_fails(gradient):
    """Special states and buffers, default devices and dtypes: as without a look."""

    class Buffered(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 3)
            self.register_buffer("nowhere", torch.ones(2, device="meta"))
            self.register_buffer("bits", torch.zeros(2, dtype=torch.uint8).view(torch.bits8))

        def forward(self, x):
            return self.layer(x)

    field = nanode.TimeVarying(Buffered(), nanode.Constant())
    solve = partial(nanode.odeint, field, steps=9, solver=nanode.Leapfrog(), gradient=gradient)
    solve(torch.randn(4, 3)).sum().backward()
    ragged = torch.nested.nested_tensor([torch.randn(2, 3), torch.randn(4, 3)], layout=torch.jagged)
    solve(ragged).values().sum().backward()
    with torch.device("meta"):
        other = torch.randn(5, 3, device="cpu")
        solve(other).sum().backward()
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        solve(torch.randn(100, 3, dtype=torch.float32)).sum().backward()
    finally:
        torch.set_default_dtype(before)


@pytest.mark.parametrize(("halves", "share"), [(True, None), (False, 0.05)])
def test_more_is_taken_for_rounding_in_half_precision(halves, share):
    begin, expected, found = ((torch.full((4,), n),) for n in (0.0, 1.0, 1.05))
    assert differ(found, expected, begin, halves, ()) == (share and pytest.approx(share))
