"""odeint: what goes in, what comes out, what is refused."""

import math

import pytest
import torch
from torch import nn

import nanode

DOUBLE = torch.float64


def decay(t, x):
    return -x


def euler(steps, h, rate=-1.0):
    """What Euler makes of dx/dt = rate · x from 1."""
    return (1 + rate * h) ** steps


ONE = torch.ones(1, dtype=DOUBLE)


# ---- states at the end, or at wanted times


def test_the_end_of_the_interval():
    assert abs(float(nanode.odeint(decay, ONE, steps=10)) - euler(10, 0.1)) < 1e-15
    got = nanode.odeint(decay, ONE, steps=10, interval=(1.0, 3.0))
    assert abs(float(got) - euler(10, 0.2)) < 1e-15
    got = nanode.odeint(decay, ONE, steps=10, interval=(3.0, 1.0))
    assert abs(float(got) - euler(10, -0.2)) < 1e-13  # of size 6


def test_scale_multiplies_the_slope():
    got = nanode.odeint(decay, ONE, steps=10, scale=3.0)
    assert abs(float(got) - euler(10, 0.3)) < 1e-15


def test_wanted_times_get_a_leading_axis():
    got = nanode.odeint(decay, torch.ones(2, 3, dtype=DOUBLE), steps=10, at=[0.0, 0.3, 1.0])
    assert got.shape == (3, 2, 3)
    for k, state in zip((0, 3, 10), got, strict=True):
        assert (state - euler(k, 0.1)).abs().max() < 1e-15


def test_the_times_alone_are_a_grid():
    times = [0.0, 0.5, 0.7, 2.0]
    got = nanode.odeint(decay, ONE, at=times)
    expected = [1.0, 0.5, 0.5 * 0.8, 0.5 * 0.8 * (1 - 1.3)]
    assert (got[:, 0] - torch.tensor(expected, dtype=DOUBLE)).abs().max() < 1e-15
    assert torch.equal(nanode.odeint(decay, ONE, at=torch.tensor(times, dtype=DOUBLE)), got)


def test_wanted_times_in_single_precision_are_on_the_grid():
    at = [k / 10 for k in range(11)]
    expected = nanode.odeint(decay, ONE, steps=10, at=at)
    for settings in ({"steps": 10}, {}):
        got = nanode.odeint(decay, ONE, at=torch.linspace(0, 1, 11), **settings)
        # Times are taken as they are: a rounded step is as much longer or shorter.
        assert (got - expected).abs().max() < 1e-7


def test_wanted_times_backwards_and_within():
    got = nanode.odeint(decay, ONE, steps=10, interval=(1.0, 0.0), at=[0.7, 0.2])
    for k, state in zip((3, 8), got, strict=True):
        assert abs(float(state) - euler(k, -0.1)) < 1e-14


def test_aligned_puts_wanted_times_on_the_grid():
    got = nanode.odeint(decay, ONE, steps=nanode.Aligned(2), interval=(0.0, 1.0), at=[0.3, 1.0])
    # Steps no wider than 1/2: one to 0.3, two of 0.35 after it.
    expected = torch.tensor([[0.7], [0.7 * 0.65**2]], dtype=DOUBLE)
    assert (got - expected).abs().max() < 1e-15


@pytest.mark.parametrize("shape", [(), (0,), (1,), (2, 3), (2, 3, 4, 5)])
def test_any_shape(shape):
    x = torch.randn(shape, dtype=DOUBLE)
    got = nanode.odeint(decay, x, steps=4, solver=nanode.RK4())
    assert got.shape == shape
    assert torch.allclose(got, x * math.exp(-1), rtol=1e-3)


