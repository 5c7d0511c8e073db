"""Weights in another basis: exact where it contains the first, best where it doesn't."""

import pytest
import torch
from torch import nn

import nanode
from nanode.bases.quadrature import gauss
from nanode.models import create

DOUBLE = torch.float64
NESTED = [
    (nanode.Constant(), nanode.Trigonometric(3)),
    (nanode.Legendre(2), nanode.Legendre(5)),
    (nanode.Monomial(3), nanode.Chebyshev(3)),
    (nanode.Chebyshev(4), nanode.Monomial(6)),
    (nanode.Trigonometric(3), nanode.Trigonometric(10)),  # of condition 1e16
    (nanode.Bucketed(2), nanode.Bucketed(6)),
    (nanode.PiecewiseLinear(3), nanode.PiecewiseLinear(5)),
    (nanode.Legendre(3), nanode.BSpline(4, degree=3)),
]


def moving(basis, seed=0, dtype=DOUBLE, **settings):
    torch.manual_seed(seed)
    module = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)).to(dtype)
    if not settings.get("weights"):
        settings["start"] = nanode.Noisy(0.5)
    return nanode.TimeVarying(module, basis, **settings)


@pytest.mark.parametrize(("old", "new"), NESTED, ids=repr)
def test_nothing_is_lost_in_a_basis_that_contains_the_first(old, new):
    field = moving(old)
    found = nanode.project(field, new)
    for t in (0.0, 0.21, 0.5, 0.77):
        for name, w in field.weights_at(t).items():
            assert (found.weights_at(t)[name] - w).abs().max() < 1e-10
    assert max(nanode.projection_errors(field, found).values()) < 1e-10


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
def test_functions_that_both_have_keep_their_coefficients(dtype):
    field = moving(nanode.Trigonometric(2), dtype=dtype)
    alpha = field.trajectory.coefficients.get_submodule("0").weight
    found = nanode.project(field, nanode.Trigonometric(12))
    beta = found.trajectory.coefficients.get_submodule("0").weight
    kept = [0, 1, 2, 13, 14]  # 1, the first two cosines of twelve, the first two sines
    assert torch.equal(beta[kept], alpha)
    beta.data[kept] = 0
    assert not beta.any()
    assert beta.dtype == dtype


def test_buckets_are_means_and_polynomials_are_the_best():
    """Against integrals by hand: a bucket takes the mean, Legendre's coefficients are moments."""
    field = moving(nanode.Monomial(4))
    t, w = gauss([0.0, 0.25, 0.5, 0.75, 1.0], 12)
    values = torch.stack([field.weights_at(float(at))["0.weight"].detach() for at in t])
    buckets = nanode.project(field, nanode.Bucketed(4))
    for n in range(4):
        part = slice(12 * n, 12 * n + 12)
        mean = 4 * (w[part, None, None] * values[part]).sum(0)
        assert (buckets.weights_at(0.25 * n + 0.1)["0.weight"] - mean).abs().max() < 1e-12
    legendre = nanode.project(field, nanode.Legendre(2))
    rest = values - torch.stack([legendre.weights_at(float(at))["0.weight"].detach() for at in t])
    for power in range(3):  # what is left is orthogonal to all that the basis has
        assert ((w * t**power)[:, None, None] * rest).sum(0).abs().max() < 1e-12
    error = ((w[:, None, None] * rest**2).sum() / (w[:, None, None] * values**2).sum()).sqrt()
    found = nanode.projection_errors(field, legendre)["trajectory.0.weight"]
    assert abs(found - float(error)) < 1e-12


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, DOUBLE])
@pytest.mark.parametrize(
    ("old", "new"),
    [
        (nanode.Legendre(6), nanode.Monomial(6)),
        (nanode.Legendre(3), nanode.Trigonometric(10)),
        (nanode.Bucketed(7), nanode.Trigonometric(10)),
    ],
    ids=repr,
)
def test_the_cutoff_is_about_the_best_for_rounded_coefficients(old, new, dtype):
    """Too few directions lose motion, too many make coefficients that cancel, once rounded."""
    field = moving(old, dtype=dtype)

    def worst(**settings):
        errors = nanode.projection_errors(field, nanode.project(field, new, **settings))
        return max(errors.values())

    tried = [worst(cutoff=10.0**-n) for n in range(1, 15)]
    assert worst() <= 1.3 * min(tried)
    assert max(tried) > 2 * worst() or dtype != torch.float32


