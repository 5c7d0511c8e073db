import math

import pytest
import torch

import nanode
from nanode.analysis import Equation, ImplicitMidpoint, Steps, gradient_norms
from tests.analysis.systems import largest, moving, network, sample, torch64

LENGTH = 50.0


def thousand(solver, **kind):
    """How a gradient's norm changes over 1,000 steps back through dx/dt = W(t)x or tanh(W(t)x)."""
    basis = nanode.Trigonometric(2, frequency=2 * math.pi / LENGTH, interval=(0.0, LENGTH))
    block = nanode.ODEBlock(moving(16, basis, seed=1, **kind), steps=1000, solver=solver)
    found = gradient_norms(block, sample(8, 16))
    assert len(found.norms) == 1001
    return found


def test_linear_fields_over_a_thousand_steps():
    """Skew weights keep the gradient under a step that keeps lengths; all else lets it grow."""
    kept = thousand(ImplicitMidpoint(iterations=10), skew=True)
    assert largest(kept.norms - 1) < 1e-8
    # Euler multiplies the mode iω by √(1 + h²ω²): with h = 1/20 that is e^(500 h²ω²) = e^(1.25 ω²)
    # in all, and ω² is about 1 on average.
    euler = thousand(nanode.Euler(), skew=True)
    assert 2 < euler.growth < 20
    assert bool((euler.norms.diff() < 0).all())  # in every single step
    # Gaussian weights of variance 1/n have eigenvalues up to 1: e^50 = 5e21.
    random = thousand(nanode.Heun())
    assert random.growth > 1e12


def test_bent_fields_over_a_thousand_steps():
    """The Jacobian is diag(tanh')W, not skew: skew weights tame the gradient, no more."""
    skew = thousand(nanode.Heun(), skew=True, bend=True)
    random = thousand(nanode.Heun(), bend=True)
    assert 1.5 < skew.growth < 20
    assert abs(math.log(skew.growth)) < abs(math.log(random.growth))


def test_the_norms_are_those_of_autograd():
    block = nanode.ODEBlock(network(), steps=5, scale=1.5, at=[k / 5 for k in range(6)])
    x = sample(3, 4).requires_grad_()
    end = sample(3, 4, seed=7)
    found = gradient_norms(block, x, gradient=end)
    # Each state is made a leaf by solving on from it.
    for k in range(6):
        start = block(x)[k].detach().requires_grad_()
        rest = (
            nanode.odeint(block.field, start, steps=5 - k, interval=(k / 5, 1), scale=1.5)
            if (k < 5)
            else start
        )
        (gradient,) = torch.autograd.grad(rest, start, end)
        assert float(found.norms[k]) == pytest.approx(float(gradient.norm()), rel=1e-12)


def test_the_equation_is_what_fine_steps_approach():
    block = nanode.ODEBlock(network(), steps=4)
    fine = nanode.ODEBlock(network(), steps=40, solver=nanode.RK4())
    equation = gradient_norms(block, sample(4), of=Equation(steps=40))
    assert largest(equation.norms - gradient_norms(fine, sample(4)).norms) < 1e-12
    coarse = gradient_norms(block, sample(4))
    assert abs(coarse.growth - equation.growth) > 1e-3


def test_states_in_parts_and_one_direction_at_every_call():
    def turn(t, state):
        x, v = state
        return v, -x

    state = (sample(2), sample(2, seed=4))
    block = nanode.ODEBlock(turn, steps=3)
    ours = gradient_norms(block, state, gradient=(torch.ones(2, **torch64), torch.zeros(2)))
    # One Euler step multiplies lengths by √(1 + h²).
    assert ours.growth == pytest.approx((1 + 1 / 9) ** 1.5)
    again = [gradient_norms(block, state).norms for _ in range(2)]
    assert torch.equal(*again)


def test_what_it_cannot_do_is_refused():
    block = nanode.ODEBlock(network(), steps=4, solver=nanode.Leapfrog())
    with pytest.raises(ValueError, match=r"Leapfrog.*use of=Equation"):
        gradient_norms(block, sample(4))
    assert gradient_norms(block, sample(4), of=Equation(steps=4)).growth > 0
    with pytest.raises(
        ValueError, match=r"shapes of the block's state, \[\(4,\)\], got \[\(3,\)\]"
    ):
        gradient_norms(nanode.ODEBlock(network(), 2), sample(4), gradient=sample(3), of=Steps())


def test_numbers_and_figure():
    found = gradient_norms(nanode.ODEBlock(network(), 3), sample(4))
    assert found.numbers()["growth"] == found.growth == float(found.norms[0] / found.norms[-1])
    assert found.plot().get_lines()[0].get_ydata().tolist() == found.norms.tolist()