@pytest.mark.parametrize(
    ("gradient", "solver"),
    [
        (nanode.Backprop(), nanode.RK4()),
        (nanode.Checkpointed(), nanode.RK4()),
        (nanode.Reversal(), nanode.Coupled(nanode.RK4())),
        (nanode.Backsolve(), nanode.RK4()),
        (nanode.Backprop(), nanode.Adaptive(rtol=1e-8, atol=1e-8)),
        (nanode.Backsolve(), nanode.Adaptive(rtol=1e-8, atol=1e-8)),
    ],
    ids=repr,
)
class TestStructures:
    """A rotation by a radian, whose state and flow are known whatever they are packed in."""

    def solve(self, field, start, gradient, solver, **settings):
        steps = None if isinstance(solver, nanode.Adaptive) else 20
        return nanode.odeint(
            field, start, steps=steps, gradient=gradient, solver=solver, **settings
        )

    def test_tuples(self, gradient, solver):
        x = torch.ones(3, dtype=DOUBLE, requires_grad=True)
        v = torch.zeros(3, dtype=DOUBLE, requires_grad=True)
        end = self.solve(lambda t, s: (s[1], -s[0]), (x, v), gradient, solver)
        assert type(end) is tuple
        # h⁴ = 6e-6, over 120.
        assert (end[0] - math.cos(1)).abs().max() < 1e-6
        assert (end[1] + math.sin(1)).abs().max() < 1e-6
        (end[0].sum() + 2 * end[1].sum()).backward()
        # x' = cos x + sin v, v' = -sin x + cos v.
        assert (x.grad - (math.cos(1) - 2 * math.sin(1))).abs().max() < 1e-6
        assert (v.grad - (math.sin(1) + 2 * math.cos(1))).abs().max() < 1e-6

    def test_dicts_of_several_shapes(self, gradient, solver):
        start = {"a": torch.ones(3, dtype=DOUBLE), "b": torch.ones(2, 2, dtype=DOUBLE)}
        end = self.solve(
            lambda t, s: {"a": -s["a"], "b": -2 * s["b"]}, start, gradient, solver, at=[0.0, 1.0]
        )
        assert list(end) == ["a", "b"]
        assert end["a"].shape == (2, 3)
        assert end["b"].shape == (2, 2, 2)
        assert (end["a"][1] - math.exp(-1)).abs().max() < 1e-6
        assert (end["b"][1] - math.exp(-2)).abs().max() < 1e-5

    def test_nested(self, gradient, solver):
        start = {"a": (ONE, [2 * ONE])}
        end = self.solve(lambda t, s: {"a": (-s["a"][0], [-s["a"][1][0]])}, start, gradient, solver)
        assert abs(float(end["a"][1][0]) - 2 * math.exp(-1)) < 1e-6

    def test_conditioning_is_passed_through(self, gradient, solver):
        rate = torch.tensor(-1.0, dtype=DOUBLE, requires_grad=True)

        def field(t, x, options, factor):
            assert options["name"] == "rate"
            return options["value"] * factor * x

        end = self.solve(
            field, ONE, gradient, solver, conditioning=({"name": "rate", "value": rate}, 2)
        )
        assert abs(float(end.detach()) - math.exp(-2)) < 1e-5
        end.sum().backward()
        assert abs(float(rate.grad) - 2 * math.exp(-2)) < 1e-4


def test_output_times_carry_gradients_to_the_start():
    x = torch.ones(1, dtype=DOUBLE, requires_grad=True)
    for gradient in (nanode.Backprop(), nanode.Checkpointed()):
        got = nanode.odeint(decay, x, steps=4, at=[0.0, 0.5, 1.0], gradient=gradient)
        (grad,) = torch.autograd.grad(got.sum(), x)
        assert abs(float(grad) - (1 + euler(2, 0.25) + euler(4, 0.25))) < 1e-15


# ---- precision


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64], ids=str)
def test_the_state_keeps_its_dtype(dtype):
    assert nanode.odeint(decay, torch.ones(2, dtype=dtype), steps=4).dtype == dtype


def test_a_single_precision_state_with_f_in_double():
    got = nanode.odeint(lambda t, x: -x.double(), torch.ones(2), steps=4)
    assert got.dtype == torch.float32


def test_half_precision_states_are_raised_under_autocast():
    x = torch.ones(2, dtype=torch.bfloat16)
    assert nanode.odeint(decay, x, steps=4).dtype == torch.bfloat16
    with torch.autocast("cpu", torch.bfloat16):
        got = nanode.odeint(decay, x, steps=1000)
    assert got.dtype == torch.float32
    # In bf16 steps of 1e-3 would be rounded away: x would stay at 1.
    assert (got - math.exp(-1)).abs().max() < 1e-3


# ---- the field's interval


