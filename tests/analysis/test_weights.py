import math

import numpy as np
import pytest
import torch
from torch import nn

import nanode
from nanode.analysis import trajectory_spectrum, weight_norms
from tests.analysis.systems import network, torch64


def test_norms_and_condition_numbers_are_numpys():
    field = network()
    found = weight_norms(field, points=5)
    assert found.times.tolist() == [0.0, 0.25, 0.5, 0.75, 1.0]
    for k, t in enumerate(found.times.tolist()):
        weights = {name: w.detach().numpy() for name, w in field.weights_at(t).items()}
        for name in ("0.weight", "2.weight"):
            assert float(found.norms[name][k]) == pytest.approx(np.linalg.norm(weights[name], 2))
            assert float(found.conditions[name][k]) == pytest.approx(np.linalg.cond(weights[name]))
        assert float(found.norms["0.bias"][k]) == pytest.approx(np.linalg.norm(weights["0.bias"]))
    assert set(found.conditions) == {"0.weight", "2.weight"}


def test_a_weight_that_becomes_singular():
    """W(t) = diag(1, 1 − 2t): singular at ½."""
    layer = nn.Linear(2, 2, bias=False).double()
    field = nanode.TimeVarying(layer, nanode.Monomial(degree=1))
    with torch.no_grad():
        field.trajectory.coefficients.weight.copy_(
            torch.tensor([[1.0, 0, 0, 1.0], [0, 0, 0, -2.0]], **torch64)
        )
    found = weight_norms(nanode.ODEBlock(field, steps=2), points=5)
    assert found.conditions["weight"].tolist() == pytest.approx([1, 2, math.inf, 2, 1])
    assert found.norms["weight"].tolist() == pytest.approx([1.0] * 5)
    assert found.numbers()["conditions"]["weight"][2] is None


def test_kernels_are_read_as_matrices_and_the_last_bucket_is_seen():
    field = nanode.TimeVarying(nn.Conv2d(2, 3, 3), nanode.Bucketed(2), start=nanode.Independent())
    found = weight_norms(field, points=3)
    kernels = field.trajectory.coefficients.weight.detach().view(2, 3, 18)
    norms = [float(torch.linalg.matrix_norm(k.double(), 2)) for k in kernels]
    assert found.norms["weight"].tolist() == pytest.approx([norms[0], norms[1], norms[1]])


def test_gated_fields_and_backward_intervals():
    gated = nanode.Gated([nn.Linear(2, 2), network(size=2)])
    assert "1.0.weight" in weight_norms(gated, points=2).norms
    block = nanode.ODEBlock(network(), steps=2, interval=(1.0, 0.0))
    found = weight_norms(block, points=3)
    assert found.times.tolist() == [1.0, 0.5, 0.0]
    there = weight_norms(block.field, points=3)
    assert found.norms["0.weight"].tolist() == there.norms["0.weight"].flip(0).tolist()


def test_fields_without_moving_weights_are_refused():
    with pytest.raises(ValueError, match="no weight of this field moves"):
        weight_norms(nanode.Autonomous(nn.Linear(2, 2)))


@pytest.mark.parametrize("look", [weight_norms, trajectory_spectrum])
@pytest.mark.parametrize("given", [nn.Linear(2, 2), nanode.Chebyshev(2), None])
def test_what_is_no_field_is_refused(look, given):
    kind = type(given).__name__
    with pytest.raises(ValueError, match=rf"ODEBlock or a field, got {kind}; .*TimeVarying\("):
        look(given)


def test_figure():
    found = weight_norms(network(), points=5)
    labels = [line.get_label() for line in found.plot().get_lines()]
    assert "‖0.weight‖₂" in labels
    only_bias = nanode.TimeVarying(
        nn.Linear(2, 2), nanode.Legendre(degree=1), overrides={"weight": None}
    )
    assert weight_norms(only_bias, points=3).plot().get_lines()


def test_a_figure_of_what_varies_keeps_its_own_limits():
    found = weight_norms(network(), points=5)
    ax = found.plot()
    values = torch.stack([*(found.norms[name] for name in found.conditions)])
    low, high = ax.get_ylim()
    assert low < float(values.min())
    assert high > max(float(c.max()) for c in found.conditions.values())
    assert high / low > 2


def test_a_single_number_moves_too():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.tensor(-2.0, **torch64))

        def forward(self, x):
            return self.scale * x

    field = nanode.TimeVarying(Scaled(), nanode.Legendre(2))
    assert weight_norms(field, points=3).norms["scale"].tolist() == [2.0, 2.0, 2.0]
    assert trajectory_spectrum(field).total["scale"] == pytest.approx(4.0)


def test_complex_weights_count_whole():
    torch.manual_seed(0)
    layer = nn.Linear(3, 3).to(torch.complex128)
    field = nanode.TimeVarying(layer, nanode.Legendre(2), start=nanode.Noisy(0.3))
    found = weight_norms(field, points=3)
    at = [field.weights_at(t)["weight"].detach().numpy() for t in (0.0, 0.5, 1.0)]
    assert found.norms["weight"].tolist() == pytest.approx([np.linalg.norm(w, 2) for w in at])
    spectrum = trajectory_spectrum(field, orders=4)
    energy = sum(spectrum.total.values())
    assert energy == pytest.approx(nanode.function_penalty(field).item())
    for name, total in spectrum.total.items():
        assert float(spectrum.orders[name].sum()) == pytest.approx(total)
