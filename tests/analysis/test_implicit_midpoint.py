import math

import pytest
import torch

import nanode
from nanode.analysis import ImplicitMidpoint, Steps, state_transition
from tests.analysis.systems import largest, network, sample, torch64


def test_a_step_of_a_linear_field_is_a_cayley_transform():
    a = sample(5, 5) / 3
    block = nanode.ODEBlock(lambda t, x: x @ a.T, 2, ImplicitMidpoint(iterations=40))
    eye = torch.eye(5, **torch64)
    cayley = torch.linalg.solve(eye - a / 4, eye + a / 4)
    found = state_transition(block, sample(5), of=Steps()).matrices[-1]
    assert largest(found - cayley @ cayley) < 1e-12


def test_order():
    errors = []
    exact = nanode.odeint(network(), sample(4), steps=200, solver=nanode.RK4())
    for steps in (10, 20):
        found = nanode.odeint(network(), sample(4), steps=steps, solver=ImplicitMidpoint())
        errors.append(largest(found - exact))
    assert abs(math.log2(errors[0] / errors[1]) - ImplicitMidpoint.order) < 0.2


def test_the_energy_of_a_pendulums_small_swing_is_kept():
    """A quadratic invariant: x² + 4v² under x' = 4v, v' = −x, in steps far from small."""

    def f(t, state):
        x, v = state
        return 4 * v, -x

    x, v = nanode.odeint(
        f,
        (sample(1), sample(1, seed=2)),
        steps=60,
        interval=(0.0, 18.0),
        solver=ImplicitMidpoint(60),
    )
    start = sample(1).square() + 4 * sample(1, seed=2).square()
    assert float(x.square() + 4 * v.square()) == pytest.approx(float(start), rel=1e-10)


def test_an_equation_that_does_not_settle_gives_no_number():
    x = torch.ones(1, **torch64)
    found = nanode.odeint(lambda t, x: -50 * x, x, steps=10, solver=ImplicitMidpoint())
    assert bool(found.isnan().all())
    with pytest.raises(ValueError, match="not finite after step 0"):
        nanode.odeint(
            lambda t, x: -50 * x, x, steps=10, solver=ImplicitMidpoint(), check_finite=True
        )
    with pytest.raises(ValueError, match="iterations must be a whole number of at least 1"):
        ImplicitMidpoint(0)


@pytest.mark.parametrize("segments", [None, 1, 4])
def test_stages_evaluated_again_and_again_are_one_stage_to_checkpoints(segments):
    """By how many segments a table of gradients once counted as full before it was."""
    found = []
    for gradient in (nanode.Backprop(), nanode.Checkpointed(segments)):
        field, x = network(), sample(4).requires_grad_()
        end = nanode.odeint(field, x, steps=4, solver=ImplicitMidpoint(), gradient=gradient)
        torch.manual_seed(0)
        end.backward(torch.randn_like(end))
        found.append([x.grad, *(p.grad for p in field.parameters())])
    for expected, got in zip(*found, strict=True):
        assert torch.allclose(got, expected, rtol=1e-12, atol=1e-14)


def test_random_numbers_in_repeated_stages_are_refused():
    block = nanode.ODEBlock(
        nanode.Autonomous(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Dropout())),
        steps=2,
        solver=ImplicitMidpoint(),
        gradient=nanode.Checkpointed(),
    )
    with pytest.raises(ValueError, match="several times a stage"):
        block(torch.randn(3, 2))
    with torch.no_grad():
        block(torch.randn(3, 2))
