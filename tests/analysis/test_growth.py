import pytest
import torch

import nanode
from nanode.analysis import Equation, Steps, growth_rates, state_transition
from tests.analysis.systems import largest, moving, network, sample, torch64


def test_constant_matrices_have_the_real_parts_of_their_eigenvalues():
    """diag(1, −2) and a rotation that shrinks at rate ½, in a basis of their own."""
    blocks = torch.block_diag(
        torch.tensor([[1.0]], **torch64),
        torch.tensor([[-0.5, 3.0], [-3.0, -0.5]], **torch64),
        torch.tensor([[-2.0]], **torch64),
    )
    turn = torch.linalg.qr(sample(4, 4))[0]
    a = turn @ blocks @ turn.T
    block = nanode.ODEBlock(lambda t, x: x @ a.T, steps=2, interval=(0.0, 20.0))
    found = growth_rates(block, sample(4), of=Equation(steps=400))
    # The directions to start from make a difference that stays: it falls out between two times.
    half = found.times.tolist().index(10.0)
    later = (20 * found.rates[-1] - 10 * found.rates[half]) / 10
    # The rotation turns its two directions in and out of each other: their mean is what stays.
    assert float(later[0]) == pytest.approx(1.0, abs=1e-5)
    assert float(later[1:3].mean()) == pytest.approx(-0.5, abs=1e-5)
    assert float(later[3]) == pytest.approx(-2.0, abs=1e-5)


@pytest.mark.parametrize("of", [Steps(), Equation(steps=6)])
def test_all_of_them_together_are_the_growth_of_volume(of):
    block = nanode.ODEBlock(network(), steps=3, interval=(0.25, 1.0))
    found = growth_rates(block, sample(4), of=of)
    transition = state_transition(block, sample(4), of=of).matrices[-1]
    assert float(found.rates[-1].sum() * 0.75) == pytest.approx(
        float(transition.det().abs().log()), abs=1e-12
    )
    assert found.times[-1] == 1.0


def test_skew_weights_neither_grow_nor_shrink_and_random_ones_do():
    basis = nanode.Legendre(degree=2, interval=(0.0, 10.0))
    rates = [
        growth_rates(
            nanode.ODEBlock(moving(8, basis, skew=skew), steps=4),
            sample(8),
            count=8,
            of=Equation(steps=200),
        ).rates
        for skew in (True, False)
    ]
    assert largest(rates[0]) < 1e-5  # RK4 in steps of 1/20
    assert float(rates[1][-1].max()) > 0.3
    assert float(rates[1][-1].min()) < -0.3


def test_backwards_in_time_rates_turn_round():
    block = nanode.ODEBlock(lambda t, x: 2 * x, steps=50, interval=(1.0, 0.0))
    found = growth_rates(block, torch.ones(1, **torch64), of=Equation(steps=50))
    assert found.rates[-1].tolist() == pytest.approx([-2.0], abs=1e-6)


def test_what_it_cannot_do_is_refused():
    block = nanode.ODEBlock(network(), steps=2, solver=nanode.ReversibleHeun())
    with pytest.raises(ValueError, match=r"a growth rate needs.*ReversibleHeun"):
        growth_rates(block, sample(4), of=Steps())
    with pytest.raises(ValueError, match="count must be a whole number of at least 1"):
        growth_rates(block, sample(4), count=0)


def test_numbers_and_figure():
    found = growth_rates(nanode.ODEBlock(network(), 3), sample(4), count=2, of=Steps())
    assert found.numbers() == {
        "times": pytest.approx([1 / 3, 2 / 3, 1.0]),
        "rates": found.rates.tolist(),
    }
    assert len(found.plot().get_lines()) == 2
