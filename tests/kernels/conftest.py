"""Without a GPU the kernels run through Triton's interpreter, chosen before they are made."""

import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.fixture
def poisoned(monkeypatch):
    """Fresh memory is NaN, so that an element left unwritten shows."""
    empty, empty_like, new_empty = torch.empty, torch.empty_like, torch.Tensor.new_empty
    monkeypatch.setattr(torch, "empty", lambda *a, **k: empty(*a, **k).fill_(float("nan")))
    monkeypatch.setattr(
        torch, "empty_like", lambda *a, **k: empty_like(*a, **k).fill_(float("nan"))
    )
    monkeypatch.setattr(
        torch.Tensor, "new_empty", lambda *a, **k: new_empty(*a, **k).fill_(float("nan"))
    )
