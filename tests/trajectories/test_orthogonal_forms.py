"""Householder, Exponential, Cayley, Skew: maps from free numbers to matrices."""

import time

import numpy as np
import pytest
import scipy.linalg
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import nanode
from nanode.trajectories.forms import nearest
from nanode.trajectories.householder import reflected

FORMS = {
    "householder": nanode.Householder(),
    "exponential": nanode.Exponential(),
    "cayley": nanode.Cayley(),
}
#: In the Frobenius norm, which no other norm of the gap exceeds.
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}


@pytest.fixture(params=FORMS)
def form(request):
    return FORMS[request.param]


def haar(m, n, seed=0, det=None):
    """A random matrix with orthonormal columns, of a given determinant if square."""
    q, r = np.linalg.qr(np.random.default_rng(seed).standard_normal((m, n)))
    q = q * np.sign(np.diag(r))
    if det is not None and np.linalg.det(q) * det < 0:
        q[:, 0] = -q[:, 0]
    return torch.from_numpy(q)


def gap(w):
    """‖WᵀW − I‖ in the Frobenius norm, found in double precision."""
    w = w.detach().double().numpy()
    return np.linalg.norm(w.swapaxes(-1, -2) @ w - np.eye(w.shape[-1]), axis=(-2, -1)).max()


def reached(form, weight):
    return form.matrix(*form.right_inverse(weight))


# ---- formulas


def one_after_another(vectors):
    """H(u₁)…H(u_k) by the definition of a reflection."""
    w = np.eye(len(vectors))
    for u in vectors.T:
        w = w @ (np.eye(len(u)) - 2 * np.outer(u, u) / (u @ u))
    return w


@pytest.mark.parametrize(("m", "k"), [(1, 1), (2, 1), (5, 5), (7, 3), (40, 40)])
def test_reflections_are_their_definition(m, k):
    vectors = torch.randn(3, m, k)
    # Sums of at most 40 products, 40 times over.
    for one, u in zip(reflected(vectors, torch.ones(m)), vectors, strict=True):
        np.testing.assert_allclose(one, one_after_another(u.numpy()), rtol=0, atol=1e-13)
    base = torch.randn(m, 2)
    expected = one_after_another(vectors[0].numpy()) @ base.numpy()
    np.testing.assert_allclose(reflected(vectors[0], base), expected, rtol=0, atol=1e-12)


def turned_by(x, g):
    """The skew-symmetric matrix of size m that turns X, by its definition."""
    p = np.eye(len(x)) - x @ x.T / 2
    return p @ g @ x.T - x @ g.T @ p


@pytest.mark.parametrize("size", [1.0, 30.0])
@pytest.mark.parametrize(("m", "n"), [(1, 1), (5, 5), (5, 2), (6, 1), (5, 4)])
def test_turns_are_their_definition(m, n, size):
    x, g = haar(m, n), size * torch.randn(m, n)
    omega = turned_by(x.numpy(), g.numpy())
    expected = scipy.linalg.expm(omega) @ x.numpy()
    # Angles up to 150, each known to an ulp of it.
    np.testing.assert_allclose(FORMS["exponential"].matrix(g, x), expected, rtol=0, atol=1e-11)
    half = np.eye(m) - omega / 2, np.eye(m) + omega / 2
    expected = np.linalg.solve(*half) @ x.numpy()
    np.testing.assert_allclose(FORMS["cayley"].matrix(g, x), expected, rtol=0, atol=1e-11)


@pytest.mark.parametrize("name", ["exponential", "cayley"])
@pytest.mark.parametrize(("m", "n"), [(4, 4), (6, 3)])
def test_turns_start_along_the_projected_motion(name, m, n):
    """At the start dW is the part of dG tangent to the matrices with orthonormal columns."""
    x, g = haar(m, n), torch.randn(m, n)
    _, moved = torch.func.jvp(lambda free: FORMS[name].matrix(free, x), (x,), (g,))
    tangent = g - x @ (x.mT @ g + g.mT @ x) / 2
    torch.testing.assert_close(moved, tangent, rtol=0, atol=1e-14)


def test_skew_is_skew():
    a = torch.randn(2, 4, 4)
    w = nanode.Skew().matrix(a, None)
    assert torch.equal(w, -w.mT)
    assert torch.equal(w[1], a[1] - a[1].mT)


