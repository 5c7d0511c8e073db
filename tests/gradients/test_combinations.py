"""``compile=True`` against the plain path: every solver with every gradient and norm it takes.

One field for each norm, compiled once for all solvers: what may differ between them is how a solve
uses it. On a GPU the whole solve is captured too.
"""

import copy
import functools
import warnings

import pytest
import torch
from torch import nn

import nanode
from nanode.gradients import compiled
from tests.gradients.models import passed_twice

CUDA = pytest.param("cuda", marks=pytest.mark.gpu)
#: Of every solve below, so that all norms hold as many rows of statistics: one graph fits them.
EVALUATIONS = 12
RUNGE_KUTTA = [
    (nanode.Euler(), 12),
    (nanode.Midpoint(), 6),
    (nanode.Heun(), 6),
    (nanode.RK4(), 3),
    (nanode.ThreeEighths(), 3),
]
INVERTIBLE = [
    (nanode.Leapfrog(), 11),
    (nanode.ReversibleHeun(), 11),
    (nanode.Coupled(nanode.Euler()), 6),
    (nanode.Coupled(nanode.Midpoint()), 3),
    (nanode.Coupled(nanode.Heun()), 3),
]
BOTH = [nanode.Backprop(), nanode.Checkpointed(), nanode.Checkpointed(chunk=5)]
NORMS = {
    "batch": lambda: nanode.BatchNorm(4),
    "group": lambda: nn.GroupNorm(2, 4),
    "layer": lambda: nn.LayerNorm([4, 5, 5]),
    "none": nn.Identity,
}
COMBINATIONS = [
    (solver, steps, gradient, norm)
    for solvers, own in (
        (RUNGE_KUTTA, [nanode.Backsolve()]),
        (INVERTIBLE, [nanode.Reversal(), nanode.Reversal(chunk=5)]),
    )
    for solver, steps in solvers
    for gradient in (*BOTH, *own)
    for norm in NORMS
    if not (norm == "batch" and isinstance(gradient, nanode.Backsolve))  # which it refuses
]
SHAPE = (3, 4, 5, 5)


@functools.cache
def compiled_field(norm, device):
    """A field, and room for its compiled evaluations."""
    torch.manual_seed(0)
    module = nn.Sequential(NORMS[norm](), nn.Tanh(), nn.Conv2d(4, 4, 3, padding=1))
    basis = nanode.Trigonometric(order=2)
    field = nanode.TimeVarying(module.double(), basis, start=nanode.Noisy(0.3))
    return field.to(device), {}


@pytest.fixture
def calls(monkeypatch):
    """The compiled evaluations so far; small states have them too.

    On a CPU without code generation, which takes seconds a time.
    """
    monkeypatch.setattr(compiled, "WORTH_COMPILING", 0)
    if not torch.cuda.is_available():
        eager = functools.partial(torch.compile, backend="aot_eager")
        monkeypatch.setattr(torch, "compile", eager)
    evaluate, found = compiled.Evaluator.__call__, []

    def counted(self, *args):
        found.append(self)
        return evaluate(self, *args)

    monkeypatch.setattr(compiled.Evaluator, "__call__", counted)
    return found


@pytest.mark.parametrize("device", ["cpu", CUDA])
@pytest.mark.parametrize(("solver", "steps", "gradient", "norm"), COMBINATIONS, ids=repr)
def test_compiled_equals_plain(solver, steps, gradient, norm, device, calls):
    """In float64, where only the order of sums differs; undoing steps adds rounding to it."""
    field, functions = compiled_field(norm, device)
    field.train()  # before it is given a grid, which norms in eval mode don't take
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Backsolve with")  # of its error, which both share
        plain = nanode.ODEBlock(copy.deepcopy(field), steps, solver, gradient)
        fast = nanode.ODEBlock(field, steps, solver, gradient, compile=True)
    fast.gradient._functions = functions
    x = torch.randn(SHAPE, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    x = x.to(device)
    for a, b in zip(passed_twice(fast, x), passed_twice(plain, x), strict=True):
        assert (a - b).norm() <= 1e-11 * b.norm()
    assert fast.nfe == plain.nfe
    # A training pass and one in eval mode; more where a capture was tried first.
    assert len(calls) >= 2 * EVALUATIONS
    if device == "cuda":
        assert [solve.refusal for solve in fast.gradient._solves.values()] == [None]
