"""torchdiffeq's adjoint, which evaluates the field again in the backward pass."""

import math
from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.nn.utils import parametrize

import nanode
from tests.solvers.problems import DOUBLE, tight


def backsolved(module, x, tolerance=1e-3):
    return backsolved_by(nanode.Autonomous(module), x, tolerance)


def backsolved_by(field, x, tolerance=1e-5):
    return nanode.odeint(field, x, solver=tight(tolerance=tolerance), gradient=nanode.Backsolve())


def test_a_tensor_hidden_until_later_is_refused():
    hidden = torch.tensor(2.0, dtype=DOUBLE, requires_grad=True)
    x = torch.ones(1, dtype=DOUBLE)
    with pytest.raises(ValueError, match="neither x, conditioning, nor a parameter"):
        nanode.odeint(
            lambda t, x: x * hidden if t > 0.5 else x,
            x,
            solver=tight(),
            gradient=nanode.Backsolve(),
        )


def test_random_numbers_are_refused():
    module = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5)).double()
    x = torch.randn(2, 3, dtype=DOUBLE)
    with pytest.raises(ValueError, match="can't repeat the random numbers"):
        backsolved(module, x, tolerance=1.0)
    with torch.no_grad():  # no backward pass will come
        backsolved(module, x, tolerance=1.0)
    backsolved(module.eval(), x).sum().backward()


def test_a_second_derivative_is_refused():
    x = torch.randn(2, 3, dtype=DOUBLE, requires_grad=True)
    module = nn.Sequential(nn.Linear(3, 3), nn.Tanh()).double()
    with pytest.raises(RuntimeError, match=r"first derivatives only.*Backprop"):
        torch.autograd.grad(backsolved(module, x).sum(), x, create_graph=True)
    torch.autograd.grad(backsolved(module, x).sum(), x)


def test_another_mode_or_buffer_is_refused():
    module = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5)).double().eval()
    module.register_buffer("mine", torch.ones(()))
    x = torch.randn(2, 3, dtype=DOUBLE)
    y = backsolved(module, x)
    module.train()
    with pytest.raises(RuntimeError, match=r"train\(\) and eval\(\)"):
        y.sum().backward()
    y = backsolved(module.eval(), x)
    module.mine.add_(1)
    with pytest.raises(RuntimeError, match=r"buffer 'module\.mine' was changed"):
        y.sum().backward()


def test_a_buffer_that_evaluations_change_is_refused_where_torch_counts_no_change():
    class Counting(nn.Linear):
        def forward(self, x):
            self.calls.data += 1
            return super().forward(x)

    module = Counting(3, 3).double()
    module.register_buffer("calls", torch.zeros(()))
    with pytest.raises(ValueError, match=r"changes its buffer 'module\.calls'"):
        backsolved(module, torch.randn(2, 3, dtype=DOUBLE))


def test_autocast_is_that_of_the_forward_pass():
    module, seen = nn.Linear(3, 3), []
    module.register_forward_hook(lambda module, given, value: seen.append(value.dtype))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = backsolved(module, torch.randn(2, 3), tolerance=1e-1)
    forward = len(seen)
    y.sum().backward()
    assert len(seen) > forward
    assert set(seen) == {torch.bfloat16}


@pytest.mark.parametrize("gradient", [nanode.Backprop(), nanode.Backsolve()], ids=repr)
def test_transforms_and_forward_mode_are_refused(gradient):
    """torchdiffeq's steps have neither."""
    block = nanode.ODEBlock(lambda t, x: -x, solver=tight(), gradient=gradient)
    x = torch.ones(2, dtype=DOUBLE)
    for transformed in (torch.func.vmap(block), torch.func.jacrev(block)):
        with pytest.raises(RuntimeError, match=r"into a solve with Adaptive; use a fixed-step"):
            transformed(x)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, torch.ones_like(x))
        with pytest.raises(RuntimeError, match=r"no derivatives in forward mode; use a fixed-step"):
            block(dual)


def test_batched_gradients_are_refused():
    block = nanode.ODEBlock(lambda t, x: -x, solver=tight(), gradient=nanode.Backsolve())
    with pytest.raises(RuntimeError, match=r"batched gradients .*Backprop"):
        torch.autograd.functional.jacobian(block, torch.ones(2, dtype=DOUBLE), vectorize=True)


def jumping():
    """x' = w x by w = 1, then 3."""
    field = nanode.TimeVarying(nn.Linear(1, 1, bias=False).double(), nanode.Bucketed(2))
    with torch.no_grad():
        field.trajectory.coefficients.weight.copy_(torch.tensor([[1.0], [3.0]]))
    return field


