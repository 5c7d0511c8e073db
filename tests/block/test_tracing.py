"""Blocks under torch.export and torch.compile."""

import copy

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounter

import nanode
from nanode.gradients.compiled import WORTH_COMPILING
from tests.block.common import make
from tests.gradients.models import DOUBLE, Net, distance, gradients, inputs, moving


@pytest.fixture(autouse=True)
def compiled_anew():
    """torch counts recompilations over all blocks of a process."""
    torch._dynamo.reset()


@pytest.mark.parametrize("weights", ["basis", "network"])
def test_export_leaves_nothing_behind(weights):
    kind = (
        {"basis": nanode.Chebyshev(2)} if weights == "basis" else {"weights": nanode.Hypernetwork}
    )
    # Not the dtype that the block was made in: what it keeps per dtype is made while exporting.
    block = nanode.ODEBlock(nanode.TimeVarying(Net().float(), **kind), 4).double()
    x = torch.randn(2, 3, dtype=DOUBLE)
    exported = torch.export.export(block, (x,)).module()
    assert type(block(x)) is torch.Tensor
    assert (exported(x) - block(x)).abs().max() < 1e-14


@pytest.mark.parametrize("gradient", [nanode.Checkpointed(), nanode.Reversal()], ids=repr)
def test_export_leaves_nothing_behind_in_parts_of_a_solve(gradient):
    """Recomputing methods ask for the weights of some stages at a time."""
    block = make(gradient, nanode.Coupled())
    x = inputs()[0].detach()
    exported = torch.export.export(block, (x,)).module()
    assert type(block(x)) is torch.Tensor
    assert (exported(x) - block(x)).abs().max() < 1e-14


METHODS = [
    (nanode.Checkpointed(), nanode.Euler()),
    (nanode.Reversal(), nanode.Coupled()),
    (nanode.Backsolve(), nanode.RK4()),
]


