import math

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

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
    # A derivative through a product of reflections, a matrix exponential, a linear solve.
    "householder": lambda: network(orthogonal={"0.weight": nanode.Householder()}),
    "exponential": lambda: network(orthogonal={"0.weight": nanode.Exponential()}),
    "cayley": lambda: network(orthogonal={"0.weight": nanode.Cayley()}),
}


@pytest.mark.parametrize("name", FIELDS)
@pytest.mark.parametrize("batch", [1, 60])  # rows are fewer than columns, and the other way round
def test_it_is_autodiffs_jacobian(name, batch):
    """Forward mode for many rows, reverse mode step by step for few, against the whole block's."""
    block = nanode.ODEBlock(FIELDS[name](), steps=4, solver=nanode.Heun(), scale=1.5)
    x = sample(batch, 4)
    expected = jacobian_in_parameters(block, x)
    found = sensitivity(block, x, of=Steps())
    assert (4 * x.numel() < expected.shape[1]) == (batch == 1)
    assert found.matrices.shape == (5, *expected.shape)
    assert largest(found.matrices[0]) == 0
    assert largest(found.matrices[-1] - expected) < 1e-12
    assert list(found.columns) == [name for name, _ in block.field.named_parameters()]


@pytest.mark.parametrize("solver", [nanode.Leapfrog(), nanode.Coupled()])
@pytest.mark.parametrize("batch", [1, 15])
def test_of_steppers_with_memory(solver, batch):
    block, x = nanode.ODEBlock(network(), steps=4, solver=solver), sample(batch, 4)
    found = sensitivity(block, x, of=Steps()).matrices[-1]
    assert largest(found - jacobian_in_parameters(block, x)) < 1e-12


def test_many_parameters_of_a_small_state_need_no_square_matrix():
    torch.manual_seed(0)
    wide = nn.Sequential(nn.Linear(2, 1000), nn.Tanh(), nn.Linear(1000, 2)).double()
    block = nanode.ODEBlock(nanode.Autonomous(wide), steps=2)
    with LargestTensor() as seen:
        found = sensitivity(block, sample(2), of=Steps()).matrices
    assert seen.numel <= 2 * found.numel()
    assert largest(found[-1] - jacobian_in_parameters(block, sample(2))) < 1e-12


class LargestTensor(TorchDispatchMode):
    """How many numbers the largest tensor has that is made meanwhile."""

    numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        made = [part for part in tree_leaves(result) if isinstance(part, torch.Tensor)]
        self.numel = max([self.numel, *(part.numel() for part in made)])
        return result


ADAPTIVE = nanode.Adaptive("dopri8", rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("name", ["constant biases", "buckets"])
def test_an_adaptive_solver_finds_what_fine_steps_find(name):
    block = nanode.ODEBlock(FIELDS[name](), steps=2, scale=1.5)
    fine = nanode.ODEBlock(block.field, steps=40, solver=nanode.RK4(), scale=1.5)
    found = sensitivity(block, sample(4), at=[1.0], of=Equation(solver=ADAPTIVE)).matrices[-1]
    # RK4: h⁴ = 4e-7 times a constant of about one.
    assert largest(found - jacobian_in_parameters(fine, sample(4))) < 1e-6


@pytest.mark.parametrize("of", [Equation(), Equation(solver=ADAPTIVE)])
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


def test_backwards_from_a_jump_the_weights_behind_it_have_no_part():
    layer = nn.Linear(1, 1, bias=False).double()
    field = nanode.TimeVarying(layer, nanode.Bucketed(2))
    block = nanode.ODEBlock(field, 2, interval=(0.5, 0.0))
    found = sensitivity(block, sample(1), of=Equation(solver=nanode.Adaptive()))
    assert found.matrices[-1, 0, 0] != 0
    assert not found.matrices[:, 0, 1].any()


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


class Forced(nn.Module):
    """x ↦ Bθ + x/2, B Gaussian and fixed: S(t) is B times a number, and has no gaps either."""

    def __init__(self, size, parameters):
        super().__init__()
        self.theta = nn.Parameter(torch.zeros(parameters, **torch64))
        self.register_buffer("b", sample(size, parameters))

    def forward(self, x):
        return self.b @ self.theta + x / 2


@pytest.mark.parametrize("of", [Steps(), Equation(steps=2)])
@pytest.mark.parametrize("count", [1, 3, 6])
def test_estimates_are_within_two_per_cent_of_exact_values(of, count):
    """By the settings that a user gets, on the hardest case: 18 to 63 columns of 500."""
    block = nanode.ODEBlock(nanode.Autonomous(Forced(500, 500)), steps=2)
    x, at = sample(500), [0.5, 1.0]
    exact = sensitivity(block, x, at=at, of=of).singular_values.values[1:, :count]
    found = sensitivity_values(block, x, count=count, at=at, of=of).values
    assert largest(found / exact - 1) < 0.02
    coarse = sensitivity_values(block, x, count=count, at=at, of=of, depth=3).values
    assert largest(coarse / exact - 1) > 0.02  # it takes what it takes


def test_estimates_of_a_network():
    """A state of 240 and 495 coefficients, of which the method sees 63 directions."""
    block, x = nanode.ODEBlock(network(size=12), steps=6), sample(20, 12)
    exact = sensitivity(block, x, at=[1.0], of=Steps()).singular_values.values[-1, :6]
    found = sensitivity_values(block, x, of=Steps()).values[-1]
    assert float(exact[0] / exact[5]) > 1.2  # gaps, so that far less than 2 % is left
    assert largest(found / exact - 1) < 1e-3


def test_too_many_entries_are_refused_with_the_estimate_to_use():
    block = nanode.ODEBlock(network(), steps=2)
    count = sum(p.numel() for p in block.parameters())
    with pytest.raises(ValueError, match=rf"{4 * count}.*limit=100.*sensitivity_values"):
        sensitivity(block, sample(4), limit=100)
    assert sensitivity(block, sample(4), limit=4 * count, of=Steps()).matrices.shape[-1] == count


@pytest.mark.parametrize("look", [sensitivity, sensitivity_values])
def test_times_outside_are_refused_by_the_name_the_user_gave(look):
    message = r"^times must follow the start .* inside \(0\.0, 1\.0\), got at=\[2\.0\]$"
    with pytest.raises(ValueError, match=message):
        look(nanode.ODEBlock(network(), steps=2), sample(4), at=[2.0])


def test_numbers_and_figure():
    found = sensitivity(nanode.ODEBlock(network(), steps=2), sample(4), of=Steps())
    numbers = found.numbers()
    squares = [sum(norm[-1] ** 2 for norm in numbers["norms"].values())]
    assert squares == pytest.approx([float(found.matrices[-1].square().sum())])
    assert len(found.plot().get_lines()[0].get_xdata()) == 2  # without t0, where it is 0


@pytest.mark.parametrize("look", [sensitivity, sensitivity_values])
def test_complex_parameters_are_refused(look):
    class Rotated(nn.Module):
        def __init__(self):
            super().__init__()
            self.turn = nn.Parameter(torch.eye(2, dtype=torch.complex128) * 1j)

        def forward(self, x):
            return (x.to(self.turn) @ self.turn).imag

    block = nanode.ODEBlock(nanode.Autonomous(Rotated()), steps=2)
    with pytest.raises(ValueError, match=r"real parameters.*'module\.turn'"):
        look(block, torch.ones(1, 2, **torch64), of=Steps())