def test_coefficients_stay_moderate_in_a_basis_that_is_nearly_dependent():
    """T-10 at base frequency 1 has 21 functions of numerical rank 13."""
    field = moving(nanode.Bucketed(7))
    alpha = field.trajectory.coefficients.get_submodule("0").weight
    sizes = [
        nanode.project(field, nanode.Trigonometric(10), cutoff=cutoff)
        .trajectory.coefficients.get_submodule("0")
        .weight.abs()
        .max()
        / alpha.abs().max()
        for cutoff in (1e-2, 1e-13)
    ]
    assert sizes[0] < 100 < 1e6 < sizes[1]


def test_a_hypernetwork_becomes_an_expansion():
    field = moving(None, weights=nanode.Hypernetwork)
    torch.manual_seed(1)
    for parameter in field.trajectory.parameters():
        nn.init.normal_(parameter, std=0.3)
    found = nanode.project(field, nanode.Chebyshev(12))
    assert isinstance(found.trajectory, nanode.Expansion)
    assert max(nanode.projection_errors(field, found).values()) < 1e-5
    assert all(alpha.requires_grad for alpha in found.trajectory.parameters())


def test_orthogonal_weights_stay_orthogonal():
    torch.manual_seed(0)
    layer = nn.Linear(4, 4).to(DOUBLE)
    field = nanode.TimeVarying(
        layer, nanode.Legendre(3), start=nanode.Noisy(0.5), orthogonal=nanode.Householder()
    )
    found = nanode.project(field, nanode.Bucketed(5))
    w = found.weights_at(0.33)["weight"]
    assert (w.T @ w - torch.eye(4, dtype=DOUBLE)).abs().max() < 1e-12
    assert found.jumps == (0.2, 0.4, 0.6, 0.8)
    assert max(nanode.projection_errors(field, found).values()) < 0.5


def test_a_whole_model_and_its_blocks():
    """Other breakpoints make another plan: aligned steps follow the buckets."""
    field = moving(nanode.Legendre(2), overrides={"*.bias": None})
    block = nanode.ODEBlock(field, nanode.Aligned(4), nanode.Midpoint())
    model = nn.Sequential(nn.Linear(3, 3).to(DOUBLE), block)
    found = nanode.project(model, nanode.Bucketed(6))
    assert block.plan().grid.steps == 4
    assert found[1].plan().grid.steps == 6
    assert torch.equal(found[1].field.module[0].bias, block.field.module[0].bias)
    x = torch.randn(2, 3, dtype=DOUBLE, requires_grad=True)
    found(x).sum().backward()
    assert all(p.grad is not None for p in found.parameters())
    assert not any(p is q for p in found.parameters() for q in model.parameters())


def test_blocks_that_share_a_field():
    field = moving(nanode.Legendre(2))
    blocks = [nanode.ODEBlock(field, nanode.Aligned(4), nanode.Midpoint()) for _ in range(2)]
    found = nanode.project(nn.Sequential(*blocks), nanode.Bucketed(6))
    assert [block.plan().grid.steps for block in found] == [6, 6]
    assert found[0].field is found[1].field


def test_single_numbers():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.factor = nn.Parameter(torch.tensor(2.0))

        def forward(self, x):
            return self.factor * x

    for settings in ({"basis": nanode.Legendre(1)}, {"weights": nanode.Hypernetwork}):
        field = nanode.TimeVarying(Scaled(), **settings)
        found = nanode.project(field, nanode.Legendre(2))
        assert max(nanode.projection_errors(field, found).values()) < 1e-6


def test_gates_and_their_fields():
    gated = nanode.Gated([moving(nanode.Legendre(1)), moving(nanode.Legendre(1), seed=1)])
    found = nanode.project(gated, nanode.Legendre(3))
    x = torch.randn(2, 3, dtype=DOUBLE)
    assert (found(0.3, x) - gated(0.3, x)).abs().max() < 1e-6  # gates are in single precision


def test_frozen_stays_frozen():
    field = moving(nanode.Legendre(1))
    field.trajectory.coefficients.get_submodule("0").weight.requires_grad_(False)
    found = nanode.project(field, nanode.Legendre(2)).trajectory.coefficients
    assert not found.get_submodule("0").weight.requires_grad
    assert found.get_submodule("2").weight.requires_grad


