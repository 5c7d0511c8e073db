"""torchdiffeq's adaptive methods, told where the weights jump."""

import math

import numpy as np
import pytest
import torch
import torchdiffeq
from torch import nn

import nanode
from tests.solvers.problems import (
    BUCKETS,
    DOUBLE,
    KNOWN,
    START,
    Decay,
    Growth,
    flowed,
    jumping,
    tight,
)

METHODS = ["dopri5", "dopri8", "bosh3"]


def area(a, b):
    """∫w from a to b, by pieces."""
    low, high = min(a, b), max(a, b)
    pieces = [w * max(0.0, min(high, (n + 1) / 4) - max(low, n / 4)) for n, w in enumerate(BUCKETS)]
    return sum(pieces) * (1 if a < b else -1)


# Tolerances: torchdiffeq bounds the error of a step by 1e-8 relative to x; ten to a hundred steps,
# whose errors grow by at most e³ here, stay below 1e-6.


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("interval", [(0.2, 1.7), (1.7, 0.2)], ids=["forward", "backward"])
@pytest.mark.parametrize("problem", [Growth(), Decay()], ids=["linear", "nonlinear"])
def test_against_exact_solutions(method, interval, problem):
    x = nanode.odeint(
        problem_in_tensors(problem), problem.start, interval=interval, solver=tight(method)
    )
    assert (x - problem.exact(*interval)).abs().max() < 1e-6


def problem_in_tensors(problem):
    return lambda t, x: problem(float(t.detach()), x)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", KNOWN)
@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reversed"])
def test_torchdiffeqs_problems(method, name, reverse):
    f = KNOWN[name]
    t = torch.linspace(1, 8, 10, dtype=DOUBLE)
    t = t.flip(0) if reverse else t
    exact = f.exact(t)
    got = nanode.odeint(f, exact[0], at=t, solver=tight(method))
    assert got.shape == exact.shape
    assert (got - exact).abs().max() < 1e-6 * exact.abs().max()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "interval", [(0.0, 1.0), (1.0, 0.0), (0.25, 0.75), (0.75, 0.25), (0.1, 0.6)], ids=str
)
def test_jumps_cost_no_accuracy(method, interval):
    got = nanode.odeint(jumping(), START, interval=interval, solver=tight(method))
    assert (got - flowed(START, area(*interval))).abs().max() < 1e-6


@pytest.mark.parametrize("method", METHODS)
def test_jumps_handed_on_are_cheaper_and_more_accurate(method):
    field, exact = jumping(), flowed(START, area(0, 1))
    block = nanode.ODEBlock(field, solver=tight(method, 1e-6))
    told = (block(START) - exact).abs().max()
    calls = []

    def plain(t, x):
        calls.append(float(t))
        return field(t, x)

    ends = torch.tensor([0.0, 1.0], dtype=DOUBLE)
    with torch.no_grad():
        end = torchdiffeq.odeint(plain, START, ends, method=method, rtol=1e-6, atol=1e-6)[-1]
    assert 4 * told < (end - exact).abs().max()
    assert 2 * block.nfe.forward < len(calls)


@pytest.mark.parametrize("adjoint", [False, True])
@pytest.mark.parametrize("interval", [(0.0, 0.8), (0.8, 0.0)], ids=str)
def test_stops_of_ones_own_are_joined_to_the_fields(monkeypatch, adjoint, interval):
    handed = {}
    name = "odeint_adjoint" if adjoint else "odeint"
    original = getattr(torchdiffeq, name)

    def spy(*inputs, **settings):
        handed.update(settings)
        return original(*inputs, **settings)

    monkeypatch.setattr(torchdiffeq, name, spy)
    own = {"jump_t": torch.tensor([0.9, 0.6, 0.25]), "step_t": [0.5, 0.3, 0.8]}
    solver = nanode.Adaptive(options=own | {"first_step": 0.01})
    gradient = nanode.Backsolve() if adjoint else nanode.Backprop()
    nanode.odeint(jumping(), START, interval=interval, solver=solver, gradient=gradient)
    # 0.6 and 0.9 in single precision; 0.9 and the field's 1.0 are outside, 0.5 jumps already.
    jumps = torch.tensor([0.25, 0.5, torch.tensor(0.6), 0.75], dtype=DOUBLE)
    steps = torch.tensor([0.0, 0.3, 0.8], dtype=DOUBLE)
    assert torch.equal(handed["options"]["jump_t"], jumps)
    assert torch.equal(handed["options"]["step_t"], steps)
    assert handed["options"]["first_step"] == 0.01
    if adjoint:  # which counts time negative where it runs backwards
        sign = 1 if interval[0] < interval[1] else -1
        assert torch.equal(handed["adjoint_options"]["jump_t"], sign * jumps)


