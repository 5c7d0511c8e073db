"""The state stays in single precision, f may not."""

import pytest
import torch

import nanode
from tests.block.common import EXACT, RECOMPUTING, like, make
from tests.gradients.models import Net


@pytest.mark.parametrize(("gradient", "solver"), EXACT, ids=repr)
def test_autocast_keeps_the_state_in_single_precision(gradient, solver):
    block = make(gradient, solver, net=Net(hidden=16)).float()
    inside = set()
    block.field.module.register_forward_hook(
        lambda module, given, out: inside.add((given[0].dtype, out.dtype))
    )
    x = torch.randn(8, 3, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        y = block(x)
    assert y.dtype == torch.float32
    y.sum().backward()  # outside of autocast
    # The recomputation too took a single-precision state and ran in bf16.
    assert inside == {(torch.float32, torch.bfloat16)}
    assert all(p.grad.dtype == torch.float32 for p in block.parameters())


@pytest.mark.parametrize(
    ("gradient", "solver"), [*RECOMPUTING, (nanode.Reversal(), nanode.Leapfrog())], ids=repr
)
def test_gradients_under_autocast_are_backprops(gradient, solver):
    block = make(gradient, solver, net=Net(hidden=16)).float()
    x = torch.randn(8, 3, requires_grad=True)
    found = []
    for one in (block, like(block, nanode.Backprop())):
        with torch.autocast("cpu", torch.bfloat16):
            y = one(x)
        found.append(torch.autograd.grad(y.sum(), [x, *one.parameters()]))
    for ours, theirs in zip(*found, strict=True):
        # Backprop adds up the gradients of shared weights in bf16, whose unit is 8e-3; a
        # recomputation out of autocast, or in it only by half, is off by a unit in every stage.
        assert (ours - theirs).norm() < 4e-3 * theirs.norm()


def test_autocast_around_the_backward_pass_leaves_the_recomputation_alone():
    block = make(nanode.Checkpointed()).float()
    inside = set()
    block.field.module.register_forward_hook(lambda module, given, out: inside.add(out.dtype))
    y = block(torch.randn(8, 3, requires_grad=True)).sum()
    with torch.autocast("cpu", torch.bfloat16):
        y.backward()
    assert inside == {torch.float32}
