"""Blocks under each way of differentiating them, for the tests in this folder."""

import nanode
from tests.gradients.models import moving

EXACT = [
    (nanode.Backprop(), nanode.Euler()),
    (nanode.Checkpointed(), nanode.Euler()),
    (nanode.Reversal(), nanode.Coupled(nanode.Euler())),
]
RECOMPUTING = EXACT[1:]
# Reversal finds its inputs again up to rounding; Checkpointed repeats the very operations.
ROUNDING = 1e-12


def make(gradient=None, solver=None, steps=4, net=None, **settings):
    field = moving(nanode.Bucketed(4), net=net, overrides={"*bias": None})
    return nanode.ODEBlock(field, steps, solver, gradient, **settings)


def like(block, gradient):
    """The same field under another gradient method."""
    return nanode.ODEBlock(block.field, block.steps, block.solver, gradient)
