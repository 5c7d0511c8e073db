"""Penalties against quadrature of the trajectory itself.

Tolerance 1e-11 relative: both sides are sums of at most some hundred float64 products, and second
derivatives of these bases amplify rounding by less than 1e4.
"""

import math

import numpy as np
import pytest
import torch
from torch import nn

import nanode
from nanode.bases.quadrature import gauss, weighted_gram
from tests.trajectories.samples import EVERY, make, quadrature, stirred

INTERVALS = [(0.0, 1.0), (-2.0, 3.0)]
TOLERANCE = 1e-11
#: Bases whose m-th derivative is a function that quadrature can see.
SMOOTH = [
    (name, m)
    for name in EVERY
    for m in (0, 1, 2)
    if m == 0 or (name, m) not in [("bucketed", 1), ("bucketed", 2), ("piecewise_linear", 2)]
]


def integral(path, m):
    """∫ ‖W⁽ᵐ⁾(t)‖² dt of a trajectory, derivatives by automatic differentiation in t."""
    nodes, weights = quadrature(path.interval, path.breakpoints)

    def squares(t):
        def derived(order):
            if order == 0:
                return lambda t: path(t)
            below = derived(order - 1)
            return lambda t: torch.func.jvp(below, (t,), (torch.ones_like(t),))[1]

        return sum(w.abs().square().sum() for w in derived(m)(t).values())

    return float(torch.func.vmap(squares)(nodes).detach() @ weights)


def penalty(model, m):
    return nanode.function_penalty(model) if m == 0 else nanode.smoothness_penalty(model, m)


def field(name, interval=(0.0, 1.0), seed=7):
    module = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 3))
    return stirred(nanode.TimeVarying(module, make(name, interval)), seed)


@pytest.mark.parametrize("interval", INTERVALS, ids=str)
@pytest.mark.parametrize(("name", "m"), SMOOTH)
def test_integrals_match_quadrature(name, m, interval):
    model = field(name, interval)
    expected = integral(model.trajectory, m)
    if name == "constant" and m > 0:
        assert expected == 0
    else:
        assert expected > 0.01  # there is something to measure
    assert penalty(model, m).item() == pytest.approx(expected, rel=TOLERANCE, abs=1e-14)


@pytest.mark.parametrize("interval", INTERVALS, ids=str)
@pytest.mark.parametrize("m", [1, 2])
def test_buckets_are_smooth_by_their_differences(m, interval):
    model = field("bucketed", interval)
    width = (interval[1] - interval[0]) / 4
    alphas = [alpha.detach().numpy() for alpha in model.trajectory.parameters()]
    expected = sum((np.diff(a, m, axis=0) ** 2).sum() for a in alphas) * width ** (1 - 2 * m)
    assert nanode.smoothness_penalty(model, m).item() == pytest.approx(expected, rel=TOLERANCE)


def test_hats_have_second_differences():
    model = field("piecewise_linear")
    width = 1 / 3  # four knots
    alphas = [alpha.detach().numpy() for alpha in model.trajectory.parameters()]
    expected = sum((np.diff(a, 2, axis=0) ** 2).sum() for a in alphas) * width**-3
    assert nanode.smoothness_penalty(model, 2).item() == pytest.approx(expected, rel=TOLERANCE)


def test_coefficient_penalty_is_the_sum_of_squares():
    model = field("legendre")
    expected = sum((alpha.detach().numpy() ** 2).sum() for alpha in model.trajectory.parameters())
    assert nanode.coefficient_penalty(model).item() == pytest.approx(expected, rel=1e-14)


def test_parameters_left_constant_do_not_count():
    module = nn.Linear(3, 3)
    weight = module.weight.detach().clone()
    model = nanode.TimeVarying(module, nanode.Constant(), overrides={"bias": None})
    expected = float(weight.square().sum())
    assert nanode.coefficient_penalty(model).item() == pytest.approx(expected, rel=1e-14)
    assert nanode.function_penalty(model).item() == pytest.approx(expected, rel=1e-14)


class Penalised(nn.Module):
    """A penalty as a module, so that ``functional_call`` can give its parameters."""

    def __init__(self, model, rule):
        super().__init__()
        self.model, self.rule = model, rule

    def forward(self):
        return self.rule(self.model)


@pytest.mark.parametrize(
    "rule",
    [
        nanode.coefficient_penalty,
        nanode.function_penalty,
        nanode.smoothness_penalty,
        lambda model: nanode.smoothness_penalty(model, 2),
    ],
    ids=["coefficient", "function", "smoothness", "smoothness-2"],
)
@pytest.mark.parametrize("name", ["bucketed", "trigonometric", "bspline"])
def test_gradients(name, rule):
    model = Penalised(field(name), rule)
    names = [key for key, _ in model.named_parameters()]
    assert len(names) == 4

    def total(*alphas):
        return torch.func.functional_call(model, dict(zip(names, alphas, strict=True)), ())

    alphas = tuple(p.detach().requires_grad_() for p in model.parameters())
    torch.autograd.gradcheck(total, alphas)
    torch.autograd.gradgradcheck(total, alphas)


