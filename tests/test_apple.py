"""On a Mac's GPU, as ``tests.apple`` emulates it: what a CPU computes, without double precision."""

import copy
import inspect
import io
import os
import subprocess
import sys
from contextlib import suppress

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_leaves

import nanode
from nanode import analysis, bases
from nanode.analysis import Steps
from nanode.demo import __main__ as demo
from nanode.experiments import __main__ as experiments
from nanode.trajectories.trajectory import scalar_time
from tests.apple import OnApple, pretend
from tests.gpu import close, gradients

#: Kernels are the CPU's own, so only what is rounded elsewhere may differ, as RandomFourier's
#: frequencies, which are in double precision on a CPU.
ROUNDING = 2e-6
BASES = [
    nanode.Constant(),
    nanode.Bucketed(4),
    nanode.Monomial(degree=3),
    nanode.Chebyshev(degree=3),
    nanode.Legendre(degree=3),
    nanode.Trigonometric(order=3),
    nanode.RandomFourier(features=3),
    nanode.PiecewiseLinear(4),
    nanode.BSpline(4, degree=2),
]
METHODS = [
    (nanode.Euler(), nanode.Backprop()),
    (nanode.RK4(), nanode.Checkpointed()),
    (nanode.Leapfrog(), nanode.Reversal()),
    (nanode.RK4(), nanode.Backsolve()),
]


@pytest.fixture(autouse=True)
def a_mac(monkeypatch):
    pretend(monkeypatch)


def network(size=4):
    return nn.Sequential(nn.Linear(size, 5), nn.Tanh(), nn.Linear(5, size))


def moving(module=None, basis=None, **options):
    basis = basis or nanode.Chebyshev(degree=3)
    options = options or {"start": nanode.Noisy(0.5)}
    return nanode.TimeVarying(module or network(), basis, **options)


def there(part):
    """A copy on the Mac's GPU."""
    part = copy.deepcopy(part).to("mps")
    assert all(isinstance(parameter, OnApple) for parameter in part.parameters())
    return part


def on_cpu(tensors):
    return [tensor.detach().cpu() for tensor in tensors]


def agree(block, x, tolerance=ROUNDING):
    """Same values and same gradients."""
    apple = there(block)
    close(on_cpu([apple(x.to("mps"))]), [block(x)], tolerance)
    close(on_cpu(gradients(apple, x.to("mps"))), gradients(block, x), tolerance)


# ---- solves


def test_no_basis_is_forgotten():
    found = [kind for kind in vars(bases).values() if inspect.isclass(kind)]
    known = {kind for kind in found if issubclass(kind, nanode.Basis)}
    assert {type(basis) for basis in BASES} == {k for k in known if not inspect.isabstract(k)}


@pytest.mark.filterwarnings("ignore:.*weights (that )?jump")
@pytest.mark.parametrize(("solver", "gradient"), METHODS, ids=repr)
@pytest.mark.parametrize("basis", BASES, ids=lambda basis: type(basis).__name__)
def test_gradients_are_those_of_a_cpu(basis, solver, gradient):
    agree(nanode.ODEBlock(moving(basis=basis), 4, solver, gradient), torch.randn(3, 4))


@pytest.mark.parametrize("gradient", [nanode.Backprop(), nanode.Backsolve()], ids=repr)
def test_adaptive_steps(gradient):
    pytest.importorskip("torchdiffeq")
    solver = nanode.Adaptive(rtol=1e-5, atol=1e-5)
    # Times are rounded there, so steps differ, and solves by less than their own error.
    agree(nanode.ODEBlock(moving(), None, solver, gradient), torch.randn(3, 4), 1e-4)


@pytest.mark.parametrize(("solver", "gradient"), METHODS[1:3], ids=repr)
def test_dropout_masks_are_drawn_again(solver, gradient):
    """By the device's own generator, which ends where Backprop leaves it."""
    field = there(moving(nn.Sequential(network(), nn.Dropout(0.5))))
    x, before = torch.randn(3, 4, device="mps"), torch.mps.get_rng_state("mps")
    expected = gradients(nanode.ODEBlock(field, 4, solver, nanode.Backprop()), x)
    after = torch.mps.get_rng_state("mps")
    assert not torch.equal(before, after)
    torch.mps.set_rng_state(before, "mps")
    found = gradients(nanode.ODEBlock(field, 4, solver, gradient), x)
    close(on_cpu(found), on_cpu(expected), ROUNDING)
    assert torch.equal(torch.mps.get_rng_state("mps"), after)


