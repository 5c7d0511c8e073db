"""Solves on a GPU: what a CPU computes, waiting for nothing. Run by ``make test-gpu``."""

import copy
import gc

import pytest
import torch
from torch import nn

import nanode
from nanode.gradients import repeats
from tests.gpu import COMBINATIONS, close, conv_field, gradients

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(("solver", "gradient"), COMBINATIONS, ids=repr)
def test_gpu_agrees_with_cpu(solver, gradient):
    """Same numbers in float64, where only the order of sums differs."""
    block = nanode.ODEBlock(conv_field().double(), 7, solver, gradient)
    x = torch.randn(4, 8, 9, 9, dtype=torch.float64)
    on_cpu = gradients(copy.deepcopy(block), x)
    on_gpu = gradients(block.cuda(), x.cuda())
    close([g.cpu() for g in on_gpu], on_cpu, 1e-11)


@pytest.mark.parametrize(
    ("solver", "gradient"), [*COMBINATIONS, (nanode.RK4(), nanode.Backsolve())], ids=repr
)
def test_a_fixed_grid_solve_never_waits_for_the_gpu(solver, gradient, monkeypatch):
    monkeypatch.setattr(repeats, "TRIALS", 0)  # passes that are looked at are waited for
    # Backsolve takes no statistics per evaluation.
    norm = nn.Identity if gradient == nanode.Backsolve() else nanode.BatchNorm
    block = nanode.ODEBlock(conv_field(norm=norm).cuda(), 6, solver, gradient)
    x = torch.randn(4, 8, 9, 9, device="cuda", requires_grad=True)
    cotangent = torch.randn_like(x)
    for _ in range(2):  # tables of basis values travel at the first use
        torch.autograd.grad(block(x), [x, *block.parameters()], cotangent)
    torch.cuda.set_sync_debug_mode("error")
    try:
        torch.autograd.grad(block(x), [x, *block.parameters()], cotangent)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("basis", [nanode.Trigonometric(order=3), nanode.Bucketed(4)], ids=repr)
def test_penalties_never_wait_for_the_gpu(basis):
    field = nanode.TimeVarying(nn.Conv2d(3, 3, 3), basis, start=nanode.Independent())
    penalties = (nanode.smoothness_penalty, nanode.function_penalty, nanode.coefficient_penalty)
    on_cpu = [float(penalty(field)) for penalty in penalties]
    field.cuda()
    torch.cuda.set_sync_debug_mode("error")
    try:
        on_gpu = [penalty(field) for penalty in penalties]
        torch.stack(on_gpu).sum().backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert [float(found) for found in on_gpu] == pytest.approx(on_cpu, rel=1e-5)


@pytest.mark.parametrize(("solver", "gradient"), COMBINATIONS[1:], ids=repr)
def test_dropout_masks_are_drawn_again(solver, gradient):
    """Recomputed evaluations see the masks of the first ones, so gradients are backprop's."""
    field = conv_field(dropout=0.5).double().cuda()
    x = torch.randn(4, 8, 9, 9, dtype=torch.float64, device="cuda")
    expected = gradients(nanode.ODEBlock(field, 6, solver, nanode.Backprop()), x)
    found = gradients(nanode.ODEBlock(field, 6, solver, gradient), x)
    # Undoing the steps adds rounding, which the coupling amplifies by at most e².
    close(found, expected, 1e-10)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_keeps_the_state_in_single_precision(dtype):
    field = conv_field().cuda()
    x = torch.randn(4, 8, 9, 9, device="cuda")
    found = {}
    for gradient in (nanode.Backprop(), nanode.Checkpointed(), nanode.Reversal()):
        block = nanode.ODEBlock(field, 6, nanode.Coupled(), gradient)
        with torch.autocast("cuda", dtype=dtype):
            y = block(x)
        assert y.dtype == torch.float32
        cotangent = torch.randn(y.shape, generator=torch.Generator().manual_seed(2)).cuda()
        found[gradient] = torch.autograd.grad(y, list(block.parameters()), cotangent)
    reference = found.pop(nanode.Backprop())
    for grads in found.values():
        # Half-precision kernels with atomics may round differently between two runs.
        close(grads, reference, 2e-2)


def test_memory_is_constant_in_the_number_of_steps():
    x = torch.randn(16, 8, 32, 32, device="cuda")
    held = {}
    for steps in (10, 160):
        block = nanode.ODEBlock(conv_field().cuda(), steps, nanode.Coupled(), nanode.Reversal())
        held[steps] = nanode.measure_memory(block, x)
    # The norm's statistics belong to the model; what is held is the second copy of the state.
    assert held[160].held == held[10].held <= 2 * x.nbytes
    assert held[10].table_held == held[160].table_held == 0


def test_garbage_of_others_is_no_part_of_a_pass():
    """It may be collected at any time, in the midst of a pass, too."""

    calls = []

    def field(t: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        calls.append(t)
        if len(calls) > 3:  # in the second pass, which is the one that is measured
            gc.collect()
        return x.tanh()

    block, found = nanode.ODEBlock(field, 3), []
    x = torch.randn(16, 8, 32, 32, device="cuda")
    gc.disable()
    try:
        for size in (1, 2**20):
            calls.clear()
            cycle: list[object] = [torch.empty(size, device="cuda")]
            cycle.append(cycle)
            del cycle
            found.append(nanode.measure_memory(block, x))
    finally:
        gc.enable()
    assert found[0] == found[1]
    assert found[0].held > 0