def test_the_mode_and_the_basis_are_its_own():
    basis = nanode.Legendre(2)
    found = nanode.project(moving(nanode.Legendre(1)).eval(), basis)
    assert not any(part.training for part in found.modules())
    assert found.trajectory.basis is not basis


def test_errors_of_weights_that_are_zero_or_complex():
    zero = nn.Linear(2, 2).to(DOUBLE)
    nn.init.zeros_(zero.bias)
    field = nanode.TimeVarying(zero, nanode.Legendre(1))
    assert set(nanode.projection_errors(field, field).values()) == {0}
    one, other = (
        nanode.Expansion({"w": torch.tensor([w], dtype=torch.complex128)}, nanode.Legendre(1))
        for w in (3 + 4j, 3 + 3j)
    )
    assert nanode.projection_errors(one, other) == {"w": pytest.approx(1 / 5)}


def test_a_row_of_table_1_in_few_coefficients():
    """At the start nothing moves, so that one coefficient of 21 is enough."""
    model = create("t-nanode-10", preset="tiny", channels=1)
    small = nanode.project(model, nanode.Constant())
    x = torch.randn(2, 1, 8, 8)
    assert (small.eval()(x) - model.eval()(x)).abs().max() < 1e-5
    count = sum(p.numel() for p in small.parameters())
    assert count < sum(p.numel() for p in model.parameters()) / 10


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: nanode.project(nn.Linear(2, 2), nanode.Legendre(1)), "has no weights that move"),
        (lambda: nanode.project(moving(nanode.Legendre(1)), nanode.Legendre), "must be a Basis"),
        (
            lambda: nanode.project(moving(nanode.Legendre(1)), nanode.Legendre(1, interval=(0, 2))),
            r"give it interval=\(0\.0, 1\.0\)",
        ),
        (lambda: nanode.project(3, nanode.Legendre(1)), "int has no weights that move"),
        (
            lambda: nanode.project(moving(nanode.Legendre(1)), nanode.Legendre(1), cutoff=2),
            "cutoff must be a finite number at least 0 and below 1",
        ),
        (
            lambda: nanode.project(
                nanode.Autonomous(nn.Sequential(nanode.ODEBlock(moving(nanode.Legendre(1)), 2))),
                nanode.Legendre(2),
            ),
            "project the inner one before it is wrapped",
        ),
        (
            lambda: nanode.projection_errors(moving(nanode.Legendre(1)), nn.Linear(2, 2)),
            "can't be compared",
        ),
    ],
)
def test_refuses(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_tiny_functions_are_not_taken_for_equal_ones():
    """On (0, 1e-3) t⁵ and t⁴ differ by 1e-12, and yet contribute as much as others do."""
    interval, size = (0.0, 1e-3), torch.tensor([1e3**n for n in range(6)], dtype=DOUBLE)
    torch.manual_seed(0)
    field = nanode.TimeVarying(
        nn.Linear(3, 3, bias=False).double(), nanode.Monomial(5, interval=interval)
    )
    with torch.no_grad():
        coefficients = torch.randn(6, 9, dtype=DOUBLE)
        field.trajectory.coefficients.weight.copy_(coefficients * size[:, None])
    found = nanode.project(field, nanode.Monomial(4, interval=interval))
    assert max(nanode.projection_errors(field, found).values()) < 0.05
    wider = nanode.project(field, nanode.Monomial(6, interval=interval))
    assert max(nanode.projection_errors(field, wider).values()) == 0


@pytest.mark.parametrize("name", ["keys", "values", "items"])
def test_weights_may_have_the_names_of_a_dicts_methods(name):
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.add_module(name, nn.Linear(3, 3))

        def forward(self, x):
            return self.get_submodule(name)(x)

    field = nanode.TimeVarying(Named(), nanode.Legendre(2))
    found = nanode.project(field, nanode.Chebyshev(3))
    assert max(nanode.projection_errors(field, found).values()) < 1e-6


def test_a_hypernetwork_while_new_tensors_go_elsewhere():
    field = nanode.TimeVarying(nn.Linear(3, 3), weights=nanode.Hypernetwork)
    expected = nanode.project(field, nanode.Legendre(3))
    with torch.device("meta"):
        found = nanode.project(field, nanode.Legendre(3))
    for a, b in zip(found.parameters(), expected.parameters(), strict=True):
        assert torch.equal(a, b)