@pytest.mark.parametrize("gradient", [nanode.Backprop(), nanode.Backsolve()], ids=repr)
@pytest.mark.parametrize("interval", [(0.0, 1.0), (1.0, 0.0)], ids=str)
def test_a_jump_of_ones_own_is_stepped_to(gradient, interval):
    def f(t, x):
        return torch.where(t < 0.3, 3.0, -2.0) * x

    def solved(**options):
        block = nanode.ODEBlock(
            f, None, nanode.Adaptive(rtol=1e-6, options=options), gradient, interval=interval
        )
        x = START.clone().requires_grad_()
        block(x).sum().backward()
        return x.grad, block.nfe.forward

    factor, evaluations = solved(jump_t=[0.3])
    exact = math.exp(0.9 - 1.4)  # 0.3 · 3 − 0.7 · 2
    exact = exact if interval[0] < interval[1] else 1 / exact
    assert (factor - exact).abs().max() < 1e-4  # some ten steps, and the adjoint, at 1e-6
    assert evaluations < 0.75 * solved()[1]


def test_nothing_is_evaluated_outside_the_interval():
    # A basis promises nothing beyond its interval; torchdiffeq alone steps past the end.
    times = []

    def f(t, x):
        times.append(float(t))
        return -x

    nanode.odeint(f, START, at=[0.0, 0.3, 1.0], solver=tight(tolerance=1e-3))
    assert min(times) >= 0
    assert max(times) <= 1


@pytest.mark.parametrize("gradient", [nanode.Backprop(), nanode.Backsolve()], ids=repr)
@pytest.mark.parametrize("interval", [(0.0, 1.0), (1.0, 0.0), (0.25, 0.75)], ids=str)
def test_gradients_against_exact_ones(gradient, interval):
    field, factor = jumping(), torch.tensor(0.8, dtype=DOUBLE, requires_grad=True)
    x = START.clone().requires_grad_()
    block = nanode.ODEBlock(field, solver=tight(), gradient=gradient, interval=interval)
    block(x, factor).sum().backward()

    # The same by autograd through the closed form.
    a, b = interval
    w = torch.tensor(BUCKETS, dtype=DOUBLE, requires_grad=True)
    low, high = min(a, b), max(a, b)
    widths = [max(0.0, min(high, (n + 1) / 4) - max(low, n / 4)) for n in range(4)]
    total = (w * torch.tensor(widths, dtype=DOUBLE)).sum() * (1 if a < b else -1)
    y, c = START.clone().requires_grad_(), torch.tensor(0.8, dtype=DOUBLE, requires_grad=True)
    exact = flowed(y, c * total)
    in_y, in_c, in_w = torch.autograd.grad(exact.sum(), [y, c, w])

    # The adjoint's tolerance is the solve's own; gradients here are of size one.
    assert (x.grad - in_y).abs().max() < 1e-5
    assert (factor.grad - in_c).abs() < 1e-5
    assert (field.trajectory.coefficients.w.grad[:, 0] - in_w).abs().max() < 1e-5


@pytest.mark.parametrize("interval", [(0.0, 1.0), (1.0, 0.0), (0.25, 0.75), (0.75, 0.25)], ids=str)
def test_the_adjoint_knows_the_jumps_too(interval):
    block = nanode.ODEBlock(
        jumping(), solver=tight(), gradient=nanode.Backsolve(), interval=interval
    )
    block(START).sum().backward()
    # A jump that isn't known costs some hundred evaluations; the adjoint's tolerance is the same.
    assert 0 < block.nfe.backward < 2 * block.nfe.forward


def test_counts_are_those_of_the_module():
    field, calls = jumping(), []
    field.module.register_forward_hook(lambda *_: calls.append(1))
    block = nanode.ODEBlock(field, solver=tight())
    y = block(START.clone().requires_grad_())
    assert block.nfe.forward == len(calls)
    y.sum().backward()
    assert block.nfe.backward == 0


