"""What odeint refuses, and how it says so."""

import math
import warnings

import pytest
import torch
from torch import nn

import nanode

DOUBLE = torch.float64


def decay(t, x):
    return -x


ONE = torch.ones(1, dtype=DOUBLE)


@pytest.mark.parametrize("steps", [0, -3, 2.5, 10.0, True, "10"])
def test_refuses_steps(steps):
    with pytest.raises(ValueError, match="steps must be a whole number of at least 1"):
        nanode.odeint(decay, ONE, steps=steps)
    with pytest.raises(ValueError, match="steps must be a whole number of at least 1"):
        nanode.ODEBlock(decay, steps)


def test_where_steps_are_given_as_times():
    with pytest.raises(ValueError, match=r"got \[0, 0\.5, 1\]; times are given by nanode\.Given"):
        nanode.ODEBlock(decay, [0, 0.5, 1])


@pytest.mark.parametrize("at", [[0.0, 0.5, 0.4], [0.0, 0.5, 0.5, 1.0]], ids=str)
def test_refuses_times_that_are_not_monotone(at):
    with pytest.raises(ValueError, match="strictly rising or strictly falling"):
        nanode.odeint(decay, ONE, at=at)
    with pytest.raises(ValueError, match="follow the direction of the solve"):
        nanode.odeint(decay, ONE, at=at, steps=10, interval=(0.0, 1.0))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "say how many steps: steps=10, or a schedule"),
        (
            {"steps": 10, "at": [0.0, 0.25, 1.0]},
            r"wanted at t = 0.25, .*\(nearest: 0\.[23]\).*Aligned",
        ),
        ({"steps": 10, "interval": (0.0, 1.0), "at": [1.5]}, r"wanted at t = 1.5.*nearest: 1\)"),
        ({"steps": 10, "interval": (0.0, 1.0), "at": [0.5, 0.2]}, "follow the direction"),
        ({"steps": 10, "at": []}, "at must hold finite times, at least one"),
        ({"steps": 10, "interval": (0.0, 1.0), "at": [math.nan]}, "at must hold finite times"),
        ({"steps": 10, "interval": (0.0, 0.0)}, "two different finite times"),
        ({"steps": 10, "interval": (0.0, math.inf)}, "two different finite times"),
        ({"steps": 10, "interval": (math.nan, 1.0)}, "two different finite times"),
        ({"steps": 10, "scale": math.inf}, "scale must be a finite number"),
        ({"steps": 10, "scale": 10**400}, "scale must be a finite number"),
        ({"steps": 10, "scale": "steps"}, "scale must be a finite number"),
        ({"steps": 10, "gradient": "reversal"}, "gradient must be one such as nanode.Checkpointed"),
        ({"steps": 10, "gradient": nanode.Backprop}, "gradient must be one such as"),
        ({"steps": 10, "solver": "euler"}, "solver must be a stepper such as nanode.Euler"),
        ({"steps": 10, "solver": nanode.Adaptive()}, "chooses its own steps; leave steps= out"),
        (
            {"steps": nanode.Given([0.0, 0.5]), "interval": (0.0, 1.0)},
            "run from 0.0 to 0.5, but the solve from 0.0 to 1.0",
        ),
        ({"steps": 3, "at": 1.0}, r"at must be a sequence of times such as .*got 1\.0; for the st"),
        ({"steps": 3, "at": torch.tensor(1.0)}, "at must be a sequence of times"),
        ({"steps": 3, "at": "1.0"}, "at must be a sequence of times"),
        ({"at": [1.0]}, r"at = \[1\.0\] says where the solve ends.*interval=\(t0, 1\.0\) too"),
        ({"at": [0.0, 1.0, 0.0]}, "interval must be two different finite times"),
        ({"steps": 3, "at": [1.0]}, "not where it starts"),
        ({"steps": 3, "interval": 2.0}, r"interval must be two times \(t0, t1\), got 2\.0"),
        ({"steps": 3, "interval": (0.0, 0.5, 1.0)}, r"two times \(t0, t1\), got \(0\.0, 0\.5"),
        ({"steps": 3, "interval": ("0", None)}, r"two times \(t0, t1\), got"),
    ],
    ids=str,
)
def test_refuses_settings(settings, message):
    with pytest.raises(ValueError, match=message):
        nanode.odeint(decay, ONE, **settings)
    with pytest.raises(ValueError, match=message):
        nanode.ODEBlock(decay, settings.pop("steps", None), **settings)


def test_unknown_keywords_are_not_swallowed():
    with pytest.raises(TypeError, match="method"):
        nanode.odeint(decay, ONE, steps=10, method="euler")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"at": torch.tensor([0.0, 1.0], requires_grad=True)}, r"times require grad.*Adaptive\(\)"),
        ({"interval": (torch.tensor(0.0, requires_grad=True), 1.0)}, "interval requires grad"),
        ({"scale": torch.tensor(2.0, requires_grad=True)}, "scale must be a finite number"),
    ],
    ids=["at", "interval", "scale"],
)
def test_nothing_is_detached_in_silence(settings, message):
    with pytest.raises(ValueError, match=message):
        nanode.odeint(decay, ONE, steps=4, **settings)
    with pytest.raises(ValueError, match=message):
        nanode.ODEBlock(decay, 4, **settings)


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool], ids=str)
def test_refuses_integer_states(dtype):
    with pytest.raises(ValueError, match=f"state must be floating point, got {dtype}"):
        nanode.odeint(decay, torch.ones(2, dtype=dtype), steps=4)