@pytest.mark.parametrize("gradient", [nanode.Backprop(), nanode.Backsolve()], ids=repr)
@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "backward"])
def test_the_first_time_gets_its_gradient_where_weights_jump(gradient, reverse):
    """The state at t is x exp(∫w), and moves with its ends by w."""
    field = jumping()
    ends = [1.0, 0.25, 0.0] if reverse else [0.0, 0.75, 1.0]
    at = torch.tensor(ends, dtype=DOUBLE, requires_grad=True)
    x = torch.ones(1, dtype=DOUBLE, requires_grad=True)
    states = nanode.odeint(field, x, at=at, solver=tight(), gradient=gradient)
    assert torch.equal(states[0], x)
    grads = torch.autograd.grad((states[:, 0] * torch.tensor([5.0, 0.0, 1.0])).sum(), [x, at])
    end, slopes = states[-1, 0].item(), [3.0, 1.0] if reverse else [1.0, 3.0]
    assert grads[0].item() == pytest.approx(5 + end, rel=1e-6)
    expected = [-slopes[0] * end, 0.0, slopes[1] * end]
    assert grads[1].tolist() == pytest.approx(expected, rel=1e-6, abs=1e-9)


class Rotation(nn.Module):
    """x' = -i H x with a real H; as another kind of state, what real numbers are left of it."""

    def __init__(self, dtype):
        super().__init__()
        self.h = nn.Parameter(torch.randn(3, 3, dtype=dtype))

    def forward(self, x, drive):
        if isinstance(x, dict):  # complex and real parts drive each other
            z, r = x["z"], x["r"]
            return {"r": (z.conj() * (drive * z)).real - r, "z": self._turned(z) * r}
        turned = self._turned(x) + drive * x
        return turned if x.is_complex() else turned.real + turned.imag

    def _turned(self, x):
        return -1j * x @ self.h.to(torch.complex128)


@pytest.mark.parametrize("gradient", [nanode.Backprop(), nanode.Backsolve()], ids=repr)
@pytest.mark.parametrize(
    ("ends", "slopes"),
    [
        ([0.0, 0.5], [1, 1]),
        ([1.0, 0.5], [3, 3]),
        ([0.5, 1.0], [3, 3]),
        ([0.5, 0.0], [1, 1]),
        ([0.0, 0.25, 0.5], [1, 1, 1]),
        ([0.5, 0.25, 0.0], [1, 1, 1]),
        ([0.0, 0.5, 1.0], [1, 1, 3]),
        ([1.0, 0.5, 0.0], [3, 3, 1]),
    ],
    ids=str,
)
def test_times_on_a_jump_get_the_slope_of_where_the_solve_comes_from(gradient, ends, slopes):
    """The start alone has that of where it goes."""
    at, x = torch.tensor(ends, dtype=DOUBLE, requires_grad=True), torch.ones(1, dtype=DOUBLE)
    states = nanode.odeint(jumping(), x, at=at, solver=tight(), gradient=gradient)
    (grad,) = torch.autograd.grad(states[1:].sum(), at)
    later = states[1:, 0].tolist()
    expected = [-slopes[0] * sum(later), *(w * x for w, x in zip(slopes[1:], later, strict=True))]
    assert grad.tolist() == pytest.approx(expected, rel=1e-6)


def test_parametrised_weights_in_torchs_cache_keep_their_gradients():
    """What a penalty reads afterwards is not what the solve has computed without gradients."""
    torch.manual_seed(0)
    field = nanode.TimeVarying(
        nn.Linear(3, 3).double(), nanode.Legendre(1), start=nanode.Noisy(0.5)
    )
    parametrize.register_parametrization(field.trajectory.coefficients, "weight", nn.Tanh())
    x, found = torch.randn(2, 3, dtype=DOUBLE), []
    for cached in (nullcontext(), parametrize.cached()):
        with cached:
            y = nanode.odeint(field, x, solver=tight(), gradient=nanode.Backsolve())
            loss = y.square().sum() + nanode.smoothness_penalty(field)
            found.append(torch.autograd.grad(loss, list(field.parameters())))
    for got, expected in zip(*found, strict=True):
        torch.testing.assert_close(got, expected)
        assert expected.norm() > 0.1


def test_nothing_is_refused_where_no_gradient_is_wanted():
    gain = torch.tensor(2.0, dtype=DOUBLE, requires_grad=True)

    class Gained(nanode.Expansion):
        def forward(self, t, side="right"):
            return {name: gain * w for name, w in super().forward(t, side).items()}

    field = nanode.TimeVarying(
        nn.Linear(3, 3).double(), weights=lambda named: Gained(named, nanode.Legendre(1))
    )
    with torch.no_grad():
        assert backsolved_by(field, torch.ones(1, 3, dtype=DOUBLE)).shape == (1, 3)
    with pytest.raises(ValueError, match="can't give it a gradient"):
        backsolved_by(field, torch.ones(1, 3, dtype=DOUBLE))


