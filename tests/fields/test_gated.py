"""Gated: Σ σ(gₙ(t)) fₙ(t, h)."""

import copy
import math

import pytest
import torch
from torch import nn

import nanode
from tests.fields.modules import Complex, as_function
from tests.trajectories.samples import step_stages, stirred

CLOSE = {"rtol": 1e-13, "atol": 1e-13}  # a sum of four terms of order 1


def four():
    return [nn.Linear(3, 3), nn.Linear(3, 3), nn.Sequential(nn.Linear(3, 3), nn.Tanh()), nn.PReLU()]


def test_is_the_gated_sum():
    members = four()
    alone = copy.deepcopy(members)
    field = nanode.Gated(members)
    logits = torch.randn(2, 4)  # linear in t: two coefficients each
    with torch.no_grad():
        field.gates.coefficients.logits.copy_(logits)
    x = torch.randn(2, 3)
    for t in (0.0, 0.3, 1.0):
        gates = [1 / (1 + math.exp(-(a + b * t))) for a, b in logits.T.tolist()]
        expected = sum(gate * module(x) for gate, module in zip(gates, alone, strict=True))
        torch.testing.assert_close(field(t, x), expected, **CLOSE)


def test_starts_with_different_gates_that_do_not_move():
    field = nanode.Gated(four())
    for t in (0.0, 0.8):
        gates = torch.sigmoid(field.weights_at(t)["logits"])
        expected = torch.tensor([-1, -1 / 3, 1 / 3, 1]).sigmoid()
        torch.testing.assert_close(gates, expected, **CLOSE)


def test_gates_stay_open_and_below_one():
    field = stirred(nanode.Gated(four()), size=3.0)
    for t in torch.linspace(0, 1, 11):
        gates = torch.sigmoid(field.weights_at(t)["logits"])
        assert ((gates > 0) & (gates < 1)).all()


def test_one_field_with_a_large_logit_is_that_field():
    module = nn.Linear(3, 3)
    alone = copy.deepcopy(module)
    field = nanode.Gated([module])
    assert torch.equal(field.weights_at(0.2)["logits"], torch.zeros(1))
    with torch.no_grad():
        field.gates.coefficients.logits[0] = 50.0  # σ(50) = 1 − 2e-22
    x = torch.randn(2, 3)
    assert torch.equal(field(0.2, x), alone(x))


def test_members_that_move():
    linear, moving, inner = nn.Linear(3, 3), nn.Linear(3, 3), [nn.Linear(3, 3), nn.Linear(3, 3)]
    members = [
        linear,
        stirred(nanode.TimeVarying(moving, nanode.Legendre(2), overrides={"bias": None})),
        stirred(nanode.Gated(inner)),
        nanode.TimeAppended(nn.Linear(3, 3)),
    ]
    alone = copy.deepcopy(members)
    field = stirred(nanode.Gated(members, basis=nanode.Trigonometric(1)), seed=2)
    state = field.state_dict()
    for n, member in enumerate(alone):
        prefix = f"fields.{n}." if n else "fields.0.module."
        own = {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}
        member.load_state_dict(own)
    x = torch.randn(2, 3)
    a, c, s = field.gates.coefficients.logits
    for t in (0.0, 0.6):
        gates = torch.sigmoid(a + c * math.cos(t) + s * math.sin(t))
        parts = [alone[0](x), *(member(t, x) for member in alone[1:])]
        expected = sum(gate * part for gate, part in zip(gates, parts, strict=True))
        torch.testing.assert_close(field(t, x), expected, **CLOSE)


def test_a_solve_has_the_values_of_single_calls():
    moving = nanode.TimeVarying(nn.Linear(3, 3), nanode.Bucketed(4), overrides={"bias": None})
    nested = nanode.Gated([nn.Linear(3, 3), nn.Linear(3, 3)])
    field = stirred(nanode.Gated([nn.Linear(3, 3), moving, nested]))
    x = torch.randn(2, 3)
    stages = step_stages(4)
    weights = field.weights(stages)
    assert weights.moving["logits"].shape == (4, 3)
    assert weights.moving["1.weight"].shape == (4, 3, 3)
    assert weights.constant["1.bias"] is moving.module.bias
    assert weights.moving["2.logits"].shape == (4, 2)
    for k, (row, stage) in enumerate(zip(weights.rows(4), stages, strict=True)):
        expected = field(stage.time, x)
        torch.testing.assert_close(field.evaluate(row, stage, x), expected, **CLOSE)
        torch.testing.assert_close(field.evaluate(weights.at(k), stage, x), expected, **CLOSE)


