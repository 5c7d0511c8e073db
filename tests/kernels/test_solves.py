"""Whole fused solves by the kernels themselves, through Triton's interpreter, in fp32.

On a GPU ``tests/gradients/test_fused.py`` has them, in bf16.
"""

import copy
import importlib

import pytest
import torch

import nanode
from nanode.gradients.compiled import Compiled
from nanode.gradients.fused import solve as fused_solve
from nanode.kernels.language import serves
from tests.gradients.models import bottleneck_field, passed

#: Solver, gradient, width and hidden width: none fills its tiles. Middles wider than the state are
#: made again a segment at a time, narrower ones are kept and steps rewound by them.
METHODS = {
    "backprop": (nanode.Euler(), nanode.Backprop(), 24, 5),
    "rewinding": (nanode.Euler(), nanode.Checkpointed(), 40, 12),
    "segments": (nanode.Euler(), nanode.Checkpointed(segments=2), 17, 36),
    "reversal": (nanode.Coupled(), nanode.Reversal(), 24, 5),
}
STEM = "nanode.kernels."
MODULES = ("activate", "expand", "expand_backward", "moments", "project", "project_backward")

pytestmark = [
    pytest.mark.usefixtures("poisoned", "kernels_only"),
    pytest.mark.skipif(
        not serves(torch.zeros(1, 16)), reason="Triton is not installed or not interpreted here"
    ),
]


@pytest.fixture
def kernels_only(monkeypatch):
    """References refuse."""
    for name in MODULES:
        module = importlib.import_module(STEM + name)
        for reference in [found for found in vars(module) if found.endswith("_reference")]:
            monkeypatch.setattr(module, reference, refuse)


def refuse(*args, **options):
    raise AssertionError("a reference or a plain method ran")


def problem(shape, width, hidden, kind="moving"):
    batch, *space = shape
    field = bottleneck_field(kind, width, hidden)
    x = torch.randn(batch, width, *space, generator=torch.Generator().manual_seed(2))
    return field, x


def agree(found, expected):
    """Every element, by its own size and its tensor's: all is fp32, whose roundings add up."""
    for n, (a, b) in enumerate(zip(found, expected, strict=True)):
        error = (a.double() - b).abs() / (b.abs() + b.square().mean().sqrt())
        assert error.max() <= 2e-5, (n, error.max())


@pytest.mark.parametrize(
    ("method", "shape", "steps"),
    [
        *((method, shape, 3) for method in METHODS for shape in ((1, 7, 7), (3, 7, 7))),
        ("reversal", (1, 33, 31), 2),  # more rows than any tile; the interpreter takes its time
    ],
)
def test_training(method, shape, steps, monkeypatch):
    """Output, gradients and statistics; a second run, which owns its memory, has the same bits.

    A captured solve owns it: x, states and cotangents are then written over.
    """
    solver, gradient, *widths = METHODS[method]
    field, x = problem(shape, *widths)
    exact = nanode.ODEBlock(copy.deepcopy(field).double(), steps, solver, gradient)
    expected = passed(exact, x.double())
    monkeypatch.setattr(type(gradient), "solve", refuse)
    results, segments = [], set()
    for owned in (False, True):

        class Run(fused_solve.Run):
            def __init__(self, *args, owned=owned):
                super().__init__(*args)
                self.owned = owned

            def bounds(self, *args):
                found = super().bounds(*args)
                segments.add(tuple(found))
                return found

        monkeypatch.setattr(fused_solve, "Run", Run)
        fused = Compiled(gradient, capture=False, fused=True)
        block = nanode.ODEBlock(copy.deepcopy(field), steps, solver, fused)
        results.append(passed(block, x.to(memory_format=torch.channels_last)))
    agree(results[0], expected)
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
    if solver == nanode.Euler():
        assert segments == {(0, 2) if method == "segments" else ()}


@pytest.mark.parametrize("kind", ["moving", "autonomous"])
@pytest.mark.parametrize("solver", [nanode.Euler(), nanode.Coupled()], ids=repr)
def test_without_gradients(solver, kind, monkeypatch):
    """Training mode, where statistics move, and eval mode, where they are used."""
    field, x = problem((3, 7, 7), 24, 5, kind)
    exact = nanode.ODEBlock(copy.deepcopy(field).double(), 3, solver)
    fused = nanode.ODEBlock(field, 3, solver, Compiled(nanode.Backprop(), fused=True))
    with torch.no_grad():
        y = x.double()
        expected = [exact(y), exact.eval()(2 * y), *exact.buffers()]
        monkeypatch.setattr(nanode.Backprop, "solve", refuse)
        agree([fused(x), fused.eval()(2 * x), *fused.buffers()], expected)
