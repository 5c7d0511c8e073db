"""Tables of weights that are cast and laid out once."""

import copy

import pytest
import torch
from torch import nn

import nanode
from nanode.fields import Weights
from nanode.gradients import compiled, layout
from tests.gradients.models import X

pytestmark = pytest.mark.usefixtures("compile_all")


@pytest.mark.parametrize("gradient", [nanode.Backprop(), nanode.Checkpointed()], ids=repr)
def test_tables_are_cast_and_laid_out_once(gradient, monkeypatch):
    """Under autocast every stage gets its row ready for use, and the numbers are the same."""
    seen = []
    call = compiled.Evaluator.__call__

    def watched(self, weights, *others):
        seen.append(weights)
        return call(self, weights, *others)

    monkeypatch.setattr(compiled.Evaluator, "__call__", watched)
    torch.manual_seed(0)
    module = nn.Sequential(nanode.BatchNorm(4), nn.Tanh(), nn.Conv2d(4, 4, 3, padding=1))
    field = nanode.TimeVarying(module, nanode.Trigonometric(order=2), start=nanode.Noisy(0.3))
    x = X.float().contiguous(memory_format=torch.channels_last)
    cotangent = torch.randn_like(x)
    found = []
    for compile in (False, True):
        block = nanode.ODEBlock(copy.deepcopy(field), 4, gradient=gradient, compile=compile)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = block(x)
        found.append([y, *torch.autograd.grad(y, list(block.parameters()), cotangent)])
    for plain, fast in zip(*found, strict=True):
        assert (plain - fast).norm() <= 2e-2 * plain.norm()  # bf16
    assert len(seen) >= 4
    for weights in seen:
        kernel = weights["2.weight"]
        assert kernel.dtype == torch.bfloat16
        assert kernel.is_contiguous(memory_format=torch.channels_last)
        assert weights["0.weight"].dtype == torch.float32  # norms keep theirs


class Skewed(nn.Module):
    """Reads the weight of a layer that it contains."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return x @ (self.layer.weight - self.layer.weight.mT)


def test_only_weights_that_one_layer_uses_once_are_cast():
    twice, tied = nn.Linear(4, 4), nn.Linear(4, 4)
    tied.weight = (shared := nn.Linear(4, 4)).weight
    watched = nn.Linear(4, 4)
    watched.register_forward_pre_hook(lambda layer, given: (given[0] + layer.weight.sum(),))
    normed = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))
    module = nn.Sequential(
        nn.Linear(4, 4),
        nn.Sequential(nn.Linear(4, 4)),
        Skewed(),
        twice,
        twice,
        shared,
        tied,
        watched,
        normed,
    )
    field = nanode.TimeVarying(module, nanode.Trigonometric(order=1))
    x = (torch.randn(3, 4),)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert layout.preparation(field, x).names == {"0.weight", "1.0.weight"}
    assert layout.preparation(field, x) is layout.as_they_are


def test_double_precision_is_not_cast_as_autocast_leaves_it_alone():
    laid = layout.Laid(torch.bfloat16, frozenset(["w"]), channels_last=False)
    table = torch.ones(2, 3, 3, dtype=torch.float64)
    assert laid(Weights({"w": table}, {})).moving["w"] is table