@pytest.mark.parametrize("x", [1.0, None, "x", (ONE, 2.0), (), {}], ids=repr)
def test_refuses_states_that_are_no_tensors(x):
    with pytest.raises(
        ValueError, match="the state must be a tensor, or a tuple or dict of tensors"
    ):
        nanode.odeint(decay, x, steps=4)


def test_refuses_fields_that_are_none():
    with pytest.raises(ValueError, match="expected a Field or a callable"):
        nanode.odeint(3, ONE, steps=4)


@pytest.mark.parametrize(
    "gradient", [nanode.Backprop(), nanode.Checkpointed(), nanode.Reversal()], ids=repr
)
@pytest.mark.parametrize(
    ("field", "message"),
    [
        (lambda t, x: x[:1], r"expected \(2, 3\), got \(1, 3\)"),
        (lambda t, x: x.sum(), r"expected \(2, 3\), got \(\)"),
        (lambda t, x: (x, x), r"expected \(2, 3\), got \(\(2, 3\), \(2, 3\)\)"),
        (lambda t, x: None, r"expected \(2, 3\), got NoneType"),
        (lambda t, x: 1.0, r"expected \(2, 3\), got float"),
    ],
    ids=["rows", "scalar", "tuple", "None", "number"],
)
def test_refuses_slopes_of_another_shape(field, message, gradient):
    with pytest.raises(ValueError, match=message):
        nanode.odeint(field, torch.ones(2, 3), steps=4, solver=nanode.Leapfrog(), gradient=gradient)


def test_the_order_of_keys_is_free():
    start = {"x": ONE, "y": 2 * ONE}
    end = nanode.odeint(lambda t, s: {"y": 0 * s["y"], "x": s["y"]}, start, steps=4)
    assert list(end) == ["x", "y"]
    assert torch.equal(end["x"], 3 * ONE)
    assert torch.equal(end["y"], 2 * ONE)


def test_refuses_a_complex_slope_of_a_real_state():
    with pytest.raises(ValueError, match="imaginary part would be lost"):
        nanode.odeint(lambda t, x: 1j * x, ONE, steps=4)


def test_names_the_keys_where_they_differ():
    with pytest.raises(ValueError, match=r"expected \{'x': \(1,\)\}, got \{'y': \(1,\)\}"):
        nanode.odeint(lambda t, s: {"y": s["x"]}, {"x": ONE}, steps=4)


def test_refuses_mixed_devices():
    with pytest.raises(ValueError, match=r"one device, got \['cpu', 'meta'\].*\.to\(device\)"):
        nanode.odeint(nanode.Autonomous(nn.Linear(3, 3)), torch.ones(2, 3, device="meta"), steps=4)
    with pytest.raises(ValueError, match=r"one device, got \['cpu', 'meta'\]"):
        nanode.odeint(decay, (torch.ones(2), torch.ones(2, device="meta")), steps=4)


@pytest.mark.parametrize(
    ("gradient", "solver"),
    [
        (nanode.Backprop(), nanode.Euler()),
        (nanode.Checkpointed(), nanode.Midpoint()),
        (nanode.Reversal(), nanode.Leapfrog()),
    ],
    ids=repr,
)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_check_finite_names_the_first_bad_step(gradient, solver, bad):
    def field(t, x):
        return x * (bad if 0.5 < t < 0.7 else 1.0)

    x = torch.ones(2, dtype=DOUBLE)
    settings = {"steps": 10, "solver": solver, "gradient": gradient}
    first = 6 if isinstance(solver, nanode.Euler) else 5  # t = 0.6 first, or its middle 0.55
    message = rf"not finite after step {first} of 10, from t = 0.{first} to t = 0.{first + 1}"
    with pytest.raises(ValueError, match=message):
        nanode.odeint(field, x, **settings, check_finite=True)
    assert not nanode.odeint(field, x, **settings).isfinite().any()


def test_check_finite_looks_at_every_tensor_of_the_state():
    def field(t, state):
        return state[0], state[1] * (math.nan if t > 0.5 else 1.0)

    with pytest.raises(ValueError, match="after step 3 of 4"):
        nanode.odeint(field, (ONE, ONE), steps=4, check_finite=True)


def test_warnings_point_at_the_caller():
    field = nanode.TimeVarying(nn.Linear(1, 1), nanode.Bucketed(3))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        nanode.odeint(field, torch.ones(1, 1), steps=4, solver=nanode.Heun())
    assert [warning.filename for warning in caught] == [__file__]


def test_times_of_a_list_that_require_grad():
    times = [torch.tensor(0.0), torch.tensor(1.0, requires_grad=True)]
    for solver in (nanode.Euler(), nanode.Adaptive()):
        with pytest.raises(ValueError, match=r"some of the times require grad.*torch\.stack"):
            nanode.odeint(lambda t, x: -x, torch.ones(1), at=times, solver=solver)
