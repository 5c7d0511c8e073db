import math

import pytest
import torch
from torch import nn

import nanode
from nanode.analysis import Equation, Steps, sensitivity, sensitivity_values
from tests.analysis.systems import jacobian_in_parameters, largest, network, sample, torch64

FIELDS = {
    "expansion": lambda: network(),
    "constant biases": lambda: network(overrides={"*.bias": None}),
    "buckets": lambda: network(basis=nanode.Bucketed(2)),
    "hypernetwork": lambda: nanode.TimeVarying(
        nn.Linear(4, 4).double(), weights=nanode.Hypernetwork
    ),
    "gates": lambda: nanode.Gated([nn.Linear(4, 4).double(), network()]),
    "appended time": lambda: nanode.TimeAppended(nn.Linear(4, 4)).double(),
}


@pytest.mark.parametrize("name", FIELDS)
def test_it_is_autodiffs_jacobian(name):
    """By its equation on the block's own steps, and by differentiating them, against reverse mode.

    A Runge–Kutta method solves the sensitivity equation by the derivative of its steps, so both
    agree to rounding, far below 1e-6.
    """
    block = nanode.ODEBlock(FIELDS[name](), steps=4, solver=nanode.Heun(), scale=1.5)
    x = sample(4)
    expected = jacobian_in_parameters(block, x)
    for of in (Equation(steps=4, solver=nanode.Heun()), Steps()):
        found = sensitivity(block, x, of=of)
        assert found.matrices.shape == (5, 4, expected.shape[1])
        assert largest(found.matrices[0]) == 0
        assert largest(found.matrices[-1] - expected) < 1e-12
    assert list(found.columns) == [name for name, _ in block.field.named_parameters()]


@pytest.mark.parametrize("solver", [nanode.Leapfrog(), nanode.Coupled()])
def test_of_steppers_with_memory(solver):
    block = nanode.ODEBlock(network(), steps=4, solver=solver)
    found = sensitivity(block, sample(4), of=Steps()).matrices[-1]
    assert largest(found - jacobian_in_parameters(block, sample(4))) < 1e-12


@pytest.mark.parametrize(
    "of", [Equation(), Equation(solver=nanode.Adaptive("dopri8", rtol=1e-11, atol=1e-12))]
)
def test_the_equation_by_its_closed_form(of):
    """x' = a x + b: x = e^(at) x₀ + b (e^(at) − 1)/a, whatever the block's coarse steps."""
    layer = nn.Linear(1, 1).double()
    block = nanode.ODEBlock(nanode.Autonomous(layer), steps=2)
    found = sensitivity(block, torch.tensor([2.0], **torch64), of=of)
    a, b = layer.weight.item(), layer.bias.item()
    for t, matrix in zip((0.0, 0.5, 1.0), found.matrices, strict=True):
        grown = math.exp(a * t)
        in_a = t * grown * 2.0 + b * (a * t * grown - grown + 1) / a**2
        assert matrix[0].tolist() == pytest.approx([in_a, (grown - 1) / a], abs=1e-9)


def test_parameters_by_name_and_frozen_ones_left_out():
    field = network()
    block = nanode.ODEBlock(field, steps=2)
    whole = sensitivity(block, sample(4), of=Steps())
    bias = whole.of("trajectory.coefficients.2.bias")
    assert bias.shape == (3, 4, 3 * 4)
    for name, parameter in field.named_parameters():
        parameter.requires_grad_(name.endswith("2.bias"))
    assert largest(sensitivity(block, sample(4), of=Steps()).matrices - bias) < 1e-14
    with pytest.raises(ValueError, match=r"no parameter 'bias'; there are: trajectory"):
        whole.of("bias")
    with pytest.raises(ValueError, match="no parameters that require grad"):
        sensitivity(nanode.ODEBlock(lambda t, x: x, 2), sample(4))


@pytest.mark.parametrize("of", [Steps(), Equation(steps=6)])
def test_estimates_are_within_two_per_cent_of_exact_values(of):
    block = nanode.ODEBlock(network(size=12), steps=6)
    x = sample(12)
    exact = sensitivity(block, x, at=[0.5, 1.0], of=of).singular_values.values[1:, :6]
    found = sensitivity_values(block, x, count=6, at=[0.5, 1.0], of=of).values
    assert largest(found / exact - 1) < 0.02


def test_too_many_entries_are_refused_with_the_estimate_to_use():
    block = nanode.ODEBlock(network(), steps=2)
    count = sum(p.numel() for p in block.parameters())
    with pytest.raises(ValueError, match=rf"{4 * count}.*limit=100.*sensitivity_values"):
        sensitivity(block, sample(4), limit=100)
    assert sensitivity(block, sample(4), limit=4 * count, of=Steps()).matrices.shape[-1] == count


def test_numbers_and_figure():
    found = sensitivity(nanode.ODEBlock(network(), steps=2), sample(4), of=Steps())
    numbers = found.numbers()
    squares = [sum(norm[-1] ** 2 for norm in numbers["norms"].values())]
    assert squares == pytest.approx([float(found.matrices[-1].square().sum())])
    assert len(found.plot().get_lines()[0].get_xdata()) == 2  # without t0, where it is 0
