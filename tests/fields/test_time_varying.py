"""TimeVarying: any module, its weights functions of time."""

import copy
import itertools
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

import nanode
from nanode.fields import Weights
from nanode.stages import Stage
from tests.fields.modules import MODULES, as_function, sample
from tests.trajectories.samples import EVERY, SPLINES, make, step_stages, stirred


@pytest.fixture(params=MODULES)
def kind(request):
    return request.param


# ---- the limit: a module that does not move


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_a_constant_basis_is_the_module(kind, training):
    module, x = sample(kind)
    module.train(training)
    alone = copy.deepcopy(module)
    # Without grad, weights are results that don't require it. torch chooses between two ways of
    # multiplying by that flag, which differ by an ulp: so must the module to compare with.
    frozen = copy.deepcopy(module).requires_grad_(False)
    field = nanode.TimeVarying(module, nanode.Constant())
    for t in (0.0, 0.3, 1.0, torch.tensor(0.7)):
        assert torch.equal(field(t, x), alone(x))
        with torch.no_grad():  # attention takes its fast path here
            assert torch.equal(field(t, x), frozen(x))


def test_torch_s_cache_of_parametrised_weights_is_not_asked():
    """It holds one weight, where each evaluation has its own."""
    layer = nn.utils.parametrizations.weight_norm(nn.Linear(3, 3)).double()
    field = nanode.TimeVarying(layer, nanode.Legendre(2), start=nanode.Noisy(0.5))
    for gradient in (nanode.Backprop(), nanode.Checkpointed()):
        block = nanode.ODEBlock(field, 5, gradient=gradient)
        x = torch.randn(2, 3, dtype=torch.float64)
        y = block(x)
        expected = torch.autograd.grad(y.sum(), list(block.parameters()))
        with nn.utils.parametrize.cached():
            z = block(x)
            found = torch.autograd.grad(z.sum(), list(block.parameters()))
        assert torch.equal(y, z)
        assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))


@pytest.mark.parametrize(
    "wrap",
    [
        nanode.Autonomous,
        lambda m: nanode.TimeVarying(m, nanode.Legendre(1), overrides={"0.*": None}),
    ],
)
@pytest.mark.parametrize(
    "change",
    [
        lambda m: prune.l1_unstructured(m[0], "weight", 0.5),
        lambda m: nn.utils.parametrizations.weight_norm(m[0]),
        lambda m: setattr(m[0], "weight", None),
    ],
    ids=["pruned", "parametrised", "removed"],
)
def test_a_module_changed_after_it_was_wrapped_is_named(wrap, change):
    module = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))
    block = nanode.ODEBlock(wrap(module), 2)
    x = torch.randn(2, 3)
    block(x)
    change(module)
    with pytest.raises(RuntimeError, match=r"0\.weight is no parameter .* or wrap it again"):
        block(x)


def test_a_layer_put_in_the_place_of_one_whose_weights_move_is_named():
    field = nanode.TimeVarying(
        nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)),
        nanode.Legendre(1),
        overrides={"1": None},
    )
    x = torch.randn(2, 3)
    # One whose weights stay may be replaced.
    field.module[1] = nn.Identity()
    weights = field.weights_at(0.5)
    assert torch.allclose(field(0.5, x), x @ weights["0.weight"].T + weights["0.bias"])
    field.module[0] = nn.Linear(3, 3)
    with pytest.raises(RuntimeError, match=r"0\.weight is no parameter .* or wrap it again"):
        field(0.5, x)


