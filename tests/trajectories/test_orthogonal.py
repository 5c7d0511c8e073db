"""Orthogonal: weights that stay orthogonal while they move, alone and in a field."""

import copy
import pickle
import threading
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

import nanode
from nanode.stages import Stage, Stages
from tests.trajectories.samples import EVERY, make, step_stages, stirred

FORMS = [nanode.Householder(), nanode.Exponential(), nanode.Cayley()]
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}


def values():
    """A square matrix, a tall and a wide one, kernels that are wide and tall as matrices."""
    return {
        "a.weight": torch.randn(4, 4),
        "a.tall": torch.randn(6, 3),
        "a.wide": torch.randn(2, 5),
        "b.kernel": torch.randn(3, 2, 3, 3),
        "b.line": torch.randn(8, 2, 3),
    }


def path(form, basis=None, given=None, start=None):
    basis = basis or nanode.Trigonometric(2)
    return nanode.Orthogonal(
        given or values(), partial(nanode.Expansion, basis=basis, start=start), form
    )


def gap(w):
    """‖WᵀW − I‖ or ‖WWᵀ − I‖, Frobenius, of a weight as the matrix out × rest."""
    w = w.detach().double().flatten(1).numpy()
    gram = w.T @ w if len(w) >= w.shape[1] else w @ w.T
    return np.linalg.norm(gram - np.eye(len(gram)))


def polar(w):
    u, _, vh = np.linalg.svd(w.flatten(1).numpy(), full_matrices=False)
    return torch.from_numpy(u @ vh).view(w.shape)


@pytest.fixture(params=FORMS, ids=lambda form: type(form).__name__)
def form(request):
    return request.param


# ---- the start


@pytest.mark.parametrize("interval", [(0.0, 1.0), (-2.0, 3.0)], ids=str)
@pytest.mark.parametrize("name", EVERY)
def test_starts_at_the_nearest_at_every_time(form, name, interval):
    given = values()
    start = path(form, make(name, interval), given)
    expected = {key: polar(w) for key, w in given.items()}
    for t in np.linspace(*interval, 5):
        torch.testing.assert_close(start(float(t)), expected, rtol=0, atol=1e-13)


def test_orthogonal_values_are_kept(form):
    for sign in (1, -1):
        q = torch.linalg.qr(torch.randn(6, 6)).Q
        q[:, 0] *= sign * torch.linalg.det(q).sign()
        started = path(form, given={"w": q})
        torch.testing.assert_close(started(0.4)["w"], q, rtol=0, atol=1e-13)


@pytest.mark.parametrize(
    "start", [nanode.Noisy(0.5), nanode.Independent()], ids=lambda start: type(start).__name__
)
def test_other_starts_move(form, start):
    moving = path(form, start=start)
    for key, w in moving(0.3).items():
        assert gap(w) <= 1e-12
        assert (w - moving(0.9)[key]).abs().max() > 1e-2


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_starts_at_the_nearest(form, dtype):
    given = torch.randn(128, 128).to(dtype)
    w = path(form, given={"w": given})(0.4)["w"]
    # Free numbers below 1 are rounded by half an ulp, and so is the result.
    torch.testing.assert_close(
        w.double(), polar(given.double()), rtol=0, atol=4 * torch.finfo(dtype).eps
    )


def test_untied_buckets(form):
    field = nanode.TimeVarying(nn.Linear(5, 5), nanode.Bucketed(3), start="untied", orthogonal=form)
    rows = [field.trajectory(t)["weight"] for t in (0.1, 0.5, 0.9)]
    for a in range(3):
        assert gap(rows[a]) <= 1e-12
        assert (rows[a] - rows[a - 1]).abs().max() > 1e-2


# ---- at every time


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("name", EVERY)
def test_orthogonal_at_every_time(form, name, dtype):
    moving = stirred(path(form, make(name)).to(dtype), size=2.0)
    table = moving.table(step_stages(9))
    for t in np.linspace(0, 1, 7):
        for w in moving(float(t)).values():
            assert w.dtype == dtype
            assert gap(w) <= TOLERANCE[dtype]
    for rows in table.values():
        assert max(gap(w) for w in rows) <= TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_orthogonal_at_every_time_when_large(form, dtype):
    given = {
        "square": torch.randn(512, 512, dtype=dtype),
        "wide": torch.randn(96, 512, dtype=dtype),
    }
    moving = stirred(path(form, nanode.Chebyshev(4), given), size=0.2)
    for rows in moving.table(step_stages(2)).values():
        assert max(gap(w) for w in rows) <= TOLERANCE[dtype]


