"""What a step costs, against numbers counted by hand."""

import gc
import weakref
from dataclasses import replace
from unittest.mock import Mock

import pytest
import torch
from torch import nn

import nanode
from nanode.block import flows
from nanode.training.costs import describe, measure_costs
from nanode.training.setup import prepare


def costs(config, **options):
    return measure_costs(prepare(replace(config, options=options)))


def test_parameters_counted_by_hand(config):
    found = costs(config, steps=2)
    # A tiny bottleneck 16→4→4→16: weights 64 + 144 + 64, norms 2 (16 + 4 + 4), five functions.
    inside = 5 * (272 + 48)
    # Stem 9·16, head norm 32, head 16·10 + 10.
    assert found.parameters == inside + 144 + 32 + 170
    assert found.parameter_bytes == 4 * found.parameters
    assert found.flow_parameter_bytes == 4 * inside
    assert (found.batch_size, found.precision) == (128, "32-true")


def test_activations_of_an_exact_reversal_do_not_grow(config):
    short, long = (
        costs(config, steps=n, solver="coupled-euler", gradient="reversal").flow_activation_bytes
        for n in (4, 16)
    )
    assert long == short
    plain = [costs(config, steps=n).flow_activation_bytes for n in (4, 16)]
    # Four times the steps; what is kept once per solve is a small share.
    assert plain[1] / plain[0] == pytest.approx(4, rel=0.1)
    assert short < plain[0]


def test_saved_bytes_counted_by_hand(config, monkeypatch):
    def create(name, *, preset, channels, classes):
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.Sigmoid(), nn.Linear(32, classes))

    monkeypatch.setattr("nanode.training.setup.create", create)
    found = costs(config)
    # The sigmoid's output, log-probabilities, labels and the loss's total weight.
    assert found.saved_bytes == 128 * 32 * 4 + 128 * 10 * 4 + 128 * 8 + 4
    assert found.flow_activation_bytes == found.flow_peak_bytes == 0


def test_a_flow_that_is_called_twice_holds_twice(config, monkeypatch):
    class Repeated(nn.Module):
        def __init__(self, times):
            super().__init__()
            field = nanode.TimeVarying(nn.Linear(64, 64), nanode.Legendre(degree=1))
            self.flow, self.times = nanode.ODEBlock(field, steps=3), times
            self.head = nn.Linear(64, 10)

        def forward(self, images):
            x = images.flatten(1)
            for _ in range(self.times):
                x = self.flow(x)
            return self.head(x)

    found = []
    for times in (1, 2):
        monkeypatch.setattr("nanode.training.setup.create", lambda *_, n=times, **__: Repeated(n))
        found.append(costs(config))
    for times, step in enumerate(found, start=1):
        # The states that steps begin with, but for x, which is the caller's.
        assert step.flow_activation_bytes == times * 2 * 128 * 64 * 4
        assert step.flow_table_bytes == times * 3 * 64 * 64 * 4


@pytest.mark.parametrize(
    "full",
    [
        torch.OutOfMemoryError("CUDA out of memory."),
        RuntimeError("CUDA error: out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    ],
)
def test_what_does_not_fit_the_device_is_not_measured(config, monkeypatch, full):
    """A compiled run may fit where plain PyTorch, by which costs are measured, doesn't."""
    monkeypatch.setattr("nanode.training.costs.measure_memory", Mock(side_effect=full))
    found = costs(config, steps=2)
    assert found.flow_activation_bytes is found.flow_peak_bytes is found.saved_bytes is None
    assert found.flow_parameter_bytes == 4 * 5 * (272 + 48)
    monkeypatch.undo()
    monkeypatch.setattr("nanode.training.costs._seconds", Mock(side_effect=full))
    found = costs(replace(config, profile=True), steps=2)
    assert found.flow_time_share is found.flow_seconds is None
    assert found.flow_activation_bytes is not None
    monkeypatch.setattr("nanode.training.costs._seconds", Mock(side_effect=RuntimeError("a bug")))
    with pytest.raises(RuntimeError, match="a bug"):
        costs(replace(config, profile=True), steps=2)


def test_measuring_frees_what_it_made(config, monkeypatch):
    """A sigmoid saves its own output: held by its node and holding it, it would stay for good."""
    freed = []

    class Watched(nn.Sigmoid):
        def forward(self, x):
            y = super().forward(x)
            weakref.finalize(y.untyped_storage(), freed.append, y.requires_grad)
            return y

    def create(name, *, preset, channels, classes):
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), Watched(), nn.Linear(32, classes))

    monkeypatch.setattr("nanode.training.setup.create", create)
    costs(config)
    gc.collect()
    assert freed.count(True) == 1


def test_compiled_flows_are_measured_by_their_plain_method(config):
    assert costs(config, steps=2, compile=True) == costs(config, steps=2)


def test_measuring_changes_nothing(config):
    setup = prepare(replace(config, profile=True))
    before = {name: w.clone() for name, w in setup.model.state_dict().items()}
    state = torch.get_rng_state()
    measure_costs(setup)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(w, before[name]) for name, w in setup.model.state_dict().items())
    assert all(p.grad is None for p in setup.model.parameters())


def test_a_flow_in_words(config):
    setup = prepare(replace(config, options={"steps": 4, "solver": "heun"}))
    ((name, block),) = flows(setup.model).items()
    flow = describe(name, block)
    assert (flow.name, flow.steps, flow.scale) == ("stages.0.0", "2", 1.0)
    assert flow.field.startswith("TimeVarying(Trigonometric(order=2")
    assert "Heun" in flow.solver
    assert "Backprop" in flow.gradient


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("auto", "Autonomous()"),
        ("hyper", "TimeVarying(Hypernetwork)"),
        (
            "chebyshev-3-orthogonal",
            "TimeVarying(Chebyshev(size=3, interval=(0.0, 1.0)), Householder(reflections=None))",
        ),
    ],
)
def test_a_flow_says_how_its_weights_move(config, model, words):
    found = flows(prepare(replace(config, model=model)).model)
    assert [describe(name, block).field for name, block in found.items()] == [words]