def test_statistics_of_a_norm():
    """In training, in evaluation, and interpolated on finer and on other grids."""
    field, x = moving(nn.Sequential(nanode.BatchNorm(4), network())), torch.randn(6, 4)
    block = nanode.ODEBlock(field, 4)
    apple = there(block)
    close(on_cpu(gradients(apple, x.to("mps"))), gradients(block, x), ROUNDING)
    for part in (block, apple):
        part.eval()
    close(on_cpu([apple(x.to("mps"))]), [block(x)], ROUNDING)
    found = nanode.odeint(apple.field, x.to("mps"), steps=7)
    close(on_cpu([found]), [nanode.odeint(block.field, x, steps=7)], ROUNDING)
    for part in (block, apple):
        part.regrid(8)
    close(on_cpu([apple(x.to("mps"))]), [block(x)], ROUNDING)
    close(on_cpu(apple.buffers()), list(block.buffers()), ROUNDING)


# ---- weights


def test_random_frequencies_there_and_back():
    basis = nanode.RandomFourier(features=3)
    back = there(basis).to("cpu")
    assert back.frequencies.dtype == torch.float64
    times = torch.linspace(0, 1, 5)
    close([back(times)], [basis(times)], ROUNDING)
    close([back.gram(1)], [basis.gram(1)], ROUNDING)
    close([there(basis).gram(1)], [basis.gram(1)], ROUNDING)


WRAPPED = [
    {"orthogonal": nanode.Householder()},
    {"orthogonal": nanode.Cayley()},
    {"orthogonal": nanode.Skew()},
    {"orthogonal": nanode.Exponential()},
    {"start": nanode.GivensWalk([(0, 1), (1, 2)])},
]


@pytest.mark.parametrize("options", WRAPPED, ids=str)
def test_weights_that_are_there_when_they_are_wrapped(options):
    linear, basis = nn.Linear(4, 4), nanode.Trigonometric(order=2)
    apple = moving(there(linear), basis, **options)
    field = moving(linear, basis, **options)
    assert all(isinstance(parameter, OnApple) for parameter in apple.parameters())
    close(on_cpu(apple.parameters()), list(field.parameters()), ROUNDING)
    x = torch.randn(3, 4)
    found = gradients(nanode.ODEBlock(apple, 4), x.to("mps"))
    close(on_cpu(found), gradients(nanode.ODEBlock(field, 4), x), ROUNDING)
    energy = nanode.smoothness_penalty(field)
    close(on_cpu([nanode.smoothness_penalty(apple)]), [energy], ROUNDING)


def test_penalties():
    block = nanode.ODEBlock(moving(), 4)
    apple = there(block)
    penalties = (nanode.smoothness_penalty, nanode.function_penalty, nanode.coefficient_penalty)
    for penalty in penalties:
        for part in (block, apple):
            part.zero_grad()
            penalty(part).backward()
        close(on_cpu([penalty(apple)]), [penalty(block)], ROUNDING)
        found = on_cpu(parameter.grad for parameter in apple.parameters())
        close(found, [parameter.grad for parameter in block.parameters()], ROUNDING)


def test_projections():
    block = nanode.ODEBlock(moving(), 4)
    apple, basis = there(block), nanode.Legendre(degree=2)
    expected, found = nanode.project(block, basis), nanode.project(apple, basis)
    close(on_cpu(found.parameters()), list(expected.parameters()), ROUNDING)
    errors = nanode.projection_errors(block, expected)
    assert nanode.projection_errors(apple, found) == pytest.approx(errors, rel=1e-5)


