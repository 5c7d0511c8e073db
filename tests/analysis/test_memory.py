"""Bytes are counted against what the shapes say, not against earlier measurements."""

import math

import pytest
import torch
from torch import nn

import nanode
from nanode.analysis import memory

WIDTH, BATCH = 32, 64
X = torch.randn(BATCH, WIDTH, generator=torch.Generator().manual_seed(0))
STATE = X.nbytes
ROW = 4 * (WIDTH * WIDTH + WIDTH)  # one stage's weight and bias


def measured(steps, solver, gradient):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())
    field = nanode.TimeVarying(module, nanode.Trigonometric(order=2))
    return nanode.measure_memory(nanode.ODEBlock(field, steps, solver, gradient), X)


def test_reversal_holds_one_more_state_at_any_depth():
    for steps in (10, 160):
        memory = measured(steps, nanode.Coupled(), nanode.Reversal())
        assert memory.held == STATE  # z; y is the output
        assert memory.table_held == 0


def test_checkpointed_holds_one_state_a_segment():
    for steps in (10, 40, 160):
        memory = measured(steps, nanode.Euler(), nanode.Checkpointed())
        segments = math.ceil(math.sqrt(steps))
        # The first segment starts from x, which is the caller's.
        assert memory.held == (segments - 1) * STATE
    assert measured(40, nanode.Euler(), nanode.Checkpointed(segments=4)).held == 3 * STATE


def test_backprop_holds_states_and_table():
    memory = measured(10, nanode.Euler(), nanode.Backprop())
    # Of each step: the state that the layer saw (x itself at the first) and tanh's output.
    assert memory.held >= (9 + 10) * STATE
    assert memory.table_held >= 10 * 4 * WIDTH * WIDTH


def test_a_compiled_block_is_measured_as_itself():
    field = nanode.TimeVarying(nn.Linear(WIDTH, WIDTH), nanode.Trigonometric(order=2))
    block = nanode.ODEBlock(field, 10, nanode.Euler(), nanode.Backprop())
    compiled = torch.compile(block, backend="eager")
    assert nanode.measure_memory(compiled, X) == nanode.measure_memory(block, X)


def test_the_table_is_bounded_by_chunks():
    whole = measured(60, nanode.Euler(), nanode.Checkpointed())
    assert whole.table == 60 * ROW
    chunked = measured(60, nanode.Euler(), nanode.Checkpointed(chunk=6))
    assert chunked.table <= 3 * 6 * ROW  # a segment of 8 steps touches up to three chunks
    assert chunked.peak < whole.peak - 30 * ROW


def test_peak_of_a_reversal_is_flat_once_the_table_is():
    peaks = [
        measured(steps, nanode.Leapfrog(), nanode.Reversal(chunk=5)).peak for steps in (20, 160)
    ]
    assert peaks[0] == peaks[1]


def test_peak_counts_temporaries():
    """Peak is above held, and above the gradients that a pass must produce."""
    memory = measured(10, nanode.Euler(), nanode.Backprop())
    assert memory.peak > memory.held + memory.table_held


def test_a_gpu_is_asked_for_its_own_bytes(monkeypatch):
    """That of x, which needn't be the current one; the others have other numbers."""
    gpu = torch.device("cuda:1")

    def asked(number):
        return lambda device=None: number if device == gpu else pytest.fail(f"asked {device}")

    answers = {"memory_allocated": 5, "max_memory_allocated": 7, "reset_peak_memory_stats": None}
    for name, answer in {**answers, "synchronize": None}.items():
        monkeypatch.setattr(torch.cuda, name, asked(answer))
    block = nanode.ODEBlock(lambda t, x: -x, 2)
    x = X.clone().requires_grad_()
    found = memory._on_gpu(gpu, block, x, (), memory._TableSpy(block))
    assert found == (-STATE, 0, 2)


def test_it_can_be_printed():
    assert "peak" in str(measured(4, nanode.Euler(), nanode.Backprop()))


def test_the_random_state_is_left_alone():
    field = nanode.Autonomous(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.5)))
    before = torch.get_rng_state()
    nanode.measure_memory(nanode.ODEBlock(field, 3), X)
    assert torch.equal(torch.get_rng_state(), before)