def test_gradients():
    moving = nanode.TimeVarying(nn.Linear(2, 2), nanode.Legendre(2))
    field = stirred(nanode.Gated([nn.Sequential(nn.Linear(2, 2), nn.Tanh()), moving]))
    torch.autograd.gradcheck(*as_function(field, torch.randn(2, 2)))


def test_structures_and_conditioning():
    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.randn(3))

        def forward(self, x, c):
            return {"a": self.scale * x["b"], "b": c * x["a"]}

    members = [Pair(), Pair()]
    field = nanode.Gated(members)
    x, c = {"a": torch.randn(2, 3), "b": torch.randn(2, 3)}, torch.randn(3)
    low, high = 1 / (1 + math.e), 1 / (1 + 1 / math.e)  # σ(−1) and σ(1)
    got = field(0.5, x, c)
    expected = low * members[0].scale * x["b"] + high * members[1].scale * x["b"]
    torch.testing.assert_close(got["a"], expected, **CLOSE)
    torch.testing.assert_close(got["b"], c * x["a"], **CLOSE)  # the two gates sum to 1


def test_gates_of_complex_fields_are_real():
    field = nanode.Gated([Complex(), Complex()])
    assert not field.weights_at(0.1)["logits"].is_complex()
    assert field(0.1, torch.ones(4, dtype=torch.complex128)).is_complex()


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_follows_the_dtype(dtype):
    field = nanode.Gated(four()[:2]).to(dtype)
    assert {p.dtype for p in field.parameters()} == {dtype}
    assert field(0.5, torch.ones(2, 3, dtype=dtype)).dtype == dtype
    made = nanode.Gated([nn.Linear(3, 3).to(dtype)])
    assert {p.dtype for p in made.parameters()} == {dtype}


def test_interval_and_breakpoints_are_those_of_all():
    members = [
        nanode.TimeVarying(nn.Linear(2, 2), nanode.Bucketed(2, interval=(0.0, 2.0))),
        nanode.TimeVarying(nn.Linear(2, 2), nanode.PiecewiseLinear(5, interval=(0.0, 2.0))),
        nn.Linear(2, 2),
    ]
    field = nanode.Gated(members)
    assert field.interval == (0.0, 2.0)
    assert field.breakpoints == (0.5, 1.0, 1.5)
    assert field.jumps == (1.0,)
    gates = nanode.Gated([nn.Linear(2, 2)], basis=nanode.Bucketed(2))
    assert gates.jumps == (0.5,)


# ---- bad input


def test_a_jump_takes_the_side_that_is_asked_for():
    member = nanode.TimeVarying(nn.Linear(3, 3), nanode.Bucketed(2))
    field = stirred(nanode.Gated([member], nanode.Bucketed(2)))
    for side, inside in (("left", 0.25), ("right", 0.75)):
        got, expected = field.weights_at(0.5, side), field.weights_at(inside)
        assert got.keys() == expected.keys()
        assert all(torch.equal(got[name], w) for name, w in expected.items())


def test_refuses_no_fields():
    with pytest.raises(ValueError, match="at least one field, got none"):
        nanode.Gated([])


def test_refuses_one_module_alone():
    with pytest.raises(ValueError, match=r"got one Linear; write nanode\.Gated\(\[first, second"):
        nanode.Gated(nn.Linear(4, 4))


def test_refuses_several_intervals():
    member = nanode.TimeVarying(nn.Linear(2, 2), nanode.Legendre(1, interval=(0.0, 2.0)))
    with pytest.raises(ValueError, match=r"share an interval, got \[\(0\.0, 1\.0\), \(0\.0, 2\.0"):
        nanode.Gated([member], basis=nanode.Legendre(1))


def test_refuses_running_statistics():
    with pytest.raises(ValueError, match="with running statistics"):
        nanode.Gated([nn.BatchNorm1d(2)])


def test_refuses_a_time_that_is_no_number():
    with pytest.raises(ValueError, match="t must be a finite number, got nan"):
        nanode.Gated(four())(float("nan"), torch.ones(3))


def test_fields_may_come_one_by_one():
    gated = nanode.Gated(nn.Linear(2, 2) for _ in range(3))
    assert len(gated.fields) == 3