def test_times_get_gradients():
    at = torch.tensor([0.0, 0.4, 0.9], dtype=DOUBLE, requires_grad=True)
    x = torch.ones(1, dtype=DOUBLE)
    states = nanode.odeint(lambda t, x: -2 * x, x, at=at, solver=tight())
    states[2].sum().backward()
    # x(t2) = exp(-2 (t2 - t0)).
    slope = 2 * math.exp(-1.8)
    expected = torch.tensor([slope, 0.0, -slope], dtype=DOUBLE)
    assert (at.grad - expected).abs().max() < 1e-6


def test_wanted_times_need_not_hold_the_start():
    states = nanode.odeint(jumping(), START, interval=(0.0, 1.0), at=[0.25, 0.6], solver=tight())
    for state, t in zip(states, (0.25, 0.6), strict=True):
        assert (state - flowed(START, area(0, t))).abs().max() < 1e-6


def test_wanted_times_in_half_precision_are_taken_as_they_are():
    at = torch.tensor([0.0, 0.25, 1.0], dtype=torch.bfloat16)
    states = nanode.odeint(lambda t, x: torch.ones_like(x), START, at=at, solver=tight())
    assert (states - START - at.double()[:, None]).abs().max() < 1e-6


def test_times_are_in_double_precision_beside_complex_states():
    x = torch.ones(1, dtype=torch.complex128)
    solver = nanode.Adaptive(rtol=1e-11, atol=1e-12)
    end = nanode.odeint(lambda t, x: 1j * x, x, interval=(0.0, 0.7), solver=solver)
    # 0.7 in single precision is off by 1e-8.
    assert abs(complex(end) - complex(math.cos(0.7), math.sin(0.7))) < 1e-9


def test_half_precision_states_are_raised_under_autocast():
    with torch.autocast("cpu", torch.bfloat16):
        end = nanode.odeint(lambda t, x: -x, torch.ones(2).bfloat16(), solver=nanode.Adaptive())
    assert end.dtype == torch.float32


def test_states_of_several_tensors():
    # A rotation: position and velocity exchange after a quarter turn.
    start = {"x": torch.ones(3, dtype=DOUBLE), "v": torch.zeros(2, 3, dtype=DOUBLE)[0]}
    field = lambda t, s: {"x": s["v"], "v": -s["x"]}  # noqa: E731
    end = nanode.odeint(field, start, interval=(0.0, math.pi / 2), solver=tight())
    assert end["x"].abs().max() < 1e-6
    assert (end["v"] + 1).abs().max() < 1e-6


