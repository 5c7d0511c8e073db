"""Where coefficients start.

Statistical bounds are five standard deviations of the measured quantity, derived beside each: for a
right program one fixed seed in two million exceeds one.
"""

import math

import pytest
import torch
from torch import nn

import nanode
from tests.trajectories.samples import EVERY, LOCAL, SPLINES, make, quadrature, stirred

INTERVALS = [(0.0, 1.0), (-2.0, 3.0)]


def spanned(basis):
    """The Gram matrix by quadrature, divided by the length of the interval."""
    t, w = quadrature(basis.interval, basis.breakpoints)
    z = basis(t)
    return z.mT @ (w[:, None] * z) / (basis.interval[1] - basis.interval[0])


# ---- Held


@pytest.mark.parametrize("name", EVERY)
def test_held_is_the_default_and_constant(name):
    w = torch.randn(3, 4)
    basis = make(name, (-1.0, 2.0))
    default = nanode.Expansion({"w": w}, basis)
    held = nanode.Expansion({"w": w}, basis, nanode.Held())
    assert torch.equal(default.coefficients.w, held.coefficients.w)
    for t in (-1.0, 0.1, 2.0):
        # Splines sum to 1 within an ulp or two.
        torch.testing.assert_close(held(t)["w"], w, rtol=4 * 2.3e-16, atol=0)


# ---- Noisy


@pytest.mark.parametrize("name", EVERY)
def test_noise_has_the_stated_size(name):
    w = 3 + 2 * torch.randn(60, 50)
    basis = make(name)
    noisy = nanode.Expansion({"w": w}, basis, nanode.Noisy(0.25)).coefficients.w
    noise = noisy - nanode.Expansion({"w": w}, basis).coefficients.w
    n, size = noise.numel(), 0.25 * float(w.std(correction=0))
    # A normal sample's standard deviation is off by 1/√(2n) of itself, its mean by size/√n.
    assert float(noise.std()) == pytest.approx(size, rel=5 / math.sqrt(2 * n))
    assert abs(float(noise.mean())) <= 5 * size / math.sqrt(n)
    assert len(noise.unique()) == n


def test_values_that_do_not_vary_get_no_noise():
    given = {"scale": torch.ones(8), "bias": torch.zeros(8), "number": torch.tensor(2.0)}
    path = nanode.Expansion(given, nanode.Legendre(3), nanode.Noisy(1.0))
    for name, value in path(0.7).items():
        assert torch.equal(value, given[name])


def test_no_noise_is_held():
    w = torch.randn(3, 4)
    path = nanode.Expansion({"w": w}, nanode.Trigonometric(2), nanode.Noisy(0.0))
    assert torch.equal(path(0.3)["w"], w)


@pytest.mark.parametrize("scale", [-0.1, float("nan")])
def test_noise_refuses_other_sizes(scale):
    with pytest.raises(ValueError, match="scale must be at least 0"):
        nanode.Noisy(scale)


# ---- Independent


@pytest.mark.parametrize("interval", INTERVALS, ids=str)
@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=str)
def test_independent_keeps_the_variance_averaged_over_time(name, interval, dtype):
    w = 1.5 + 0.3 * torch.randn(60, 50, dtype=dtype)
    basis = make(name, interval)
    path = nanode.Expansion({"w": w}, basis, nanode.Independent())
    t, weights = quadrature(interval, basis.breakpoints)
    at = torch.func.vmap(lambda t: path(t)["w"].flatten())(t)
    mean, variance = w.mean(), float(w.std(correction=0)) ** 2
    measured = float((at - mean).abs().square().mean(1) @ weights / (interval[1] - interval[0]))
    # The measured value is σ²/n Σᵢ εᵢᵀGεᵢ with n independent terms, σ² tr G = variance. One term
    # has variance 2σ⁴ tr G² (half of it for complex numbers), so relative to its mean:
    gram = spanned(basis)
    deviation = math.sqrt(2 * float((gram @ gram).trace()) / w.numel()) / float(gram.trace())
    assert measured == pytest.approx(variance, rel=5 * deviation)
    assert 5 * deviation < 0.2  # tight enough to tell a wrong scale


@pytest.mark.parametrize("name", [name for name in EVERY if name != "constant"])
def test_independent_moves(name):
    w = torch.randn(20, 20)
    path = nanode.Expansion({"w": w}, make(name), nanode.Independent())
    assert not torch.allclose(path(0.05)["w"], path(0.95)["w"], atol=0.1)


@pytest.mark.parametrize("name", EVERY)
def test_independent_holds_the_mean(name):
    given = {"scale": torch.ones(8), "bias": torch.zeros(8)}
    path = nanode.Expansion(given, make(name), nanode.Independent())
    for key, value in path(0.6).items():
        torch.testing.assert_close(value, given[key], rtol=4 * 2.3e-16, atol=0)


# ---- Untied


def layers(count, width=30):
    return [nn.Linear(width, width) for _ in range(count)]


@pytest.mark.parametrize("name", LOCAL)
def test_untied_coefficients_are_the_draws(name):
    own, basis = nn.Linear(3, 3), make(name)
    others = layers(basis.size - 1, width=3)
    draws = iter(others)
    start = nanode.Untied(lambda: next(draws))
    expected = [layer.weight.detach().clone() for layer in (own, *others)]
    model = nanode.TimeVarying(own, basis, start=start)
    rows = model.trajectory.coefficients.weight
    assert torch.equal(rows, torch.stack(expected).flatten(1))


