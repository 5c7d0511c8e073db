"""Random layers draw the same numbers when evaluated again."""

import pytest
import torch
from torch import nn

import nanode
from tests.block.common import RECOMPUTING, ROUNDING, like, make
from tests.gradients.models import DOUBLE, distance, gradients, inputs


class Noisy(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(3, 16), nn.Linear(16, 3)

    def forward(self, x):
        return self.last(nn.functional.dropout(torch.tanh(self.first(x)), 0.5, self.training))


@pytest.mark.filterwarnings("ignore:the weights jump")  # of slopes that are carried over
@pytest.mark.parametrize(
    ("gradient", "solver"),
    [
        *RECOMPUTING,
        (nanode.Checkpointed(segments=1), nanode.RK4()),
        (nanode.Checkpointed(chunk=3), nanode.Leapfrog()),
        (nanode.Reversal(chunk=1), nanode.ReversibleHeun()),
    ],
    ids=repr,
)
def test_dropout_masks_are_drawn_again(gradient, solver):
    block = make(gradient, solver, net=Noisy())
    x = inputs()[0]
    found = []
    for one in (like(block, nanode.Backprop()), block):
        torch.manual_seed(5)
        result = gradients(one, x)
        found.append((*result, torch.get_rng_state()))
    (y, expected, after), (z, got, after_ours) = found
    assert (y - z).abs().max() < 1e-14
    assert distance(got, expected) < ROUNDING
    # The next random number is the one that Backprop would leave.
    assert torch.equal(after, after_ours)
    # And masks do differ from solve to solve, and from evaluation to evaluation.
    assert not torch.allclose(block(x), y)


def test_random_numbers_drawn_between_the_passes_are_left_alone():
    block = make(nanode.Checkpointed(), net=Noisy())
    x = inputs()[0]
    torch.manual_seed(5)
    _, expected = gradients(like(block, nanode.Backprop()), x)
    torch.manual_seed(5)
    y = block(x)
    torch.randn(100)
    between = torch.get_rng_state()
    weight = torch.linspace(-1, 1, y.numel(), dtype=DOUBLE).view_as(y)
    found = torch.autograd.grad((y * weight).sum(), [x, *block.parameters()])
    assert torch.equal(torch.get_rng_state(), between)
    assert distance(dict(zip(expected, found, strict=True)), expected) < ROUNDING