def test_scale_and_block_settings():
    block = nanode.ODEBlock(lambda t, x: x, solver=tight(), scale=2.0, at=[0.0, 0.5])
    assert (block(torch.ones(1, dtype=DOUBLE)) - torch.tensor([[1.0], [math.e]])).abs().max() < 1e-6
    block.scale = -2.0
    assert (block(torch.ones(1, dtype=DOUBLE))[1] - 1 / math.e).abs() < 1e-6


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: nanode.Adaptive("rk4"), "method must be one of dopri5"),
        *(
            (lambda name=name, value=value: nanode.Adaptive(**{name: value}), f"{name} must be one")
            for name in ("rtol", "atol")
            for value in (-1e-3, math.nan, math.inf, "1e-3", True, None, (1e-3, 1e-4))
        ),
        (lambda: nanode.Adaptive(rtol=0.0, atol=0), "both 0.*raise one of them"),
        (lambda: nanode.Adaptive(rtol=torch.tensor(1e-3)), "rtol must be one finite number"),
        (lambda: nanode.Adaptive(options=None), "options must be a dict"),
        (lambda: nanode.Adaptive(interpolate=1), "interpolate must be true or false"),
        (lambda: nanode.Adaptive(options={"jump_t": 0.5}), r"\['jump_t'\]: .*must be a sequence"),
        (lambda: nanode.Adaptive(options={"jump_t": ["a"]}), r"\['jump_t'\]: .*convert.*'a'"),
        (lambda: nanode.Adaptive(options={"step_t": [math.nan]}), r"\['step_t'\] must hold finite"),
        (
            lambda: nanode.ODEBlock(jumping(), steps=4, solver=tight()),
            "chooses its own steps; leave steps= out",
        ),
        (
            lambda: nanode.odeint(jumping(), START, solver=tight(), gradient=nanode.Checkpointed()),
            "Checkpointed needs a fixed grid",
        ),
        (
            lambda: nanode.odeint(
                jumping(), START, interval=(0.0, 0.5), at=[0.2, 0.8], solver=tight()
            ),
            r"must lie in the solve from 0.0 to 0.5 .* got \[0.2, 0.8\]",
        ),
        (
            lambda: nanode.odeint(
                jumping(), START, interval=(0.0, 1.0), at=[0.8, 0.2], solver=tight()
            ),
            "follow its direction",
        ),
        (
            lambda: nanode.odeint(jumping(), START, at=[0.0, 0.5, 0.5], solver=tight()),
            "follow its direction",
        ),
        (
            lambda: nanode.odeint(lambda t, x: x, torch.ones(2, dtype=torch.long), solver=tight()),
            "the state must be floating point, got torch.int64",
        ),
        (
            lambda: nanode.odeint(lambda t, x: x[:1], START, solver=tight()),
            r"expected \(2,\), got \(1,\)",
        ),
        (
            lambda: nanode.odeint(lambda t, x: x.neg_(), START.clone(), solver=tight()),
            "changed x in place",
        ),
        (
            lambda: nanode.odeint(
                nanode.Autonomous(nanode.BatchNorm(2)), torch.ones(3, 2), solver=tight()
            ),
            "BatchNorm keeps statistics per evaluation of a fixed grid",
        ),
        (
            lambda: nanode.odeint(
                lambda t, x: x, START, solver=tight(), scale=torch.tensor(2.0, requires_grad=True)
            ),
            "scale must be a finite number",
        ),
    ],
)
def test_refuses(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("gradient", [nanode.Backprop(), nanode.Backsolve()], ids=repr)
@pytest.mark.parametrize(
    ("f", "options", "message"),
    [
        (lambda t, x: x**2, {}, r"dopri5 can't go on near t = 1: its steps .* nanode\.RK4\(\)"),
        (lambda t, x: x * math.nan, {}, "dopri5 can't go on: its steps have become too small"),
        (lambda t, x: -x, {"max_num_steps": 1}, r"max_num_steps allows at rtol=1e-05 .* more"),
    ],
    ids=["growth", "nan", "steps"],
)
def test_a_solve_that_fails_says_why(f, options, message, gradient):
    # x' = x² from 1 is 1/(1 − t).
    with pytest.raises(RuntimeError, match=message):
        nanode.odeint(
            f,
            torch.ones(1),
            interval=(0.0, 2.0),
            solver=nanode.Adaptive(options=options),
            gradient=gradient,
        )


def test_an_assertion_of_the_field_stays_as_it_is():
    def f(t, x):
        assert t < 0.5, "mine"
        return -x

    with pytest.raises(AssertionError, match="mine"):
        nanode.odeint(f, START, solver=tight())


def test_a_hidden_tensor_is_refused_by_the_adjoint_only():
    hidden = torch.tensor(2.0, dtype=DOUBLE, requires_grad=True)
    x = torch.ones(1, dtype=DOUBLE)
    with pytest.raises(ValueError, match="neither x, conditioning, nor a parameter"):
        nanode.odeint(lambda t, x: hidden * x, x, solver=tight(), gradient=nanode.Backsolve())
    nanode.odeint(lambda t, x: hidden * x, x, solver=tight()).sum().backward()
    assert abs(float(hidden.grad) - math.exp(2)) < 1e-5


def test_a_block_refuses_at_once_what_an_adaptive_solve_would_refuse():
    norm = nanode.Autonomous(nn.Sequential(nanode.BatchNorm(3), nn.Linear(3, 3)))
    plain = nanode.Autonomous(nn.Linear(3, 3))
    for field, settings, message in [
        (plain, {"gradient": nanode.Reversal()}, "Reversal needs a fixed grid"),
        (plain, {"compile": True}, "compile=True needs a fixed grid"),
        (plain, {"scale": float("nan")}, "scale must be a finite number"),
        (norm, {}, "BatchNorm keeps statistics per evaluation"),
    ]:
        with pytest.raises(ValueError, match=message):
            nanode.ODEBlock(field, solver=nanode.Adaptive(), **settings)


@pytest.mark.parametrize("gradient", [nanode.Backprop(), nanode.Backsolve()], ids=repr)
def test_the_first_bad_time_is_named(gradient):
    x = torch.ones(1, dtype=DOUBLE)

    def f(t, x):
        return x / (t < 0.5)

    with pytest.raises(ValueError, match=r"not finite at t = 0\.[56789]"):
        nanode.odeint(f, x, solver=tight(), gradient=gradient, check_finite=True)
    block = nanode.ODEBlock(f, solver=tight(), gradient=gradient, check_finite=True)
    with pytest.raises(ValueError, match="not finite at t"):
        block(x)


@pytest.mark.parametrize("gradient", [nanode.Backprop(), nanode.Backsolve()], ids=repr)
def test_an_empty_batch(gradient):
    x, settings = torch.ones(0, 3), {"solver": nanode.Adaptive(), "gradient": gradient}
    assert nanode.odeint(lambda t, x: -x, x, **settings).shape == (0, 3)
    assert nanode.odeint(lambda t, x: -x, x, at=[0.0, 0.3, 1.0], **settings).shape == (3, 0, 3)
    block = nanode.ODEBlock(nanode.Autonomous(nn.Linear(3, 3)), **settings)
    block(x).sum().backward()
    assert all(torch.equal(p.grad, torch.zeros_like(p)) for p in block.parameters())


@pytest.mark.parametrize("gradient", [nanode.Backprop(), nanode.Backsolve()], ids=repr)
@pytest.mark.parametrize("interval", [(0.0, 0.7), (0.7, 0.0), (0.9, 0.1), (0.3, 1.0)], ids=str)
def test_an_end_on_an_edge_in_single_precision(gradient, interval):
    """0.7 is rounded to below 7/10 there, and 0.1 to above 1/10; the edges are, too."""
    field = nanode.TimeVarying(nn.Linear(1, 1, bias=False), nanode.Bucketed(10))
    weights = [1.0 + 2.0 * (n % 3) for n in range(10)]
    with torch.no_grad():
        field.trajectory.coefficients.weight.copy_(torch.tensor(weights)[:, None])
    solver = nanode.Adaptive(rtol=1e-5, atol=1e-5)
    block = nanode.ODEBlock(field, solver=solver, gradient=gradient, interval=interval)
    y = block(torch.ones(1))
    first, last = (round(10 * t) for t in sorted(interval))
    total = sum(weights[first:last]) / 10 * (1 if interval[0] < interval[1] else -1)
    assert y.item() == pytest.approx(math.exp(total), rel=1e-4)
    y.sum().backward()
    grads = field.trajectory.coefficients.weight.grad.flatten().tolist()
    assert [n for n, grad in enumerate(grads) if grad] == list(range(first, last))


@pytest.mark.parametrize("gradient", [nanode.Backprop(), nanode.Backsolve()], ids=repr)
@pytest.mark.parametrize(
    "dtypes", [(torch.float32, DOUBLE), (torch.float32, torch.complex64)], ids=str
)
def test_parts_keep_their_dtypes(gradient, dtypes):
    """torchdiffeq has them in one tensor, of one dtype."""
    seen = set()

    def f(t, x):
        seen.add((x[0].dtype, x[1].dtype))
        return -x[0], (1j if x[1].is_complex() else 1.0) * x[1]

    start = tuple(torch.ones(2, dtype=dtype, requires_grad=True) for dtype in dtypes)
    end = nanode.odeint(f, start, solver=tight(tolerance=1e-6), gradient=gradient)
    assert tuple(part.dtype for part in end) == dtypes
    assert seen == {dtypes}
    factors = [math.exp(-1), np.exp(1j) if dtypes[1].is_complex else math.e]
    for part, factor in zip(end, factors, strict=True):
        assert part.detach().numpy() == pytest.approx(np.full(2, factor), rel=1e-5)
    grads = torch.autograd.grad(sum(part.abs().square().sum() for part in end), start)
    assert tuple(grad.dtype for grad in grads) == dtypes
    for grad, factor in zip(grads, factors, strict=True):
        assert grad.numpy() == pytest.approx(np.full(2, 2 * abs(factor) ** 2), rel=1e-5)


def test_an_imaginary_slope_of_a_real_part_is_refused():
    start = (torch.ones(1), torch.ones(1, dtype=torch.complex64))
    with pytest.raises(ValueError, match="imaginary part would be lost"):
        nanode.odeint(lambda t, x: (1j * x[0], x[1]), start, solver=tight(tolerance=1e-3))