def test_one_call_for_a_whole_model():
    shared = field("trigonometric", seed=3)
    parts = [field("legendre", seed=1), field("bspline", interval=(0.0, 2.0), seed=2), shared]
    model = nn.ModuleDict(
        {"a": nn.Sequential(parts[0], nn.Linear(3, 3)), "b": parts[1], "c": shared, "d": shared}
    )
    rules = [nanode.coefficient_penalty, nanode.function_penalty, nanode.smoothness_penalty]
    for rule in rules:
        expected = sum(rule(part).item() for part in parts)  # a shared field counts once
        assert rule(model).item() == pytest.approx(expected, rel=1e-14)


def test_several_trajectories_in_one_field():
    module = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 3))
    basis, other = nanode.Legendre(3), nanode.PiecewiseLinear(5)
    model = stirred(nanode.TimeVarying(module, basis, overrides={"*.bias": other}))
    for m in (0, 1):
        expected = integral(model.trajectory, m)
        assert penalty(model, m).item() == pytest.approx(expected, rel=TOLERANCE)
    expected = sum((p.detach().numpy() ** 2).sum() for p in model.parameters())
    assert nanode.coefficient_penalty(model).item() == pytest.approx(expected, rel=1e-14)


def test_weights_of_several_dtypes():
    start = {"a": torch.randn(2, 2), "b": torch.randn(3).double()}
    path = stirred(nanode.Expansion(start, nanode.Legendre(3)))
    start["a"] = start["a"].float()
    mixed = nanode.Expansion(start, nanode.Legendre(3))
    mixed.load_state_dict(path.state_dict())
    for m in (0, 1):
        assert mixed.energy(m).item() == pytest.approx(path.energy(m).item(), rel=1e-5)


def test_complex_weights():
    start = {"w": nn.Parameter(torch.randn(2, 2, dtype=torch.complex128))}
    path = stirred(nanode.Expansion(start, nanode.Chebyshev(3)))
    for m in (0, 1):
        got = penalty(path, m)
        assert not got.is_complex()
        assert got.item() == pytest.approx(integral(path, m), rel=TOLERANCE)


@pytest.mark.parametrize("m", [0, 1, 2])
def test_ill_conditioned_penalties_are_never_negative(m):
    # At base frequency 1 on [0, 1] the Gram matrix of order 10 has numerical rank 13 of 21:
    # αᵀGα in float32 is then noise of either sign.
    basis = nanode.Trigonometric(10)
    t, weights = quadrature((0.0, 1.0))
    gram = (basis(t) * weights[:, None]).mT @ basis(t)
    nearly_null = torch.linalg.eigh(gram).eigenvectors[:, :6]
    path = nanode.Expansion({"w": nn.Parameter(torch.zeros(64))}, basis).float()
    alpha = (100 * nearly_null @ torch.randn(6, 64)).float()
    naive = torch.einsum("dn,de,en->n", alpha, basis.gram(m).float(), alpha)
    assert naive.min() < 0  # so the plain formula fails here
    for column in alpha.mT:
        with torch.no_grad():
            path.coefficients.w.copy_(column[:, None].expand(-1, 64))
        value = penalty(path, m)
        assert value.dtype == torch.float32
        assert value >= 0
        value.backward()
    assert path.coefficients.w.grad.isfinite().all()


# ---- bad input


@pytest.mark.parametrize(
    "rule", [nanode.coefficient_penalty, nanode.function_penalty, nanode.smoothness_penalty]
)
def test_models_that_do_not_move_are_refused(rule):
    with pytest.raises(ValueError, match=r"Sequential has no weights that move.*TimeVarying"):
        rule(nn.Sequential(nn.Linear(2, 2), nanode.Autonomous(nn.Linear(2, 2))))


@pytest.mark.parametrize("m", [0, -1, 1.5, True, "1", None])
def test_smoothness_refuses_other_orders(m):
    with pytest.raises(
        ValueError, match=r"m must be a whole number of at least 1.*function_penalty"
    ):
        nanode.smoothness_penalty(field("legendre"), m)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("m", [1, 2, 3])
@pytest.mark.parametrize("name", EVERY)
def test_weights_that_do_not_move_cost_nothing(name, m, dtype):
    """Exactly: rounding would leave a penalty of their own size, and a gradient of any."""
    basis = nanode.Bucketed(100) if name == "bucketed" else make(name, (0.0, 1.0))
    still = nanode.TimeVarying(nn.Linear(16, 16, bias=False).to(dtype), basis)
    found = nanode.smoothness_penalty(still, m)
    assert found.item() == 0
    (grad,) = torch.autograd.grad(found, list(still.parameters()))
    assert grad.abs().max().item() == 0