@pytest.mark.parametrize("strict", [False, True], ids=["plain", "strict"])
@pytest.mark.parametrize(("gradient", "solver"), METHODS, ids=repr)
def test_exported_with_gradients(gradient, solver, strict):
    """Also of what comes before and behind, in a loss that has another way past the block."""

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.before, self.behind = (torch.nn.Linear(3, 3).double() for _ in range(2))
            self.flow = make(gradient, solver)

        def forward(self, x):
            z = self.before(x)
            return self.behind(self.flow(z)), z.square()

    torch.manual_seed(0)
    model, x = Model(), torch.randn(2, 3, dtype=DOUBLE)
    plain = copy.deepcopy(model)
    plain.flow.gradient = nanode.Backprop()
    exported = torch.export.export(model, (x,), strict=strict).module()
    found, expected = {}, {}
    for one, into in ((exported, found), (plain, expected)):
        (a, b), own = one(x), dict(one.named_parameters())
        into |= zip(own, torch.autograd.grad(a.square().sum() + b.sum(), own.values()), strict=True)
    assert found.keys() == expected.keys()
    assert distance(found, expected) < 1e-13


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("compiled", [False, True], ids=["plain", "compiled"])
@pytest.mark.parametrize(("gradient", "solver"), METHODS, ids=repr)
def test_traced_by_jit(gradient, solver, compiled):
    field = moving(nanode.Legendre(2))
    block = nanode.ODEBlock(field, 3, solver, gradient=gradient, compile=compiled)
    x = torch.randn(WORTH_COMPILING // 3 + 1, 3, dtype=DOUBLE)
    traced = torch.jit.trace(block, x, check_trace=False)
    block.gradient = gradient  # nothing of this is about what compiling does
    assert (traced(x + 1) - block(x + 1)).abs().max() < 1e-14


@pytest.mark.parametrize(
    ("name", "value"),
    [("scale", 2.0), ("solver", nanode.RK4()), ("interval", (0.0, 0.5)), ("steps", 8)],
)
def test_compiled_code_notices_changed_settings(name, value):
    block = nanode.ODEBlock(moving(nanode.Legendre(2)), 4)
    compiled, x = torch.compile(block, backend="eager"), inputs()[0]
    before = compiled(x)
    setattr(block, name, value)
    after = compiled(x)
    assert (after - before).abs().max() > 1e-4
    assert torch.equal(after, block(x))
    assert torch.equal(compiled(x), after)


def test_compiled_with_gradients():
    block = make(solver=nanode.Heun())
    compiled = torch.compile(block, fullgraph=True)
    x = inputs()[0]
    y, expected = gradients(block, x)
    z = compiled(x)
    # Fused kernels may round otherwise.
    assert (y - z).abs().max() < 1e-13
    weight = torch.linspace(-1, 1, z.numel(), dtype=DOUBLE).view_as(z)
    found = torch.autograd.grad((z * weight).sum(), [x, *block.parameters()])
    assert distance(dict(zip(expected, found, strict=True)), expected) < 1e-12


@pytest.mark.parametrize("dtype", [DOUBLE, torch.complex128])
def test_compiled_with_a_plain_function(dtype):
    block = nanode.ODEBlock(lambda t, x: t * x, 3)
    x = torch.ones(2, dtype=dtype)
    assert torch.equal(torch.compile(block, fullgraph=True, backend="eager")(x), block(x))


@pytest.mark.parametrize(
    "make_field",
    [
        lambda: nanode.Autonomous(torch.nn.Linear(3, 3)),
        lambda: nanode.TimeVarying(torch.nn.Linear(3, 3), nanode.Chebyshev(2)),
        lambda: nanode.TimeVarying(torch.nn.Linear(3, 3), weights=nanode.Hypernetwork),
        lambda: nanode.Autonomous(
            torch.nn.Sequential(nanode.BatchNorm(3), torch.nn.Linear(3, 3, bias=False))
        ),
    ],
    ids=["autonomous", "basis", "network", "norm"],
)
def test_a_block_is_compiled_once(make_field):
    # Whatever a first call leaves behind must not be what its own guards look at; a call without
    # the compiler in between neither, nor a dtype other than the one the block was made in.
    block, counter = nanode.ODEBlock(make_field(), 3).double(), CompileCounter()
    compiled = torch.compile(block, fullgraph=True, backend=counter)
    x = torch.randn(4, 3, dtype=DOUBLE)
    for call in (compiled, compiled, block, compiled):
        call(x)
    assert counter.frame_count == 1


def test_compiled_without_gradients_under_a_recomputing_method():
    block = copy.deepcopy(make(nanode.Reversal(), nanode.Leapfrog()))  # as if just loaded
    compiled = torch.compile(block, fullgraph=True)
    x = inputs()[0].detach()
    with torch.no_grad():
        assert (compiled(x) - block(x)).abs().max() < 1e-13


def test_compiled_with_random_features():
    """Their frequencies are buffers, whose values a trace must not ask for."""
    field = nanode.TimeVarying(Net(), nanode.RandomFourier(3, seed=1), start=nanode.Noisy(0.5))
    block = nanode.ODEBlock(field.double(), 4)
    x = torch.randn(2, 3, dtype=DOUBLE)
    compiled = torch.compile(block, fullgraph=True, backend="aot_eager")
    assert (compiled(x) - block(x)).abs().max() < 1e-14
    other = nanode.RandomFourier(3, seed=2)
    field.trajectory.basis.load_state_dict(other.state_dict())
    assert (compiled(x) - block(x)).abs().max() < 1e-14


@pytest.mark.parametrize(
    ("gradient", "solver"),
    [(nanode.Checkpointed(), nanode.Euler()), (nanode.Reversal(), nanode.Leapfrog())],
    ids=repr,
)
def test_compiled_models_recompute_as_they_were_told(gradient, solver):
    """A plain loop in their place would hold every activation."""
    field = nanode.TimeVarying(nn.Sequential(nn.Linear(3, 3), nn.Tanh()), nanode.Legendre(2))
    model = nn.Sequential(nn.Linear(3, 3), nanode.ODEBlock(field, 4, solver, gradient))
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph.code)
        return graph.forward

    x = torch.randn(2, 3)
    assert torch.equal(torch.compile(model, backend=backend)(x), model(x))
    assert "tanh" not in "".join(graphs)