@pytest.mark.parametrize("name", EVERY)
def test_table_stacks_single_times(form, name):
    moving = stirred(path(form, make(name)))
    stages = step_stages(6)
    table = moving.table(stages)
    single = [moving(stage.time) for stage in stages]
    # By chunks, as long solves ask for them.
    chunks = [moving.table(stages[i : i + 2]) for i in range(0, 6, 2)]
    assert list(table) == list(moving.shapes)
    for key, rows in table.items():
        assert rows.shape == (6, *moving.shapes[key])
        torch.testing.assert_close(torch.stack([w[key] for w in single]), rows, rtol=0, atol=1e-12)
        torch.testing.assert_close(torch.cat([w[key] for w in chunks]), rows, rtol=0, atol=1e-12)


def test_a_jump_takes_the_side_that_is_asked_for(form):
    moving = stirred(path(form, nanode.Bucketed(2)))
    assert moving.jumps == (0.5,)
    assert torch.equal(moving(0.5, "left")["a.weight"], moving(0.2)["a.weight"])
    assert torch.equal(moving(0.5)["a.weight"], moving(0.8)["a.weight"])


def test_an_empty_solve_has_an_empty_table(form):
    assert path(form).table(Stages(()))["b.kernel"].shape == (0, 3, 2, 3, 3)


def test_gradients_in_time_and_coefficients(form):
    moving = stirred(path(form, given={"w": torch.randn(3, 2)}))
    t = torch.tensor(0.4, requires_grad=True)
    alpha = moving.inner.coefficients.w

    def single(t, alpha):
        named = {"inner.coefficients.w": alpha}
        return torch.func.functional_call(moving, named, (t,))["w"]

    torch.autograd.gradcheck(single, (t, alpha))
    stages = step_stages(3)
    upstream = torch.randn(3, 3, 2)
    (grad,) = torch.autograd.grad(moving.table(stages)["w"], alpha, upstream)
    rows = [
        (single(torch.tensor(s.time), alpha) * g).sum()
        for s, g in zip(stages, upstream, strict=True)
    ]
    (expected,) = torch.autograd.grad(sum(rows), alpha)
    torch.testing.assert_close(grad, expected, rtol=1e-12, atol=1e-13)


def test_forms_by_name():
    forms = {"a": nanode.Householder(2), "b": nanode.Skew(), "c": nanode.Cayley()}
    moving = stirred(path(forms, given={name: torch.randn(4, 4) for name in forms}))
    w = moving(0.7)
    assert gap(w["a"]) <= 1e-12
    assert gap(w["c"]) <= 1e-12
    assert torch.equal(w["b"], -w["b"].mT)
    assert moving.inner.shapes["a"] == (4, 2)
    assert sorted(moving.state_dict()) == [
        "fixed.a",
        "fixed.c",
        "inner.coefficients.a",
        "inner.coefficients.b",
        "inner.coefficients.c",
    ]


def test_a_hypernetwork_moves_the_free_numbers(form):
    hyper = nanode.Orthogonal(values(), partial(nanode.Hypernetwork, embedding=2), form)
    given = hyper(0.2)
    stirred(hyper, size=0.3)
    assert (hyper(0.2)["a.weight"] - given["a.weight"]).abs().max() > 1e-2
    assert max(gap(w) for w in hyper(0.8).values()) <= 1e-12


# ---- as a module


def test_copies_and_state_dicts(form):
    moving = stirred(path(form))
    expected = moving(0.3)
    fresh = path(form, given={name: 2 * w + 1 for name, w in values().items()})
    fresh.load_state_dict(moving.state_dict())
    for other in (copy.deepcopy(moving), pickle.loads(pickle.dumps(moving)), fresh):
        for key, w in other(0.3).items():
            assert torch.equal(w, expected[key])
        stirred(other)
    assert torch.equal(moving(0.3)["a.tall"], expected["a.tall"])


def test_moves_between_dtypes_and_formats(form):
    moving = stirred(path(form))
    exact = moving(0.3)
    assert all(w.dtype == torch.float32 for w in moving.float()(0.3).values())
    # From single precision back: orthogonal to double precision again.
    assert max(gap(w) for w in moving.double()(0.3).values()) <= 1e-12
    moving.to(memory_format=torch.channels_last)
    for key, w in moving(0.3).items():
        torch.testing.assert_close(w, exact[key], rtol=0, atol=1e-5)
    halves = moving.bfloat16()(0.3)
    assert all(w.dtype == torch.bfloat16 for w in halves.values())
    # Free numbers are rounded to 3 digits, and so is the result.
    assert max(gap(w) for w in halves.values()) <= 0.1