class Sines(nanode.Basis):
    """sin t and sin 2t: no constant function among them."""

    size = 2

    def values(self, t, side):
        return torch.stack([t.sin(), (2 * t).sin()], -1)

    def gram(self, m=0):
        t, weights = gauss(self.interval, 32)
        rows = [t.sin(), (2 * t).sin()] if m == 0 else [t.cos(), 2 * (2 * t).cos()]
        return weighted_gram(torch.stack(rows, -1), weights)

    def unit(self):
        return torch.zeros(2, dtype=torch.float64)


def test_a_basis_without_constants():
    torch.manual_seed(0)
    moving = nanode.TimeVarying(nn.Linear(3, 3, bias=False).double(), Sines())
    (alpha,) = moving.parameters()
    nn.init.normal_(alpha)
    t, weights = gauss((0.0, 1.0), 64)
    velocity = t.cos()[:, None] * alpha[0] + 2 * (2 * t).cos()[:, None] * alpha[1]
    exact = (weights @ velocity.square()).sum()
    torch.testing.assert_close(nanode.smoothness_penalty(moving), exact)


@pytest.mark.parametrize(("order", "degree"), [(2, 3), (1, 8)])
def test_what_penalties_leave_of_a_fit(order, degree):
    """Minima of ∫(W − T)² dt + λ · penalty. Of a wave of the basis: its square has a mean of ½."""
    lam, omega = 0.1, 2 * math.pi * order
    basis = nanode.Trigonometric(order=2, frequency=2 * math.pi)
    t, weights = gauss((0.0, 1.0), 64)
    wave = torch.sin(omega * t)
    legendre = torch.from_numpy(np.polynomial.legendre.Legendre.basis(degree)(2 * t.numpy() - 1))
    left = {
        nanode.smoothness_penalty: (wave, 1 / (1 + lam * omega**2)),
        nanode.function_penalty: (wave, 1 / (1 + lam)),
        nanode.coefficient_penalty: (wave, 0.5 / (0.5 + lam)),
    }
    for penalty, (target, share) in left.items():
        assert _left(penalty, basis, lam, t, weights, target) == pytest.approx(share, abs=1e-9)
    # At base frequency 1 a penalty on coefficients leaves little of fast motion.
    slow = nanode.Trigonometric(order=10)
    kept = _left(nanode.coefficient_penalty, slow, 1e-3, t, weights, legendre)
    assert kept == pytest.approx({3: 0.992, 8: 0.026}[degree], abs=1e-3)


def _left(penalty, basis, lam, t, weights, target):
    """The share of a target that the best penalised fit has."""
    moving = nanode.TimeVarying(nn.Linear(1, 1, bias=False).double(), basis)
    (alpha,) = moving.parameters()
    nn.init.zeros_(alpha)
    z = basis(t)

    def loss(flat):
        found = torch.func.functional_call(
            Penalised(moving, penalty), {"model.trajectory.coefficients.weight": flat[:, None]}, ()
        )
        return weights @ (z @ flat - target).square() + lam * found

    # Quadratic: one Newton step from zero is exact.
    zero = torch.zeros(basis.size, dtype=torch.float64)
    curvature, slope = torch.func.hessian(loss)(zero), torch.func.grad(loss)(zero)
    best = -torch.linalg.solve(curvature, slope)
    return float(weights @ (z @ best * target) / (weights @ target.square()))


@pytest.mark.parametrize(
    "rule", [nanode.coefficient_penalty, nanode.function_penalty, nanode.smoothness_penalty]
)
@pytest.mark.parametrize("inner", [nanode.Legendre(degree=2), nanode.Hypernetwork])
def test_coefficients_that_are_weights_of_a_field_around_count_there(rule, inner):
    layer = nn.Linear(2, 2)
    motion = {"basis": inner} if isinstance(inner, nanode.Basis) else {"weights": inner}
    block = nanode.ODEBlock(nanode.TimeVarying(layer, **motion), steps=2)
    outer = nanode.TimeVarying(nn.Sequential(block), nanode.Chebyshev(2), start=nanode.Noisy(0.1))
    assert torch.equal(rule(outer), rule(outer.trajectory))
    assert rule(outer.trajectory).item() > 0


def test_coefficients_that_a_field_around_leaves_alone_count_where_they_are():
    inner = nanode.TimeVarying(nn.Linear(2, 2), nanode.Legendre(2), start=nanode.Noisy(0.3))
    kept = "0.field.trajectory.coefficients.weight"
    outer = nanode.TimeVarying(
        nn.Sequential(nanode.ODEBlock(inner, steps=2)), nanode.Chebyshev(1), overrides={kept: None}
    )
    alpha = inner.trajectory.coefficients["weight"]
    gram = torch.diag(1 / (2 * torch.arange(3.0) + 1)).to(alpha)  # of Legendre's on [0, 1]
    own = (alpha * (gram @ alpha)).sum()
    expected = own + nanode.function_penalty(outer.trajectory)
    assert torch.allclose(nanode.function_penalty(outer), expected)
