"""Orthogonal: weights that stay orthogonal while they move."""

import copy
import math
import pickle
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

import nanode
from nanode.stages import Stage, Stages
from tests.trajectories.orthogonal_samples import TOLERANCE, gap, path, polar, values
from tests.trajectories.samples import EVERY, make, quadrature, step_stages, stirred

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


@pytest.mark.parametrize("shape", [(512, 300), (512, 4), (64, 576), (256, 256)], ids=str)
@pytest.mark.parametrize("size", [300, 1000])
def test_orthogonal_however_far_free_numbers_have_moved(form, size, shape):
    """In single precision, by a normal part of full rank, where the most is lost."""
    torch.manual_seed(0)
    free, fixed = form.right_inverse(torch.randn(max(shape), min(shape)))
    away = torch.randn(*free.shape, dtype=torch.float64)
    free = free + size * away / torch.linalg.matrix_norm(away, 2)
    assert gap(form.matrix(free.float(), fixed.float())) <= TOLERANCE[torch.float32]


def test_numbers_that_went_through_half_precision(form):
    for some in (form, nanode.Householder(reflections=8)):
        free, fixed = some.right_inverse(torch.randn(64, 64))
        rounded = (part.bfloat16().float() for part in (free, fixed))
        assert gap(some.matrix(*rounded)) <= TOLERANCE[torch.float32]


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


def velocity(moving, t):
    return torch.func.jvp(moving, (t,), (torch.ones_like(t),))[1]


@pytest.mark.parametrize(
    ("size", "frequency", "least", "most"),
    [(4, 1.0, 0.0, 1e-2), (16, 2 * math.pi, 1e-3, 2e-2), (4, 2 * math.pi, 2e-2, 0.5)],
)
def test_how_far_smoothness_is_off(size, frequency, least, most):
    """By the quadrature, as docs/orthogonal.md says: the worst of six draws, by many more nodes."""
    basis, worst = nanode.Trigonometric(10, frequency=frequency), 0.0
    for seed in range(6):
        torch.manual_seed(seed)
        field = nanode.TimeVarying(
            nn.Linear(size, size, bias=False).double(),
            basis,
            start=nanode.Independent(),
            orthogonal=nanode.Householder(),
        )
        (moving,) = (part for part in field.modules() if isinstance(part, nanode.Orthogonal))
        nodes, weights = quadrature((0.0, 1.0), [n / 64 for n in range(1, 64)])
        with torch.no_grad():
            speeds = torch.func.vmap(partial(velocity, moving))(nodes)["weight"]
            exact = speeds.square().sum((1, 2)) @ weights
            worst = max(worst, abs(nanode.smoothness_penalty(moving) / exact - 1).item())
    assert least <= worst <= most


def test_smoothness_of_buckets_is_by_differences(form):
    moving = stirred(path(form, nanode.Bucketed(4, interval=(0.0, 2.0)), {"w": torch.randn(3, 2)}))
    rows = np.stack([moving(t)["w"].detach().numpy() for t in (0.1, 0.7, 1.2, 1.9)])
    expected = (np.diff(rows, axis=0) ** 2).sum() / 0.5
    assert nanode.smoothness_penalty(moving).item() == pytest.approx(expected, rel=1e-12)


def test_buckets_have_the_energy_of_their_columns(form):
    """‖W‖² is the number of columns, 2 here, for two units of time."""
    moving = stirred(path(form, nanode.Bucketed(4, interval=(0.0, 2.0)), {"w": torch.randn(3, 2)}))
    assert moving.energy(0).item() == pytest.approx(2 * 2, rel=1e-12)


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