@pytest.mark.parametrize(
    "compiled", [torch.jit.script, lambda m: torch.jit.trace(m, torch.ones(1, 3))]
)
@pytest.mark.parametrize(
    "wrap",
    [nanode.Autonomous, lambda m: nanode.TimeVarying(m, nanode.Legendre(1), overrides={"0": None})],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_layers_compiled_by_torchscript_stay_constant(compiled, wrap):
    inside = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
    expected = nn.Sequential(copy.deepcopy(inside), last := nn.Linear(3, 3))
    x = torch.randn(2, 3)
    y = expected(x)
    field = wrap(nn.Sequential(compiled(inside), last))
    assert torch.allclose(field(0.5, x), y)
    block = nanode.ODEBlock(field, 2, gradient=nanode.Checkpointed())
    block(x).sum().backward()
    assert all(p.grad is not None for p in block.parameters())


def test_another_module_in_its_place_is_named():
    field = nanode.TimeVarying(nn.Linear(3, 3), nanode.Legendre(1))
    field.module = nn.Linear(3, 3)
    with pytest.raises(RuntimeError, match=r"weight is no parameter .* or wrap it again"):
        nanode.materialise(nanode.ODEBlock(field, 2))


def test_a_weight_given_to_the_module_afterwards_is_named():
    field = nanode.TimeVarying(nn.Sequential(nn.Linear(3, 3)), nanode.Legendre(1))
    field.module[0].weight = nn.Parameter(torch.zeros(3, 3))
    with pytest.raises(RuntimeError, match=r"0\.weight was given to the module after it was wrap"):
        field(0.5, torch.randn(2, 3))


def test_a_layer_may_be_wrapped_by_another_that_has_it():
    class Adapted(nn.Module):
        def __init__(self, layer):
            super().__init__()
            self.layer, self.extra = layer, nn.Linear(3, 3, bias=False)

        def forward(self, x):
            return self.layer(x) + self.extra(x)

    field = nanode.TimeVarying(nn.Sequential(nn.Linear(3, 3)), nanode.Legendre(1))
    x = torch.randn(2, 3)
    before = field(0.5, x)
    field.module[0] = Adapted(field.module[0])
    assert torch.allclose(field(0.5, x), before + field.module[0].extra(x))
    with pytest.raises(ValueError, match=r"0\.weight isn't where it was .* another layer"):
        nanode.materialise(nanode.ODEBlock(field, 2))


def test_a_constant_basis_has_the_gradients_of_the_module(kind):
    module, x = sample(kind)
    alone = copy.deepcopy(module)
    field = nanode.TimeVarying(module, nanode.Constant())
    upstream = torch.randn_like(x)
    for model, y in ((alone, alone(x)), (field, field(0.4, x))):
        y.backward(upstream)
        assert all(p.grad is not None for p in model.parameters())
    expected = {name: p.grad for name, p in alone.named_parameters()}
    got = {name: alpha.grad for name, alpha in field.trajectory.coefficients}
    assert list(got) == list(expected)
    for name, grad in got.items():
        assert torch.equal(grad.view_as(expected[name]), expected[name])


@pytest.mark.parametrize("basis", EVERY)
def test_starts_as_the_module_at_every_time(kind, basis):
    module, x = sample(kind)
    y = module(x)
    field = nanode.TimeVarying(module, make(basis, (-1.0, 2.0)))
    for t in (-1.0, -0.25, 0.6, 2.0):
        if basis in SPLINES:
            # Weights are off by an ulp or two; these modules amplify it less than 1e3 times.
            torch.testing.assert_close(field(t, x), y, rtol=1e-12, atol=1e-12)
        else:
            assert torch.equal(field(t, x), y)


# ---- the limit: one module per step


def test_one_bucket_per_step_is_separate_modules(kind):
    steps = 5
    own, x = sample(kind)
    others = [sample(kind)[0] for _ in range(steps - 1)]
    alone = [copy.deepcopy(module) for module in (own, *others)]
    start = nanode.Untied(partial(next, iter(others)))
    field = nanode.TimeVarying(own, nanode.Bucketed(steps), start=start)
    if kind == "orthogonal":
        # Its parametrization keeps a base point in a buffer, drawn for each module.
        for module in alone:
            next(module.buffers()).copy_(next(own.buffers()))
    stages = step_stages(steps)
    weights = field.weights(stages)
    rows = weights.rows(steps)
    outputs = []
    for k, (module, stage) in enumerate(zip(alone, stages, strict=True)):
        expected = module(x)
        outputs.append(expected)
        assert torch.equal(field(k / steps, x), expected)
        assert torch.equal(field.evaluate(weights.at(k), stage, x), expected)
        assert torch.equal(field.evaluate(rows[k], stage, x), expected)
    for a, b in itertools.pairwise(outputs):
        assert not torch.allclose(a, b)


def test_an_euler_loop_of_buckets_is_a_residual_network():
    steps = 4
    layers = [nn.Linear(3, 3) for _ in range(steps)]
    field = nanode.TimeVarying(
        copy.deepcopy(layers[0]),
        nanode.Bucketed(steps),
        start=nanode.Untied(partial(next, iter(copy.deepcopy(layers[1:])))),
    )
    x = y = torch.randn(2, 3)
    for layer in layers:
        x = x + layer(x)
    for row, stage in zip(field.weights(s := step_stages(steps)).rows(steps), s, strict=True):
        y = y + field.evaluate(row, stage, y)
    assert torch.equal(x, y)


# ---- values and gradients


def test_moves_as_its_trajectory_says(kind):
    module, x = sample(kind)
    alone = copy.deepcopy(module)
    field = stirred(nanode.TimeVarying(module, nanode.Chebyshev(2)))
    alphas = dict(field.trajectory.coefficients)
    for t in (0.0, 0.3, 0.9):
        s = 2 * t - 1
        with torch.no_grad():
            for name, p in alone.named_parameters():
                a = alphas[name]
                p.copy_((a[0] + s * a[1] + (2 * s * s - 1) * a[2]).view_as(p))
            expected = alone(x)
        # Weights within some ulps of each other.
        torch.testing.assert_close(field(t, x), expected, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("basis", EVERY)
def test_gradients_in_everything(basis):
    module = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 2, bias=False))
    field = stirred(nanode.TimeVarying(module, make(basis), overrides={"0.bias": None}))
    f, leaves = as_function(field, torch.randn(2, 2))
    assert len(leaves) == 2 + 3
    torch.autograd.gradcheck(f, leaves)
    if basis == "legendre":
        torch.autograd.gradgradcheck(f, leaves)


