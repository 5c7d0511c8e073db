"""What weight decay acts on, by name."""

import pytest
import torch
from torch import nn

import nanode
from nanode.models import create, names
from nanode.training import OptimizerConfig
from nanode.training.decay import decayed_names
from nanode.training.optimizers import make_optimizer


def net():
    return nn.Sequential(
        nanode.BatchNorm(4), nn.Conv2d(4, 4, 1), nn.GroupNorm(2, 4), nn.Conv2d(4, 4, 3)
    )


def test_coefficients_follow_the_weight_they_stand_for():
    field = nanode.TimeVarying(net(), nanode.Legendre(degree=2))
    assert decayed_names(field) == {
        "trajectory.coefficients.1.weight",
        "trajectory.coefficients.3.weight",
    }


def test_some_weights_constant_some_moving_in_another_way():
    field = nanode.TimeVarying(
        net(),
        nanode.Legendre(degree=2),
        overrides={"1": None, "2": nanode.Bucketed(3), "3.weight": nanode.Hypernetwork},
    )
    found = decayed_names(field)
    kept = {name for name, _ in field.named_parameters()} - found
    assert "module.1.weight" in found
    assert any(name.endswith("embeddings.3.weight") for name in found)
    assert not [name for name in found if "coefficients.2" in name or "coefficients.0" in name]
    assert {name for name in kept if name.endswith("bias")} == {
        name for name, _ in field.named_parameters() if name.endswith("bias")
    }


def test_a_norm_with_many_axes_does_not_decay():
    model = nn.Sequential(nn.LayerNorm((4, 4)), nn.Linear(4, 4))
    assert decayed_names(model) == {"1.weight"}
    moving = nanode.TimeVarying(model, nanode.Legendre(degree=1))
    assert decayed_names(moving) == {"trajectory.coefficients.1.weight"}


def test_appended_time_is_part_of_the_weight():
    field = nanode.TimeAppended(nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3)))
    assert decayed_names(field) == {"module.0.layer.weight", "module.0.time_weight"}


def test_gates_do_not_decay():
    field = nanode.Gated([nn.Linear(3, 3), nn.Linear(3, 3)])
    assert decayed_names(field) == {"fields.0.module.weight", "fields.1.module.weight"}


def test_recurrent_weights_decay():
    assert decayed_names(nn.GRU(2, 2)) == {"weight_ih_l0", "weight_hh_l0"}


@pytest.mark.parametrize("name", [name.replace("-D", "-3") for name in names()])
def test_every_model_decays_its_convolutions(name):
    model = create(name, preset="tiny", channels=1)
    found = decayed_names(model)
    assert {"stem.weight", "head.4.weight"} <= found
    assert "head.0.weight" not in found
    assert not [name for name in found if name.endswith("bias")]
    # In a tiny flow the norms are 0, 3 and 6, the convolutions 2, 5 and 8.
    inside = [name for name in found if name.startswith("stages") and ".layers." not in name]
    assert inside
    assert not [name for name in inside if name.split(".")[-2] in ("0", "3", "6")]


@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_only_what_decays_shrinks(name):
    model = nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2))
    before = {key: p.detach().clone() for key, p in model.named_parameters()}
    optimizer = make_optimizer(model, OptimizerConfig(name=name, lr=0.1, weight_decay=0.5))
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.step()
    for key, p in model.named_parameters():
        if key != "0.weight":
            assert torch.equal(p, before[key])
            continue
        # SGD sees decay as a gradient, and Nesterov's first step is 1 + momentum of it.
        share = 1 - 0.1 * 0.5 * (1.9 if name == "sgd" else 1.0)
        torch.testing.assert_close(p, share * before[key])


def test_a_model_without_parameters():
    with pytest.raises(ValueError, match="ReLU has no parameters to train"):
        make_optimizer(nn.ReLU(), OptimizerConfig())
