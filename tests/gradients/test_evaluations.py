"""How often the module is really called, and that ``nfe`` says so."""

import warnings

import pytest
import torch

import nanode
from tests.gradients.models import INVERTIBLE, RUNGE_KUTTA, inputs, moving

EVERY = [*(method() for method in RUNGE_KUTTA), *INVERTIBLE]
#: Evaluations a step, from the papers: the tableaux' stages, twice that when coupled.
PER_STEP = {
    "Euler()": 1,
    "Midpoint()": 2,
    "Heun()": 2,
    "RK4()": 4,
    "ThreeEighths()": 4,
    "Leapfrog()": 1,
    "ReversibleHeun()": 1,
}


def expected(solver, steps):
    if isinstance(solver, nanode.Coupled):
        return 2 * PER_STEP[repr(solver.method)] * steps
    opening = isinstance(solver, nanode.Leapfrog | nanode.ReversibleHeun)
    return PER_STEP[repr(solver)] * steps + opening


def counted(solver, gradient, steps, **settings):
    field, calls = moving(nanode.Trigonometric(1)), []
    field.module.register_forward_hook(lambda *_: calls.append(1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # coarse Euler
        block = nanode.ODEBlock(field, steps, solver, gradient, **settings)
    y = block(*inputs())
    forward = len(calls)
    assert block.nfe.forward == forward
    assert block.nfe.backward == 0
    y.sum().backward()
    assert block.nfe.forward == forward
    assert block.nfe.backward == len(calls) - forward
    return forward, len(calls) - forward


@pytest.mark.parametrize("steps", [1, 7])
@pytest.mark.parametrize("solver", EVERY, ids=repr)
def test_backprop_evaluates_once(solver, steps):
    assert counted(solver, nanode.Backprop(), steps) == (expected(solver, steps), 0)


@pytest.mark.parametrize("steps", [1, 7])
@pytest.mark.parametrize("solver", INVERTIBLE, ids=repr)
def test_reversal_evaluates_twice(solver, steps):
    n = expected(solver, steps)
    assert counted(solver, nanode.Reversal(), steps) == (n, n)


@pytest.mark.parametrize("segments", [None, 1, 3, 7, 20])
@pytest.mark.parametrize("solver", EVERY, ids=repr)
def test_checkpointed_evaluates_twice(solver, segments):
    n = expected(solver, 7)
    assert counted(solver, nanode.Checkpointed(segments), 7) == (n, n)


@pytest.mark.parametrize("solver", [method() for method in RUNGE_KUTTA], ids=repr)
def test_backsolve_evaluates_twice(solver):
    n = expected(solver, 7)
    assert counted(solver, nanode.Backsolve(), 7) == (n, n)


def test_wanted_times_cost_nothing():
    at = (0.0, 0.25, 1.0)
    assert counted(nanode.RK4(), nanode.Checkpointed(), 8, at=at) == (32, 32)
    assert counted(nanode.Leapfrog(), nanode.Reversal(), 8, at=at) == (9, 9)


def test_each_solve_is_counted_anew():
    block = nanode.ODEBlock(moving(nanode.Bucketed(4)), 4, gradient=nanode.Checkpointed())
    first = block(*inputs())
    one = block.nfe
    second = block(*inputs())
    assert block.nfe is not one
    first.sum().backward()
    assert (one.backward, block.nfe.backward) == (4, 0)
    second.sum().backward()
    assert (one.backward, block.nfe.backward) == (4, 4)


def test_without_grad_nothing_is_evaluated_beforehand():
    block = nanode.ODEBlock(moving(nanode.Bucketed(4)), 4, gradient=nanode.Checkpointed())
    calls = []
    block.field.module.register_forward_hook(lambda *_: calls.append(1))
    with torch.no_grad():
        block(*inputs())
    assert len(calls) == 4
