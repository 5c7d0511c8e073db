import warnings
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from nanode.gradients import capture, compiled


@pytest.fixture
def compile_all(monkeypatch):
    """Small states on a CPU are compiled, too."""
    monkeypatch.setattr(compiled, "WORTH_COMPILING", 0)


@pytest.fixture
def make_believe_graphs(monkeypatch, compile_all):
    """Solves on a CPU are captured: their graphs solve anew, into the memory of the first solve."""

    def captured(graphs, solve, pull):
        outputs, leaves = solve()
        capture._refuse_others(outputs, leaves)
        graphs.grads_out = [torch.zeros_like(part) for part in outputs]
        graphs.outputs = [part.detach().clone() for part in outputs]
        graphs.grads_in = [torch.empty_like(leaf) for leaf in leaves]
        solved = []

        def forward():
            with torch.enable_grad():
                solved[:] = solve()
            for old, new in zip(graphs.outputs, solved[0], strict=True):
                old.copy_(new.detach())

        def backward():
            for old, new in zip(graphs.grads_in, pull(*solved), strict=True):
                old.copy_(new)

        graphs.forward = SimpleNamespace(replay=forward)
        graphs.backward = SimpleNamespace(replay=backward)

    monkeypatch.setattr(capture.Graphs, "_capture", captured)
    monkeypatch.setattr(capture, "_thorough", nullcontext)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: None)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(compiled, "CAPTURED", ("cpu",))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "User provided device_type of 'cuda'")
        yield
