"""Another motion for some parameters, or none."""

from functools import partial

import pytest
import torch
from torch import nn

import nanode
from nanode.stages import Stage
from tests.fields.modules import Tied
from tests.trajectories.samples import stirred


def shapes(field):
    """How many coefficients each moving weight has."""
    return {
        name: alpha.shape[0]
        for path in field.modules()
        if isinstance(path, nanode.Expansion)
        for name, alpha in path.coefficients
    }


def three():
    return nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2)))


LEGENDRE = dict.fromkeys(dict(three().named_parameters()), 4)


@pytest.mark.parametrize(
    ("overrides", "changed"),
    [
        ({}, {}),
        ({"0.weight": nanode.Bucketed(2)}, {"0.weight": 2}),
        ({"0": nanode.Bucketed(2)}, {"0.weight": 2, "0.bias": 2}),
        ({"1.0": nanode.Bucketed(2)}, {"1.0.weight": 2, "1.0.bias": 2}),
        ({"*.bias": nanode.Bucketed(2)}, {"0.bias": 2, "1.0.bias": 2, "1.1.bias": 2}),
        ({"1.?.bias": nanode.Bucketed(2)}, {"1.0.bias": 2, "1.1.bias": 2}),
        ({"?.0": nanode.Bucketed(2)}, {"1.0.weight": 2, "1.0.bias": 2}),
        ({"0.weight": None}, {"0.weight": None}),
        ({"1.*": None, "1.1": nanode.Bucketed(3)}, {"1.0.weight": None, "1.0.bias": None,
                                                   "1.1.weight": 3, "1.1.bias": 3}),
        ({"1.1": nanode.Bucketed(3), "1.*": None}, {f"1.{k}": None for k in
                                                   ("0.weight", "0.bias", "1.weight", "1.bias")}),
    ],
    ids=str,
)  # fmt: skip
def test_overrides_by_name_prefix_and_pattern(overrides, changed):
    module = three()
    x = torch.randn(3, 2)
    y = module(x)
    field = nanode.TimeVarying(module, nanode.Legendre(3), overrides=overrides)
    expected = {name: d for name, d in (LEGENDRE | changed).items() if d is not None}
    assert shapes(field) == expected
    constant = sorted(name for name, d in (LEGENDRE | changed).items() if d is None)
    assert sorted(name for name, _ in field.module.named_parameters()) == constant
    assert torch.equal(field(0.3, x), y)
    # One expansion per basis, whatever the number of weights.
    bases = {id(b) for b in (*overrides.values(), None) if b is not None}
    parts = [m for m in field.modules() if isinstance(m, nanode.Expansion)]
    assert len(parts) <= 1 + len(bases)


def test_a_prefix_is_a_whole_name():
    module = nn.ModuleDict({"layer": nn.Linear(2, 2), "layer2": nn.Linear(2, 2)})
    field = nanode.TimeVarying(module, nanode.Legendre(3), overrides={"layer": None})
    assert sorted(field.trajectory.shapes) == ["layer2.bias", "layer2.weight"]


def test_overrides_by_another_kind_of_trajectory():
    module = three()
    x = torch.randn(3, 2)
    y = module(x)
    field = nanode.TimeVarying(
        module,
        nanode.Legendre(3),
        overrides={"0": partial(nanode.Hypernetwork, embedding=2), "1.1": None},
    )
    assert torch.equal(field(0.3, x), y)
    (hyper,) = (m for m in field.modules() if isinstance(m, nanode.Hypernetwork))
    assert sorted(hyper.shapes) == ["0.bias", "0.weight"]
    assert shapes(field) == {"1.0.weight": 4, "1.0.bias": 4}
    assert not torch.allclose(stirred(field)(0.3, x), field(0.7, x))


def test_a_trajectory_by_default_and_a_basis_by_override():
    field = nanode.TimeVarying(
        three(), weights=nanode.Hypernetwork, overrides={"*.bias": nanode.Bucketed(3)}
    )
    assert shapes(field) == {"0.bias": 3, "1.0.bias": 3, "1.1.bias": 3}
    assert field.jumps == pytest.approx((1 / 3, 2 / 3))


def test_breakpoints_are_those_of_every_basis():
    field = nanode.TimeVarying(
        three(),
        nanode.Bucketed(2, interval=(0.0, 3.0)),
        overrides={"0": nanode.PiecewiseLinear(4, interval=(0.0, 3.0))},
    )
    assert field.interval == (0.0, 3.0)
    assert field.breakpoints == (1.0, 1.5, 2.0)
    assert field.jumps == (1.5,)


def test_a_tied_weight_moves_once():
    module = Tied()
    field = stirred(nanode.TimeVarying(module, nanode.Legendre(1)))
    assert sorted(field.trajectory.shapes) == ["decoder.bias", "encoder.bias", "encoder.weight"]
    x = torch.randn(3, 4)
    w = field.weights_at(0.3)
    hidden = torch.tanh(x @ w["encoder.weight"].T + w["encoder.bias"])
    expected = hidden @ w["encoder.weight"].T + w["decoder.bias"]
    torch.testing.assert_close(field(0.3, x), expected, rtol=1e-13, atol=1e-13)


def test_a_tied_weight_left_constant_stays_tied():
    module = Tied()
    field = nanode.TimeVarying(module, nanode.Legendre(1), overrides={"encoder": None})
    assert field.module.encoder.weight is field.module.decoder.weight
    assert [*field.trajectory.shapes] == ["decoder.bias"]
    x = torch.randn(3, 4)
    lent = {name: w.detach() + 1 for name, w in field.weights_at(0.3).items()}
    hidden = torch.tanh(x @ lent["encoder.weight"].T + lent["encoder.bias"])
    expected = hidden @ lent["encoder.weight"].T + lent["decoder.bias"]
    got = field.evaluate(lent, Stage.alone(0.3), x)
    torch.testing.assert_close(got, expected, rtol=1e-13, atol=1e-13)
    assert field.module.encoder.weight is field.module.decoder.weight


def test_a_pattern_of_parameters_names_nothing_inside_of_what_is_called_like_them():
    normed = nn.utils.parametrizations.weight_norm(nn.Linear(2, 2))
    field = nanode.TimeVarying(
        nn.Sequential(nn.Linear(2, 2), normed), nanode.Legendre(3), overrides={"*.weight": None}
    )
    inside = "1.parametrizations.weight.original"
    assert set(shapes(field)) == {"0.bias", "1.bias", f"{inside}0", f"{inside}1"}


def test_brackets_in_the_name_of_a_submodule_mean_themselves():
    parts = nn.ModuleDict({"a0": nn.Linear(2, 2), "a[0]": nn.Linear(2, 2)})
    field = nanode.TimeVarying(parts, nanode.Legendre(3), overrides={"a[0]": None})
    assert set(shapes(field)) == {"a0.weight", "a0.bias"}