def test_autocast_leaves_weights_in_their_own_dtype(form):
    moving = stirred(path(form).float())
    stages = step_stages(3)
    expected, table = moving(0.3), moving.table(stages)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for key in expected:
            assert torch.equal(moving(0.3)[key], expected[key])
            assert torch.equal(moving.table(stages)[key], table[key])


def test_made_on_meta(form):
    with torch.device("meta"):
        empty = path(form)
    assert all(tensor.is_meta for tensor in empty.state_dict().values())
    moving = stirred(path(form))
    empty.load_state_dict(moving.state_dict(), assign=True)
    assert torch.equal(empty(0.3)["b.kernel"], moving(0.3)["b.kernel"])


def test_frozen_values_stay_frozen(form):
    given = {
        "free": nn.Parameter(torch.randn(2, 2)),
        "frozen": nn.Parameter(torch.randn(2, 2), requires_grad=False),
    }
    moving = path(form, given=given)
    assert moving.inner.coefficients.free.requires_grad
    assert not moving.inner.coefficients.frozen.requires_grad


# ---- penalties


def quadratic_variation(moving, edges, count=300):
    """∫‖W'(t)‖² dt by differences over small steps inside each piece: error O(step²)."""
    total = 0.0
    for a, b in pairwise(edges):
        ts = np.linspace(a, b, count + 1)
        ts[0], ts[-1] = a + 1e-12, b - 1e-12
        rows = moving.table(Stages(tuple(map(Stage.alone, ts))))["w"].detach().flatten(1).numpy()
        total += (np.diff(rows, axis=0) ** 2).sum() / ((b - a) / count)
    return total


@pytest.mark.parametrize("name", ["chebyshev", "trigonometric", "piecewise_linear"])
def test_smoothness_against_small_steps(form, name):
    moving = stirred(path(form, make(name, (0.0, 2.0)), {"w": torch.randn(3, 3)}))
    edges = [0.0, *moving.breakpoints, 2.0]
    expected = quadratic_variation(moving, edges)
    assert expected > 0.1
    assert nanode.smoothness_penalty(moving).item() == pytest.approx(expected, rel=1e-3)


def test_smoothness_of_buckets_is_by_differences(form):
    moving = stirred(path(form, nanode.Bucketed(4, interval=(0.0, 2.0)), {"w": torch.randn(3, 2)}))
    rows = np.stack([moving(t)["w"].detach().numpy() for t in (0.1, 0.7, 1.2, 1.9)])
    expected = (np.diff(rows, axis=0) ** 2).sum() / 0.5
    assert nanode.smoothness_penalty(moving).item() == pytest.approx(expected, rel=1e-12)


def test_penalties_count_a_weight_once(form):
    field = stirred(nanode.TimeVarying(nn.Linear(4, 3), nanode.Legendre(2), orthogonal=form))
    squares = sum((p.detach().numpy() ** 2).sum() for p in field.parameters())
    assert nanode.coefficient_penalty(field).item() == pytest.approx(squares, rel=1e-13)
    (bias,) = (alpha for key, alpha in field.named_parameters() if key.endswith("bias"))
    # ‖W‖² = 3 at every time; Legendre functions of degree n have ∫ z² = 1/(2n + 1).
    of_bias = sum((row.detach().numpy() ** 2).sum() / (2 * n + 1) for n, row in enumerate(bias))
    assert nanode.function_penalty(field).item() == pytest.approx(3 + of_bias, rel=1e-12)
    loss = nanode.smoothness_penalty(field)
    loss.backward()
    for parameter in field.parameters():
        assert bool(parameter.grad.isfinite().all())
        assert bool(parameter.grad.any())


def test_gradients_of_smoothness(form):
    moving = stirred(path(form, nanode.Chebyshev(2), {"w": torch.randn(2, 2)}))
    alpha = moving.inner.coefficients.w
    (grad,) = torch.autograd.grad(moving.energy(1), alpha)
    step, direction = 1e-6, torch.randn_like(alpha)
    ends = []
    for sign in (1, -1):
        with torch.no_grad():
            alpha += sign * step * direction
            ends.append(moving.energy(1).item())
            alpha -= sign * step * direction
    slope = (ends[0] - ends[1]) / (2 * step)
    assert (grad * direction).sum().item() == pytest.approx(slope, rel=1e-6)