@pytest.mark.parametrize("kind_", ["attention", "lstm", "conv2d", "weight_norm"])
def test_gradients_through_other_layers(kind_):
    module, x = sample(kind_)
    field = stirred(nanode.TimeVarying(module, nanode.Trigonometric(1)), size=0.1)
    # fast_mode: directional derivatives, since these modules have hundreds of weights.
    torch.autograd.gradcheck(*as_function(field, x[:1]), fast_mode=True, atol=1e-4)


def test_conditioning_is_passed_on():
    class Sum(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 3)

        def forward(self, x, c, d):
            return self.linear(x) + c * d["more"]

    module = Sum()
    alone = copy.deepcopy(module)
    x, c, d = torch.randn(2, 3), torch.randn(3), {"more": torch.tensor(2.0)}
    assert torch.equal(nanode.TimeVarying(module, nanode.Legendre(2))(0.1, x, c, d), alone(x, c, d))


def test_states_of_any_structure():
    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 3)

        def forward(self, x):
            a, b = x
            return self.linear(b), -a

    module = Pair()
    alone = copy.deepcopy(module)
    x = (torch.randn(2, 3), torch.randn(2, 3))
    got = nanode.TimeVarying(module, nanode.Legendre(2))(0.1, x)
    assert all(torch.equal(a, b) for a, b in zip(got, alone(x), strict=True))


def test_outside_the_interval_formulas_extrapolate_and_pieces_hold():
    x = torch.eye(2)
    smooth = stirred(nanode.TimeVarying(nn.Linear(2, 2, bias=False), nanode.Monomial(1)))
    a, b = (alpha.view(2, 2) for alpha in smooth.trajectory.coefficients.weight)
    torch.testing.assert_close(smooth(1.5, x), (a + 1.5 * b).T, rtol=1e-14, atol=1e-14)
    for basis in (nanode.Bucketed(3), nanode.PiecewiseLinear(3), nanode.BSpline(3)):
        field = stirred(nanode.TimeVarying(nn.Linear(2, 2, bias=False), basis))
        first, *_, last = (alpha.view(2, 2) for alpha in field.trajectory.coefficients.weight)
        torch.testing.assert_close(field(-0.5, x), first.T, rtol=1e-14, atol=1e-14)
        torch.testing.assert_close(field(1.5, x), last.T, rtol=1e-14, atol=1e-14)