def test_untied_by_name_draws_every_bucket_anew():
    own = nn.Linear(30, 30)
    first = own.weight.detach().clone()
    model = nanode.TimeVarying(own, nanode.Bucketed(6), start="untied")
    rows = model.trajectory.coefficients.weight.detach()
    assert torch.equal(rows[0], first.flatten())
    # torch's own rule for a linear layer: uniform with bound 1/√inputs.
    bound, n = 30**-0.5, rows.shape[1]
    assert rows.abs().max() <= bound
    # A uniform variable's square has mean b²/3 and standard deviation b²√(4/45).
    relative = math.sqrt(4 / 45) * 3 / math.sqrt(n)
    for row in rows:
        assert float(row.square().mean()) == pytest.approx(bound**2 / 3, rel=5 * relative)
    correlation = torch.corrcoef(rows) - torch.eye(6)
    assert correlation.abs().max() <= 5 / math.sqrt(n)


def test_untied_follows_the_rule_of_the_whole_not_of_its_parts():
    # Attention draws its projections by Xavier's rule and sets the output's bias to zero, after the
    # output layer drew one by its own rule.
    torch.manual_seed(0)
    attention = nn.MultiheadAttention(16, 2)
    model = nanode.TimeVarying(attention, nanode.Bucketed(3), start="untied")
    alpha = dict(model.trajectory.coefficients)
    assert torch.equal(alpha["out_proj.bias"], torch.zeros(3, 16))
    bound = math.sqrt(6 / (16 + 48))
    largest = alpha["in_proj_weight"].abs().amax(1)
    # The largest of n = 768 uniform draws is below 0.98 of the bound with probability 2e-7.
    assert (largest <= bound).all()
    assert (largest >= 0.98 * bound).all()
    assert not torch.equal(alpha["in_proj_weight"][1], alpha["in_proj_weight"][2])


def test_untied_leaves_the_module_as_it_was():
    module = nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3))
    x = torch.randn(2, 3)
    y = module(x)
    model = nanode.TimeVarying(module, nanode.Bucketed(4), start="untied")
    assert torch.equal(model(0.0, x), y)
    assert not torch.allclose(model(0.9, x), y)


def test_untied_weights_that_are_tied_in_the_module_stay_tied():
    module = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    module[1].weight = module[0].weight
    model = nanode.TimeVarying(module, nanode.Bucketed(4), start="untied")
    assert sorted(model.trajectory.shapes) == ["0.bias", "0.weight", "1.bias"]


@pytest.mark.parametrize("name", [name for name in EVERY if name not in LOCAL])
def test_untied_refuses_bases_whose_coefficients_are_no_weights(name):
    kind = type(make(name)).__name__
    with pytest.raises(ValueError, match=rf"Bucketed.*got {kind}; use Independent\(\)"):
        nanode.TimeVarying(nn.Linear(2, 2), make(name), start="untied")


def test_untied_refuses_draws_of_another_kind():
    start = nanode.Untied(lambda: nn.Linear(2, 2, bias=False))
    with pytest.raises(ValueError, match=r"without the parameters \['bias'\]"):
        nanode.TimeVarying(nn.Linear(2, 2), nanode.Bucketed(2), start=start)


def test_untied_refuses_modules_that_can_not_be_drawn_anew():
    class Scale(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(2))

        def forward(self, x):
            return self.scale * x

    module = nn.Sequential(nn.Linear(2, 2), Scale())
    before = {name: value.clone() for name, value in module.state_dict().items()}
    with pytest.raises(ValueError, match=r"1 has parameters but no reset_parameters.*Untied\(draw"):
        nanode.TimeVarying(module, nanode.Bucketed(2), start="untied")
    assert all(torch.equal(module.state_dict()[name], value) for name, value in before.items())


def test_a_start_of_ones_own():
    class Ramp(nanode.Start):
        def __call__(self, parameters, basis):
            rise = torch.arange(basis.size, dtype=torch.float64)
            return {
                name: rise.view(-1, *[1] * value.ndim) * value.detach()
                for name, value in parameters.items()
            }

    w = torch.randn(2, 3)
    path = nanode.Expansion({"w": w}, nanode.PiecewiseLinear(3), Ramp())
    torch.testing.assert_close(path(0.75)["w"], 1.5 * w, rtol=1e-15, atol=0)


# ---- precision


@pytest.mark.parametrize("start", [nanode.Held(), nanode.Noisy(), nanode.Independent()], ids=str)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.complex64])
def test_starts_follow_the_dtype(start, dtype):
    w = torch.randn(4, 4).to(dtype)
    path = nanode.Expansion({"w": w}, nanode.Chebyshev(2), start)
    assert path.coefficients.w.dtype == dtype
    assert path(0.5)["w"].dtype == dtype
    assert path(0.5)["w"].isfinite().all()


@pytest.mark.parametrize("name", SPLINES)
def test_stirring_moves(name):
    # The other files lean on ``stirred``.
    path = nanode.Expansion({"w": torch.zeros(2)}, make(name))
    assert stirred(path)(0.3)["w"].abs().min() > 1e-3