def test_the_fields_interval_is_the_default():
    class Rate(nn.Module):
        def __init__(self):
            super().__init__()
            self.rate = nn.Parameter(torch.tensor(-1.0, dtype=DOUBLE))

        def forward(self, x):
            return self.rate * x

    field = nanode.TimeVarying(Rate(), nanode.Chebyshev(2, interval=(1.0, 3.0)))
    assert abs(float(nanode.odeint(field, ONE, steps=10).detach()) - euler(10, 0.2)) < 1e-15
    inner = nanode.odeint(field, ONE, steps=10, interval=(2.5, 1.5)).detach()
    assert abs(float(inner) - euler(10, -0.1)) < 1e-14
    for outside in ((0.0, 2.0), (2.0, 3.1), (3.1, 2.0)):
        with pytest.raises(ValueError, match=r"outside the interval \(1.0, 3.0\)"):
            nanode.odeint(field, ONE, steps=10, interval=outside)
        with pytest.raises(ValueError, match=r"outside the interval \(1.0, 3.0\)"):
            nanode.ODEBlock(field, 10, interval=outside)


# ---- limits


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 5)).double()

    def forward(self, x):
        return self.net(x)


@pytest.mark.parametrize(
    ("gradient", "steps"),
    [
        (nanode.Backprop(), 6),
        (nanode.Checkpointed(), 6),
        (nanode.Checkpointed(segments=6, chunk=1), 7),
    ],
    ids=str,
)
class TestResidualNetworks:
    """x ← x + f(x): Euler with the step scaled away. Tolerance: one rounding per operation."""

    def test_one_bucket_a_step_is_untied(self, gradient, steps):
        layers = nn.ModuleList(Layer() for _ in range(steps))
        field = nanode.TimeVarying(Layer(), nanode.Bucketed(steps))
        for name, alpha in field.trajectory.coefficients.named_parameters():
            rows = [dict(layer.named_parameters())[name].flatten() for layer in layers]
            with torch.no_grad():
                alpha.copy_(torch.stack(rows))
        block = nanode.ODEBlock(field, steps, gradient=gradient, scale=steps)
        x = torch.randn(3, 5, dtype=DOUBLE, requires_grad=True)
        z = x.detach().clone().requires_grad_()

        y = block(x)
        h = z
        for layer in layers:
            h = h + layer(h)
        assert (y - h).abs().max() < 1e-12

        weight = torch.randn_like(y)
        (y * weight).sum().backward()
        (h * weight).sum().backward()
        assert (x.grad - z.grad).abs().max() < 1e-12
        for name, alpha in field.trajectory.coefficients.named_parameters():
            for k, layer in enumerate(layers):
                own = dict(layer.named_parameters())[name].grad
                assert own.abs().max() > 1e-3
                assert (alpha.grad[k].view_as(own) - own).abs().max() < 1e-12

    @pytest.mark.parametrize("autonomous", [True, False])
    def test_a_constant_basis_is_tied(self, gradient, steps, autonomous):
        layer, module = Layer(), Layer()
        module.load_state_dict(layer.state_dict())
        if autonomous:
            field = nanode.Autonomous(module)
        else:
            field = nanode.TimeVarying(module, nanode.Constant())
        block = nanode.ODEBlock(field, steps, gradient=gradient, scale=steps)
        x = torch.randn(3, 5, dtype=DOUBLE, requires_grad=True)
        z = x.detach().clone().requires_grad_()

        y = block(x)
        h = z
        for _ in range(steps):
            h = h + layer(h)
        assert (y - h).abs().max() < 1e-12

        y.square().sum().backward()
        h.square().sum().backward()
        # Gradients are of size 100 here.
        assert (x.grad - z.grad).abs().max() < 1e-12 * z.grad.abs().max()
        for ours, theirs in zip(block.parameters(), layer.parameters(), strict=True):
            assert (ours.grad.view_as(theirs) - theirs.grad).abs().max() < (
                1e-12 * theirs.grad.abs().max()
            )


def test_given_steps_say_from_where_to_where():
    steps = nanode.Given([0.0, 0.5, 2.0])
    expected = nanode.odeint(decay, ONE, steps=steps, interval=(0.0, 2.0))
    assert torch.equal(nanode.odeint(decay, ONE, steps=steps), expected)
    block = nanode.ODEBlock(decay, steps)
    assert block.interval == (0.0, 2.0)
    assert torch.equal(block(ONE), expected)


def test_a_field_with_an_interval_keeps_it():
    field = nanode.TimeVarying(nn.Linear(2, 2), nanode.Legendre(2))
    with pytest.raises(ValueError, match=r"but the solve from 0\.0 to 1\.0"):
        nanode.ODEBlock(field, nanode.Given([0.0, 0.5]))