# ---- orthogonality


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("shape", [(1, 1), (512, 512), (512, 1), (512, 40), (200, 150)], ids=str)
def test_columns_are_orthonormal(form, shape, dtype):
    free, fixed = (part.to(dtype) for part in form.right_inverse(torch.randn(*shape)))
    noise = torch.randn(2, *free.shape, dtype=dtype) / shape[0] ** 0.5
    sizes = torch.tensor([1.0, 30.0], dtype=dtype)[:, None, None]
    w = form.matrix(free + sizes * noise, fixed)
    assert w.dtype == dtype
    assert gap(w) <= TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("spread", [0.0, 0.01, 0.1])
def test_reflections_along_nearly_one_direction(dtype, spread):
    # Without the polishing step the gap is up to 4e-4 here in single precision.
    vectors = (torch.randn(256, 1) + spread * torch.randn(256, 256)).to(dtype)
    assert (
        gap(nanode.Householder().matrix(vectors, torch.ones(256, dtype=dtype))) <= TOLERANCE[dtype]
    )


def test_single_precision_keeps_half_of_its_tolerance_at_the_worst_found():
    """The least orthogonal of many draws at 512; 9e-6 where WᵀW was found by one product."""
    torch.manual_seed(8)
    near, spread = torch.randn(512, 1), 8e-4
    vectors = (near + spread * torch.randn(512, 512)).float()
    assert gap(nanode.Householder().matrix(vectors, torch.ones(512, dtype=torch.float32))) <= 5e-6
    for form in (nanode.Exponential(), nanode.Cayley()):
        # Equal columns of norm 3 √512: a turn by 768.
        free = (3 * near.expand(512, 512)).float()
        assert gap(form.matrix(free, haar(512, 512).float())) <= 5e-6


def test_single_precision_follows_far_turns():
    """By 3e-4 here; 2e-2 if rounding in the exponential grew with the square of N."""
    form, free = nanode.Exponential(), 1000 * torch.randn(64, 16) / 8
    _, fixed = form.right_inverse(torch.randn(64, 16))
    single = form.matrix(free.float(), fixed.float()).double()
    assert (single - form.matrix(free, fixed)).norm() < 2e-3


def test_a_start_in_single_precision_is_orthogonal_in_double():
    for name in ("exponential", "cayley"):
        free, fixed = (part.float().double() for part in FORMS[name].right_inverse(haar(40, 30)))
        assert gap(fixed) > 1e-8
        assert gap(FORMS[name].matrix(free, fixed)) <= 1e-12


# ---- any start is reached


def special(d):
    """Matrices at which decompositions have a choice to make."""
    eye = np.eye(d)
    yield eye
    yield -eye
    yield eye[::-1].copy()
    yield np.roll(eye, 1, axis=0)
    yield np.diag([(-1.0) ** i for i in range(d)])
    if d > 1:  # half a turn in one plane
        turn = eye.copy()
        turn[:2, :2] *= -1
        yield turn


@pytest.mark.parametrize("d", [1, 2, 3, 4, 7, 8, 33, 64])
def test_every_orthogonal_matrix_is_reached(form, d):
    given = [haar(d, d, seed, det) for seed in range(3) for det in (1, -1)]
    given += [torch.from_numpy(q) for q in special(d)]
    signs = {round(float(torch.linalg.det(q))) for q in given}
    assert signs == {1, -1}
    for q in given:
        torch.testing.assert_close(reached(form, q), q, rtol=0, atol=1e-13)


@pytest.mark.parametrize(("m", "n"), [(2, 1), (5, 3), (9, 8), (64, 10)])
def test_every_matrix_with_orthonormal_columns_is_reached(form, m, n):
    for q in (haar(m, n), torch.eye(m, n), -torch.eye(m, n), torch.eye(m)[:, -n:]):
        torch.testing.assert_close(reached(form, q), q, rtol=0, atol=1e-13)


@pytest.mark.parametrize("reflections", [1, 3, 4, 5])
@pytest.mark.parametrize(("m", "det"), [(5, 1), (5, -1), (8, None)])
def test_fewer_reflections_keep_the_others(m, det, reflections):
    q = haar(m, 5, det=det)
    form = nanode.Householder(reflections=reflections)
    free, fixed = form.right_inverse(q)
    assert free.shape == (m, reflections)
    torch.testing.assert_close(form.matrix(free, fixed), q, rtol=0, atol=1e-13)
    assert gap(form.matrix(torch.randn(m, reflections), fixed)) <= 1e-12