def test_higher_derivatives_are_refused(form):
    with pytest.raises(ValueError, match="m = 0 and 1, got m = 2"):
        nanode.smoothness_penalty(path(form), m=2)


# ---- in a field


def network():
    return nn.Sequential(
        nn.Conv2d(4, 6, 3, padding=1), nn.Tanh(), nn.GroupNorm(2, 6), nn.Conv2d(6, 4, 1)
    )


def test_matrices_and_kernels_move_orthogonally_and_the_rest_as_ever(form):
    field = stirred(nanode.TimeVarying(network(), nanode.Chebyshev(3), orthogonal=form))
    w = field.weights_at(0.3)
    assert gap(w["0.weight"]) <= 1e-12
    assert gap(w["3.weight"]) <= 1e-12
    ordinary, orthogonal = field.trajectory.parts
    assert isinstance(ordinary, nanode.Expansion)
    assert list(ordinary.shapes) == ["0.bias", "2.weight", "2.bias", "3.bias"]
    assert list(orthogonal.shapes) == ["0.weight", "3.weight"]
    assert "trajectory.parts.1.inner.coefficients.0.weight" in field.state_dict()


def test_forms_are_chosen_by_name():
    basis = nanode.Legendre(2)
    field = nanode.TimeVarying(
        nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)),
        basis,
        overrides={"3.*": None},
        orthogonal={"*": nanode.Householder(), "1": nanode.Skew(), "2.weight": None},
    )
    forms = {
        key: form
        for part in field.trajectory.parts
        if isinstance(part, nanode.Orthogonal)
        for key, form in part.forms.items()
    }
    assert forms == {"0.weight": nanode.Householder(), "1.weight": nanode.Skew()}


def test_a_whole_field_of_orthogonal_weights_has_one_trajectory(form):
    field = nanode.TimeVarying(nn.Linear(3, 3, bias=False), nanode.Legendre(2), orthogonal=form)
    assert isinstance(field.trajectory, nanode.Orthogonal)
    field = nanode.TimeVarying(
        nn.Linear(3, 3, bias=False), weights=nanode.Hypernetwork, orthogonal=form
    )
    assert isinstance(field.trajectory.inner, nanode.Hypernetwork)


def passed(block, x):
    x = x.clone().requires_grad_()
    y = block(x)
    upstream = torch.linspace(-1, 1, y.numel()).view_as(y)
    return [y.detach(), *torch.autograd.grad(y, [x, *block.parameters()], upstream)]


def solved(gradient, solver, form):
    torch.manual_seed(3)
    field = stirred(nanode.TimeVarying(network(), nanode.Chebyshev(3), orthogonal=form))
    return passed(nanode.ODEBlock(field, 4, solver, gradient), torch.randn(2, 4, 5, 5))


@pytest.mark.parametrize(
    ("gradient", "solver"),
    [
        (nanode.Checkpointed(), nanode.Euler()),
        (nanode.Checkpointed(chunk=2), nanode.RK4()),
        (nanode.Reversal(), nanode.Coupled(nanode.Euler())),
        (nanode.Reversal(chunk=3), nanode.Leapfrog()),
    ],
    ids=lambda value: type(value).__name__,
)
def test_gradient_methods_agree(form, gradient, solver):
    expected = solved(nanode.Backprop(), solver, form)
    for got, want in zip(solved(gradient, solver, form), expected, strict=True):
        # Reversal rebuilds states to about 1e-12 in double precision.
        torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9)


def test_tables_can_be_compiled():
    """As part of a whole block: a block that compiles its field gets its tables ready-made."""
    module = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 4), nn.Linear(4, 4))
    forms = dict(zip("023", FORMS, strict=True))
    field = stirred(nanode.TimeVarying(module, nanode.Chebyshev(3), orthogonal=forms))
    block, x = nanode.ODEBlock(field, 2), torch.randn(3, 4)
    compiled = torch.compile(block, fullgraph=True, backend="aot_eager")
    for got, want in zip(passed(compiled, x), passed(block, x), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)


def test_threads_share_a_field(form):
    field = stirred(nanode.TimeVarying(network(), nanode.Chebyshev(3), orthogonal=form))
    block = nanode.ODEBlock(field, 3)
    inputs = torch.randn(4, 2, 4, 5, 5)
    with torch.no_grad():
        expected = [block(x) for x in inputs]
    found = [None] * 4

    def work(i):
        with torch.no_grad():
            for _ in range(3):
                found[i] = block(inputs[i])

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for got, want in zip(found, expected, strict=True):
        assert torch.equal(got, want)