def test_a_tensor_that_is_not_a_number_shows():
    field = nanode.TimeVarying(nn.Linear(2, 2), nanode.Constant())
    assert field(torch.tensor(float("nan")), torch.ones(2)).isnan().all()


# ---- the module is lent its weights


def test_the_module_is_taken_over():
    module = nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2))
    field = nanode.TimeVarying(module, nanode.Legendre(2), overrides={"1": None})
    assert field.module is module
    assert [name for name, _ in module.named_parameters()] == ["1.weight", "1.bias"]
    assert module[0].weight is None
    field(0.5, torch.ones(1, 2))
    assert module[0].weight is None
    assert isinstance(module[1].weight, nn.Parameter)


def test_a_module_that_raises_is_left_in_order():
    class Fails(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(2, 2), nn.Linear(2, 2)
            self.fail = True

        def forward(self, x):
            if self.fail:
                raise KeyError("mine")
            return self.b(self.a(x))

    field = nanode.TimeVarying(Fails(), nanode.Legendre(1), overrides={"b": None})
    before = field.module.b.weight
    weights = {name: torch.zeros_like(w) for name, w in field.weights_at(0.5).items()}
    with pytest.raises(KeyError, match="mine"):  # the user's own, not replaced
        field.evaluate(weights, Stage.alone(0.5), torch.ones(2))
    assert field.module.a.weight is None
    assert field.module.b.weight is before
    field.module.fail = False
    assert field(0.5, torch.ones(2)).abs().max() > 0


def test_weights_that_are_missing_change_nothing():
    field = nanode.TimeVarying(
        nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), nanode.Legendre(1), overrides={"0": None}
    )
    before = field.module[0].weight
    weights = {name: w + 1 for name, w in field.weights_at(0.5).items()}
    del weights["1.bias"]
    with pytest.raises(KeyError, match=r"1\.bias"):
        field.evaluate(weights, Stage.alone(0.5), torch.ones(2))
    assert field.module[0].weight is before


def test_lent_parameters_do_not_settle_in():
    # Weights that are parameters themselves must not register in the module.
    own, other = nn.Linear(2, 2), nn.Linear(2, 2)
    field = nanode.TimeVarying(own, nanode.Legendre(1))
    x = torch.randn(3, 2)
    lent = dict(other.named_parameters())
    assert torch.equal(field.evaluate(lent, Stage.alone(0.0), x), other(x))
    assert [name for name, _ in field.named_parameters()] == [
        "trajectory.coefficients.weight",
        "trajectory.coefficients.bias",
    ]
    assert sorted(field.weights_at(0.1)) == ["bias", "weight"]


def test_weights_separate_what_moves_from_what_does_not():
    field = nanode.TimeVarying(nn.Linear(2, 2), nanode.Legendre(2), overrides={"bias": None})
    weights = field.weights(step_stages(3))
    assert isinstance(weights, Weights)
    assert {name: w.shape for name, w in weights.moving.items()} == {"weight": (3, 2, 2)}
    assert list(weights.constant) == ["bias"]
    assert weights.constant["bias"] is field.module.bias
    assert sorted(weights.at(2)) == ["bias", "weight"]


def test_repeating_a_call_changes_no_buffer():
    module, x = sample("buffered")
    field = nanode.TimeVarying(module, nanode.Trigonometric(2))
    before = {name: b.clone() for name, b in field.named_buffers()}
    field(0.2, x)
    assert [*before] == ["module.mask", "module.count"]
    assert all(torch.equal(b, before[name]) for name, b in field.named_buffers())