def along(q):
    """Vectors whose reflections multiply to q, by turning its columns into axes one by one."""
    vectors = []
    for axis, column in enumerate(np.eye(len(q))):
        u = q[:, axis] - column
        if np.linalg.norm(u) > 1e-8:
            q = q - 2 * np.outer(u, u @ q) / (u @ u)
            vectors.append(u)
    return torch.from_numpy(np.stack(vectors, axis=1))


@pytest.mark.parametrize("det", [1, -1])
@pytest.mark.parametrize(("d", "reflections"), [(5, 5), (5, 4), (6, 6), (6, 5)])
def test_every_start_leads_to_all_of_its_determinant(d, reflections, det):
    form = nanode.Householder(reflections)
    _, fixed = form.right_inverse(haar(d, d, det=det))
    base = fixed if fixed.ndim == 2 else torch.diag(fixed)
    goal = haar(d, d, seed=1, det=det)
    vectors = along((goal @ base.mT).numpy())
    assert vectors.shape == (d, reflections)
    torch.testing.assert_close(form.matrix(vectors, fixed), goal, rtol=0, atol=1e-13)


@pytest.mark.parametrize("d", [2, 3, 4, 5])
def test_one_sign_in_front_is_not_enough(d):
    """det(s H₁…H_d) = s^d (−1)^d: for even d the paper's sign changes nothing."""
    product = reflected(torch.randn(d, d), torch.ones(d))
    dets = {round(float(torch.linalg.det(s * product))) for s in (1, -1)}
    assert dets == ({1} if d % 2 == 0 else {1, -1})


def test_other_weights_start_at_the_nearest(form):
    weight = torch.randn(6, 4)
    u, _, vh = np.linalg.svd(weight.numpy(), full_matrices=False)
    torch.testing.assert_close(reached(form, weight), torch.from_numpy(u @ vh), rtol=0, atol=1e-13)


def test_skew_starts_at_the_skew_part():
    weight = torch.randn(5, 5)
    expected = (weight - weight.mT) / 2
    torch.testing.assert_close(reached(nanode.Skew(), weight), expected, rtol=0, atol=1e-15)


# ---- all reflections at once