def test_times_and_tables_of_the_host_are_there_whatever_the_default_device():
    norm, linear = nanode.BatchNorm(4), nn.Linear(4, 4)
    with torch.device("meta"):
        assert norm.get_extra_state().device.type == "cpu"
        assert scalar_time(0.5).device.type == "cpu"
        start = nanode.Untied(lambda: nn.Linear(4, 4, device="cpu"))
        moving(linear, nanode.Bucketed(2), start=start)


# ---- analyses

ANALYSES = [
    (analysis.state_transition, {"of": Steps()}),
    (analysis.transition_values, {"of": Steps(), "count": 1, "depth": 1}),
    (analysis.sensitivity, {"of": Steps()}),
    (analysis.sensitivity_values, {"of": Steps(), "count": 2, "at": [1.0]}),
    (analysis.growth_rates, {"of": Steps(), "count": 2}),
    (analysis.gradient_norms, {}),
    (analysis.jacobian_spectrum, {}),
    (analysis.jacobian_spectrum, {"count": 2}),
    (analysis.analyse, {"effort": analysis.Effort(points=2, depth=1)}),
]


def same_numbers(found, expected):
    """To single precision; words in between, too."""
    for a, b in zip(tree_leaves(found.numbers()), tree_leaves(expected.numbers()), strict=True):
        assert a == b or a == pytest.approx(b, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize(("look", "options"), ANALYSES)
def test_analyses_of_a_flow(look, options):
    field, x = moving(nn.Sequential(nn.Linear(4, 4), nn.Tanh())), torch.randn(1, 4)
    block = nanode.ODEBlock(field, 2)
    same_numbers(look(there(block), x.to("mps"), **options), look(block, x, **options))


@pytest.mark.parametrize("look", [analysis.weight_norms, analysis.trajectory_spectrum])
def test_analyses_of_weights(look):
    field = moving()
    same_numbers(look(there(field)), look(field))


def test_gradient_check():
    block, x = nanode.ODEBlock(moving(), 4, nanode.Leapfrog()), torch.randn(3, 4)
    report = nanode.check_gradients(there(block), x.to("mps"))
    assert report.refused == nanode.check_gradients(block, x).refused
    # Undoing steps in single precision costs a few digits.
    assert report.worst("Checkpointed") < ROUNDING
    assert report.worst("Reversal") < 1e-4
    assert report.drift < 1e-5


class Drawn(nn.Module):
    """Noise on the way to a flow, in evaluation, too."""

    def forward(self, x):
        return x + torch.rand_like(x)


def analyse_behind_noise(block, x):
    return analysis.analyse(nn.Sequential(Drawn(), block), x[:1], effort=analysis.Effort(points=1))


LOOKS = (nanode.check_gradients, nanode.reversal_drift, nanode.measure_memory, analyse_behind_noise)


@pytest.mark.parametrize("look", LOOKS)
def test_looking_draws_nothing_there(look):
    field = moving(nn.Sequential(network(), nn.Dropout(0.5)))
    block, x = there(nanode.ODEBlock(field, 2, nanode.Leapfrog())), torch.randn(3, 4, device="mps")
    before = torch.mps.get_rng_state("mps")
    look(block, x)
    assert torch.equal(torch.mps.get_rng_state("mps"), before)
    block(x)
    assert not torch.equal(torch.mps.get_rng_state("mps"), before)


# ---- consoles, as those of Windows, whose encoding lacks an arrow and a minus sign


@pytest.mark.parametrize("program", ["nanode.demo", "nanode.experiments"])
def test_help_is_printed_on_any_console(program):
    environment = os.environ | {"PYTHONIOENCODING": "cp1252"}
    command = [sys.executable, "-m", program, "--help"]
    done = subprocess.run(command, env=environment, capture_output=True, encoding="cp1252")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"python -m {program}" in done.stdout


@pytest.mark.parametrize("program", [demo, experiments])
def test_what_a_console_lacks_is_a_question_mark(program, monkeypatch):
    console = io.TextIOWrapper(io.BytesIO(), encoding="cp1252", newline="\n")
    monkeypatch.setattr(sys, "stdout", console)
    with suppress(SystemExit):
        program.main(["--help"])
    print("x ↦ −x", flush=True)
    assert console.buffer.getvalue().endswith(b"\nx ? ?x\n")