def test_training_stays_orthogonal(form):
    torch.manual_seed(0)
    target = torch.linalg.qr(torch.randn(4, 4)).Q
    field = nanode.TimeVarying(
        nn.Linear(4, 4, bias=False), nanode.Chebyshev(2), orthogonal=form
    ).float()
    if torch.linalg.det(field.weights_at(0.0)["weight"]) * torch.linalg.det(target) < 0:
        target[0] *= -1
    optimizer = torch.optim.SGD(field.parameters(), lr=0.2)
    stages = step_stages(5)
    losses = []
    for _ in range(300):
        optimizer.zero_grad()
        w = field.trajectory.table(stages)["weight"]
        loss = (w - target.float()).square().sum((1, 2)).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        assert max(gap(row) for row in w) <= 1e-5
    assert losses[-1] < 1e-3 * losses[0]


def test_a_skew_field_keeps_its_norm():
    field = stirred(
        nanode.TimeVarying(
            nn.Linear(6, 6, bias=False), nanode.Legendre(2), orthogonal=nanode.Skew()
        )
    )
    x = torch.randn(3, 6)
    y = nanode.ODEBlock(field, 400, nanode.RK4())(x)
    assert (y - x).norm() > 0.5
    # RK4 loses h⁵ω⁶/144 a step: ω about 5, h = 1/400.
    torch.testing.assert_close(y.norm(dim=1), x.norm(dim=1), rtol=1e-7, atol=0)


# ---- bad input


def start_of_zeros(parameters, basis):
    return {name: torch.zeros(basis.size, *w.shape) for name, w in parameters.items()}


def test_refuses_a_start_with_a_zero_vector():
    with pytest.raises(ValueError, match=r"'w' at t = 0\.0: reflection vector 0 is zero"):
        path(nanode.Householder(), given={"w": torch.randn(3, 3)}, start=start_of_zeros)


@pytest.mark.parametrize(
    ("form", "given", "message"),
    [
        (
            nanode.Skew(),
            torch.randn(3, 4),
            r"'w' of shape \(3, 4\) can't be started: .*square.*4×3",
        ),
        (
            nanode.Householder(4),
            torch.randn(3, 5),
            r"'w' of shape \(3, 5\) can't .*: 4 reflections",
        ),
        (nanode.Householder(), torch.zeros(3, 3), r"'w' .*can't be started: its rank is 0 of 3"),
        (nanode.Householder(), torch.randn(3), r"'w' can't be kept orthogonal.*\(3,\)"),
        (nanode.Cayley(), torch.randn(0, 3), r"'w' can't be kept orthogonal.*\(0, 3\)"),
        (nanode.Cayley(), torch.randn(2, 2, dtype=torch.complex128), "complex128"),
        ({"v": nanode.Cayley()}, torch.randn(2, 2), r"one for each of \['w'\], got {'v': Cayley"),
        ("cayley", torch.randn(2, 2), "form must be one such as.*got 'cayley'"),
    ],
)
def test_refuses(form, given, message):
    with pytest.raises(ValueError, match=message):
        path(form, given={"w": given})


def test_refuses_nothing():
    with pytest.raises(ValueError, match="at least one weight, got none"):
        nanode.Orthogonal({}, partial(nanode.Expansion, basis=nanode.Constant()), nanode.Cayley())


@pytest.mark.parametrize(
    ("orthogonal", "message"),
    [
        ("householder", "orthogonal must be a form such as"),
        (True, "orthogonal must be a form such as"),
        ({"0.weight": "householder"}, "the form for '0.weight' must be one such as"),
        (
            {"0.wieght": nanode.Householder()},
            r"'0\.wieght' names no parameter; there are: 0\.weight",
        ),
        ({"0.bias": nanode.Householder()}, r"names no matrix or kernel that moves, only 0\.bias"),
        ({"1": nanode.Householder()}, r"names no matrix or kernel that moves.*nanode\.Constant"),
        (nanode.Skew(), r"'0\.weight' .*can't be started: .*square"),
    ],
)
def test_field_refuses(orthogonal, message):
    module = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 3))
    with pytest.raises(ValueError, match=message):
        nanode.TimeVarying(module, nanode.Legendre(2), overrides={"1": None}, orthogonal=orthogonal)


def test_untied_refuses_fewer_reflections():
    with pytest.raises(ValueError, match=r"shape \(4, 4\), expected \(4, 2\)"):
        nanode.TimeVarying(
            nn.Linear(4, 4, bias=False),
            nanode.Bucketed(2),
            start="untied",
            orthogonal=nanode.Householder(2),
        )
