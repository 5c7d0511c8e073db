import gc
import signal

import pytest
import torch
from torch import nn

# Tensors here are too small to share: threads would only wait for each other, tenfold where other
# tests run beside.
torch.set_num_threads(1)
# In what a script runs in the background Ctrl-C is ignored; here it is as in front of a person.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True, scope="module")
def what_was_there_before_is_no_garbage():
    """Whoever collects garbage looks through their own alone, not through all that is imported."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def a_fixed_seed():
    torch.manual_seed(0)


@pytest.fixture
def perceptron(monkeypatch):
    """In place of every model: one that is quick, draws random numbers and has a norm."""

    def create(name, *, preset, channels, classes):
        return nn.Sequential(
            nn.Flatten(),
            nn.Linear(64 * channels, 32),
            nn.BatchNorm1d(32),
            nn.ReLU(),
            nn.Dropout(0.2),
            nn.Linear(32, classes),
        )

    monkeypatch.setattr("nanode.training.setup.create", create)


def pytest_runtest_setup(item):
    if item.get_closest_marker("gpu") and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")


def pytest_sessionfinish():
    gc.unfreeze()  # now all of it goes
