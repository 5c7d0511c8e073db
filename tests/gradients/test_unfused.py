"""What kernels must leave to the plain solve, and what they give where they only seem to fit."""

import copy

import pytest
import torch
from torch import nn

import nanode
from nanode.gradients.compiled import Compiled
from nanode.gradients.fused.bottleneck import is_bottleneck
from nanode.gradients.fused.solve import Fused
from nanode.models.layers import bottleneck, group_norm
from tests.gradients.models import bottleneck_field, passed, refuse

OTHERS = {
    "eps": lambda layers: setattr(layers[3], "eps", 1e-3),
    "momentum": lambda layers: setattr(layers[6], "momentum", 0.2),
    "bias": lambda layers: setattr(layers[2], "bias", nn.Parameter(torch.ones(8))),
    "activation": lambda layers: layers.__setitem__(4, nn.ReLU6()),
    "padding": lambda layers: setattr(layers[5], "padding_mode", "circular"),
    "stride": lambda layers: setattr(layers[5], "stride", (2, 2)),
}


@pytest.mark.parametrize("change", OTHERS)
def test_what_kernels_do_not_know_of_is_no_bottleneck(change):
    layers = bottleneck(16, 8, nanode.BatchNorm)
    OTHERS[change](layers)
    assert not is_bottleneck(nanode.Autonomous(layers))


def test_what_a_plain_solve_refuses_or_returns():
    field, x = bottleneck_field("moving"), torch.randn(2, 16, 3, 3)
    settings = {"gradient": Compiled(nanode.Backprop(), fused=True)}
    block = nanode.ODEBlock(field, 4, **settings)
    assert nanode.ODEBlock(field, 4, **settings, at=[0.0, 0.5, 1.0])(x).shape == (3, *x.shape)
    with pytest.raises(ValueError, match="not finite after step 0"):
        nanode.ODEBlock(field, 4, **settings, check_finite=True)(torch.inf * x)
    with pytest.raises(TypeError, match="positional arguments"):
        block(x, torch.ones(()))
    with pytest.raises(RuntimeError, match="should contain 8 elements"):
        block(x[:, :8])
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        block(x[:1, :, :1, :1])


@pytest.mark.parametrize("gradient", [nanode.Backprop(), nanode.Checkpointed()], ids=repr)
def test_coupled_steps_are_fused_by_reversal_alone(gradient):
    field, x = bottleneck_field("moving").double(), torch.randn(2, 16, 3, 3).double()
    plain, fused = (
        passed(nanode.ODEBlock(copy.deepcopy(field), 4, nanode.Coupled(), method), x)
        for method in (gradient, Compiled(gradient, fused=True))
    )
    for a, b in zip(fused, plain, strict=True):
        assert (a - b).norm() <= 1e-12 * b.norm()


def test_what_is_no_bottleneck_runs_as_ever():
    assert is_bottleneck(bottleneck_field("moving"))
    mixed = bottleneck_field("moving")
    mixed.module[3].eval()
    assert not is_bottleneck(mixed)
    assert not is_bottleneck(nanode.Autonomous(bottleneck(16, 8, group_norm)))
    assert not is_bottleneck(nanode.Autonomous(nn.Conv2d(4, 4, 1)))
    hooked = bottleneck_field("moving")
    hooked.module[1].register_forward_hook(lambda *args: None)
    assert not is_bottleneck(hooked)
    strided = bottleneck(16, 8, nanode.BatchNorm)
    strided[5].dilation = (2, 2)
    assert not is_bottleneck(nanode.Autonomous(strided))


def bottleneck_with(**changes):
    """A bottleneck of 16 and 8 channels with other layers in some places."""
    module = nn.Sequential(*bottleneck_field("autonomous").module)
    for place, part in changes.items():
        module[int(place[1:])] = part
    return module


def shared(place, other):
    module = bottleneck_with()
    module[other] = module[place]
    return module


class Tilted(nanode.Coupled):
    """Some other method."""

    def step(self, f, h, carry):
        return super().step(f, 2 * h, carry)


def tied():
    module = bottleneck_with(_5=nn.Conv2d(8, 8, 3, padding=1, bias=False))
    module[6].weight = module[3].weight
    return module


@pytest.mark.parametrize(
    ("module", "width"),
    [
        (bottleneck_with(), 24),
        (bottleneck_with(), 8),
        (bottleneck_with(_8=nn.Conv2d(8, 24, 1, bias=False)), 16),
        (bottleneck_with(_8=nn.Conv2d(4, 16, 1, bias=False)), 16),
        (bottleneck_with(_3=nanode.BatchNorm(4)), 16),
    ],
    ids=["wide x", "narrow x", "wide end", "narrow inside", "narrow norm"],
)
@pytest.mark.parametrize("mode", [True, False], ids=["train", "eval"])
def test_layers_that_do_not_fit_are_not_given_to_kernels(module, width, mode, monkeypatch):
    """Which would read and write beyond their ends without a word."""
    monkeypatch.setattr(Fused, "solve", refuse)
    field = nanode.Autonomous(copy.deepcopy(module))
    block = nanode.ODEBlock(field, 2, gradient=Compiled(nanode.Backprop(), fused=True)).train(mode)
    x = torch.randn(3, width, 5, 5)
    with torch.no_grad(), pytest.raises((RuntimeError, ValueError)):
        block(x)


@pytest.mark.parametrize(
    "module", [shared(0, 0), shared(3, 6), tied()], ids=["nothing", "a layer", "a weight"]
)
def test_weights_that_are_one(module):
    x = torch.randn(3, 16, 5, 5, dtype=torch.float64)
    fields = [nanode.Autonomous(copy.deepcopy(module).double()) for _ in range(2)]
    plain = passed(nanode.ODEBlock(fields[0], 3), x)
    fused = passed(
        nanode.ODEBlock(fields[1], 3, gradient=Compiled(nanode.Backprop(), True, True)), x
    )
    for a, b in zip(fused, plain, strict=True):
        assert (a - b).norm() <= 1e-12 * b.norm()


def test_another_method_is_not_taken_for_the_one_that_it_extends():
    x = torch.randn(3, 16, 5, 5)
    blocks = [
        nanode.ODEBlock(bottleneck_field("moving"), 3, Tilted(nanode.Euler()), gradient)
        for gradient in (nanode.Reversal(), Compiled(nanode.Reversal(), fused=True))
    ]
    plain, fused = (block(x) for block in blocks)
    usual = nanode.ODEBlock(bottleneck_field("moving"), 3, nanode.Coupled(nanode.Euler()))(x)
    assert torch.allclose(fused, plain, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(plain, usual, rtol=1e-2)