class Operations(TorchDispatchMode):
    """Counts what torch is asked to compute, backward passes included."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += 1
        return func(*args, **(kwargs or {}))


def test_work_is_not_one_step_a_reflection():
    counts = []
    for k in (3, 60):
        vectors = torch.randn(2, 64, k, requires_grad=True)
        with Operations() as operations:
            nanode.Householder().matrix(vectors, torch.ones(k)).sum().backward()
        counts.append(operations.count)
    assert counts[0] == counts[1]


def test_faster_than_one_after_another():
    """benchmarks/householder.py finds 11 to 25 times; half of that is left to a busy machine."""
    vectors = torch.randn(256, 256, dtype=torch.float32, requires_grad=True)
    signs = torch.ones(256, dtype=torch.float32)

    def slow():
        w = torch.eye(256, dtype=torch.float32)
        for u in (vectors / vectors.norm(dim=0)).unbind(1):
            w = w - 2 * torch.outer(w @ u, u)
        return w

    best = {}
    for _ in range(3):
        for way in (slow, lambda: nanode.Householder().matrix(vectors, signs)):
            start = time.perf_counter()
            way().sum().backward()
            spent = time.perf_counter() - start
            name = way.__name__
            best[name] = min(spent, best.get(name, spent))
    assert best["slow"] > 5 * best["<lambda>"]


# ---- derivatives


@pytest.mark.parametrize(("m", "n"), [(3, 3), (4, 2)])
def test_gradients(form, m, n):
    _, fixed = form.right_inverse(torch.randn(m, n))
    free = torch.randn(2, m, n, requires_grad=True)
    torch.autograd.gradcheck(lambda g: form.matrix(g, fixed), (free,))
    torch.autograd.gradcheck(lambda g: form.matrix(g, fixed), (free,), check_forward_ad=True)


def test_gradients_with_fewer_reflections():
    form = nanode.Householder(reflections=2)
    free, fixed = form.right_inverse(haar(4, 3))
    torch.autograd.gradcheck(lambda g: form.matrix(g, fixed), (free.requires_grad_(),))


def test_second_derivatives_of_reflections():
    free = torch.randn(3, 2, requires_grad=True)
    fixed = torch.ones(2)
    torch.autograd.gradgradcheck(lambda g: nanode.Householder().matrix(g, fixed), (free,))


def test_gradients_of_reflections_are_those_of_the_definition():
    vectors = torch.randn(30, 30, requires_grad=True)
    upstream = torch.randn(30, 30)
    w = torch.eye(30)
    for u in vectors.unbind(1):
        w = w - 2 * torch.outer(w @ u, u) / (u @ u)
    (expected,) = torch.autograd.grad(w, vectors, upstream)
    fast = nanode.Householder().matrix(vectors, torch.ones(30))
    (got,) = torch.autograd.grad(fast, vectors, upstream)
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_a_vector_that_becomes_zero_reflects_nothing(dtype):
    vectors = torch.randn(5, 4, dtype=dtype)
    vectors[:, 2] = 0
    vectors.requires_grad_()
    w = nanode.Householder().matrix(vectors, torch.ones(4, dtype=dtype))
    left = [0, 1, 3]
    expected = one_after_another(vectors[:, left].detach().double().numpy())[:, :4]
    np.testing.assert_allclose(w.detach(), expected, rtol=0, atol=10 * torch.finfo(dtype).eps)
    w.sum().backward()
    assert vectors.grad.isfinite().all()
    assert torch.equal(vectors.grad[:, 2], torch.zeros(5, dtype=dtype))
    assert bool(vectors.grad[:, left].any())


@pytest.mark.parametrize("length", [1e-30, 1e-22, 1e-15, 1e15])
def test_vectors_of_any_length(length):
    """Only directions count; what is too short to be squared counts as zero."""
    vectors = torch.randn(5, 5, dtype=torch.float32)
    expected = nanode.Householder().matrix(vectors, torch.ones(5, dtype=torch.float32))
    vectors[:, 3] *= length
    vectors.requires_grad_()
    w = nanode.Householder().matrix(vectors, torch.ones(5, dtype=torch.float32))
    w.sum().backward()
    assert gap(w) <= 1e-5
    assert vectors.grad.isfinite().all()
    assert torch.allclose(w, expected, atol=1e-5) is (length > 1e-19)


# ---- bad input


def test_skew_refuses_other_shapes():
    with pytest.raises(ValueError, match=r"square, and this one is not; .*Householder"):
        nanode.Skew().right_inverse(torch.randn(4, 3))


def test_refuses_more_reflections_than_dimensions():
    with pytest.raises(ValueError, match=r"4 reflections are more than the 3 dimensions of a 5×3"):
        nanode.Householder(reflections=4).right_inverse(torch.randn(5, 3))


@pytest.mark.parametrize("reflections", [0, -1, 1.5, True])
def test_refuses_other_counts(reflections):
    with pytest.raises(ValueError, match="reflections must be a whole number of at least 1"):
        nanode.Householder(reflections=reflections)


def test_refuses_a_zero_vector():
    vectors = torch.randn(4, 3)
    vectors[:, 1] = 0
    with pytest.raises(ValueError, match="reflection vector 1 is zero"):
        nanode.Householder().check(vectors)


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        (torch.zeros(3, 3), r"rank is 0 of 3.*orthogonal_"),
        (torch.ones(4, 2), r"rank is 1 of 2.*orthogonal_"),
        (torch.full((2, 2), float("nan")), "not finite"),
    ],
)
def test_refuses_weights_without_a_nearest(form, weight, message):
    with pytest.raises(ValueError, match=message):
        form.right_inverse(weight)


def test_badly_conditioned_weights_have_a_nearest():
    """A random matrix of 1024 × 1024 is often singular to single precision, and no harm done."""
    q, p = haar(20, 20), haar(20, 20, seed=1)
    thin = (q * torch.logspace(0, -9, 20)) @ p.mT
    # Rounding of the product, 1e-16, over the smallest singular value.
    torch.testing.assert_close(nearest(thin), q @ p.mT, rtol=0, atol=1e-6)
    u, _, vh = np.linalg.svd(thin.float().double().numpy())
    torch.testing.assert_close(nearest(thin.float()), torch.from_numpy(u @ vh), rtol=0, atol=1e-6)
    with pytest.raises(ValueError, match="rank is 19 of 20"):
        nearest(torch.cat([thin[:, :-1], thin[:, :1]], dim=1))


@pytest.mark.parametrize("size", [1e-30, 1e30])
def test_the_rank_goes_by_the_largest_singular_value(size):
    q = haar(4, 4)
    torch.testing.assert_close(nearest(size * q), q, rtol=0, atol=1e-13)
    with pytest.raises(ValueError, match="rank is 3 of 4"):
        nearest(size * q * torch.tensor([1, 1, 1, 1e-20]))