def test_a_field_that_differentiates_in_a_state_of_two_precisions():
    """x is what it was made of, where the field looks for it, also after a change of dtype."""

    class Spring(nn.Module):
        def __init__(self):
            super().__init__()
            self.k = nn.Parameter(torch.tensor(2.0))

        def forward(self, x):
            q, p = x
            with torch.enable_grad():
                energy = (self.k * q.requires_grad_().square() / 2).sum()
                (force,) = torch.autograd.grad(energy, q, create_graph=True)
            return p.to(q.dtype), -force.to(p.dtype)

    field = nanode.Autonomous(Spring())
    x = torch.tensor([1.0]), torch.tensor([0.0], dtype=DOUBLE)
    q, _ = backsolved_by(field, x)
    (grad,) = torch.autograd.grad(q.sum(), list(field.parameters()))
    root = math.sqrt(2)  # q = cos √k
    assert q.item() == pytest.approx(math.cos(root), abs=1e-4)
    assert grad.item() == pytest.approx(-math.sin(root) / 2 / root, abs=1e-4)


@pytest.mark.parametrize("moving_times", [False, True], ids=["", "times"])
@pytest.mark.parametrize("dtype", [DOUBLE, torch.complex128], ids=str)
@pytest.mark.parametrize("kind", ["complex", "real", "both"])
def test_real_beside_complex_numbers(kind, dtype, moving_times):
    """State, weights and conditioning, in any mixture."""
    torch.manual_seed(0)
    field = nanode.TimeVarying(Rotation(dtype), nanode.Legendre(1), start=nanode.Noisy(0.3))
    z = torch.randn(2, 3, dtype=torch.complex128, requires_grad=True)
    r = torch.randn(2, 3, dtype=DOUBLE, requires_grad=True)
    drive = torch.randn(3, dtype=torch.complex128, requires_grad=True)
    x = {"complex": z.conj(), "real": r, "both": {"z": z, "r": r}}[kind]
    at = torch.tensor([0.1, 0.5, 0.9], dtype=DOUBLE, requires_grad=moving_times)
    wanted = [*([z] if kind != "real" else []), *([r] if kind != "complex" else []), drive]
    wanted += [*field.parameters(), *([at] if moving_times else [])]

    def found(gradient):
        solver = nanode.Adaptive(rtol=1e-9, atol=1e-10)
        settings = {"solver": solver, "gradient": gradient, "conditioning": (drive,), "at": at}
        y = nanode.odeint(field, x, **settings)
        parts = list(y.values()) if isinstance(y, dict) else [y]
        loss = sum(
            (part[1:] * torch.linspace(1, 2, 12).view(2, 2, 3)).abs().sum() for part in parts
        )
        return torch.autograd.grad(loss, wanted)

    for got, expected in zip(found(nanode.Backsolve()), found(nanode.Backprop()), strict=True):
        assert got.dtype == expected.dtype
        torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-6)


def test_an_odd_number_of_reals_before_complex_ones():
    """torchdiffeq hands back slices of one vector; pairs at odd places can't be viewed."""

    class Swing(nn.Module):
        def __init__(self):
            super().__init__()
            self.gain = nn.Parameter(torch.ones(3, dtype=DOUBLE))
            self.turn = nn.Parameter(torch.eye(2, dtype=torch.complex128) * 1j)

        def forward(self, t, x):
            return x @ self.turn * self.gain.mean()

    found = []
    for gradient in (nanode.Backsolve(), nanode.Backprop()):
        field, x = Swing(), torch.ones(1, 2, dtype=torch.complex128)
        solver = nanode.Adaptive(rtol=1e-9, atol=1e-10)
        y = nanode.odeint(field, x, interval=(0.0, 1.0), solver=solver, gradient=gradient)
        found.append(torch.autograd.grad(y.real.sum(), list(field.parameters())))
    for got, expected in zip(*found, strict=True):
        assert torch.allclose(got, expected, rtol=1e-6, atol=1e-8)


def test_a_seminorm_saves_evaluations():
    """torchdiffeq's own, which leaves the gradients of weights out of the error."""
    counts = {}
    for options in ({}, {"norm": "seminorm"}):
        torch.manual_seed(0)
        layer = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 3)).double()
        solver = nanode.Adaptive(rtol=1e-7, atol=1e-9, options=options)
        block = nanode.ODEBlock(
            nanode.TimeVarying(layer, nanode.Legendre(2)), None, solver, nanode.Backsolve()
        )
        block(torch.randn(5, 3, dtype=torch.float64)).square().sum().backward()
        counts["norm" in options] = block.nfe.backward
    assert counts[True] < counts[False]


def test_options_hold_for_the_adjoint_pass_too():
    """Its 20 steps are enough forwards and too few backwards, where there is more to follow."""
    layer = nn.Linear(1, 1, bias=False).double()
    nn.init.constant_(layer.weight, -20.0)
    solver = nanode.Adaptive(rtol=1e-6, atol=1e-3, options={"max_num_steps": 20})
    block = nanode.ODEBlock(nanode.Autonomous(layer), None, solver, nanode.Backsolve())
    y = block(torch.ones(1, 1, dtype=torch.float64))
    with pytest.raises(AssertionError, match="max_num_steps"):
        y.sum().backward()
