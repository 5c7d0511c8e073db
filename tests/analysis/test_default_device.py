"""Analyses of a block on the host while new tensors go elsewhere, as by ``set_default_device``."""

import pytest
import torch
from torch import nn

import nanode
from nanode import analysis

ANALYSES = {
    "check_gradients": lambda block, x: nanode.check_gradients(block, x).worst("Checkpointed"),
    "gradient_norms": lambda block, x: analysis.gradient_norms(block, x).norms,
    "growth_rates": lambda block, x: analysis.growth_rates(block, x).rates,
    "jacobian_spectrum": lambda block, x: analysis.jacobian_spectrum(block, x).times,
    "sensitivity": lambda block, x: analysis.sensitivity(block, x).times,
    "sensitivity_values": lambda block, x: analysis.sensitivity_values(block, x).times,
    "state_transition": lambda block, x: analysis.state_transition(block, x).times,
    "transition_values": lambda block, x: analysis.transition_values(block, x).times,
    "weight_norms": lambda block, x: analysis.weight_norms(block).times,
}


@pytest.mark.parametrize("name", ANALYSES)
def test_analyses(name):
    torch.manual_seed(0)
    block = nanode.ODEBlock(nanode.TimeVarying(nn.Linear(3, 3), nanode.Legendre(2)), 4)
    x = torch.randn(1, 3)
    expected = ANALYSES[name](block, x)
    with torch.device("meta"):
        found = ANALYSES[name](block, x)
    if isinstance(expected, torch.Tensor):
        assert torch.equal(found, expected)
    else:
        assert found == expected
