"""Calls that users make on a whole model must reach a field inside it."""

import copy
import io
import pickle
from functools import partial

import pytest
import torch
from torch import nn

import nanode
from tests.fields.modules import MODULES, PICKLABLE, sample
from tests.trajectories.samples import step_stages, stirred


def network(**options):
    """A model with a field in it: convolutions, a norm, a bias left constant."""
    module = nn.Sequential(nn.GroupNorm(2, 4), nn.Tanh(), nn.Conv2d(4, 4, 3, padding=1))
    options = options or {"basis": nanode.RandomFourier(3, seed=1)}
    field = nanode.TimeVarying(module, overrides={"2.bias": None}, **options)
    return Model(stirred(field))


class Model(nn.Module):
    def __init__(self, field):
        super().__init__()
        self.stem, self.field = nn.Conv2d(2, 4, 1), field

    def forward(self, x, t=0.3):
        return self.field(t, self.stem(x))


IMAGE = (2, 2, 5, 5)
KINDS = [
    {"basis": nanode.RandomFourier(3, seed=1)},
    {"basis": nanode.Bucketed(3)},
    {"weights": partial(nanode.Hypernetwork, embedding=2, residual=False)},
]


IDS = ["random_fourier", "bucketed", "hypernetwork"]


@pytest.fixture(params=KINDS, ids=IDS)
def model(request):
    return network(**copy.deepcopy(request.param))


def saved(thing):
    buffer = io.BytesIO()
    torch.save(thing, buffer)
    buffer.seek(0)
    return buffer


# ---- dtype, device, layout


@pytest.mark.parametrize(
    ("dtype", "cast", "tolerance"),
    [
        # Some rounding steps of values of order 1: an ulp is 1e-3, 8e-3 and 1e-7.
        (torch.float16, lambda m: m.half(), 3e-2),
        (torch.bfloat16, lambda m: m.bfloat16(), 0.25),
        (torch.float32, lambda m: m.float(), 1e-5),
        (torch.float32, lambda m: m.to("cpu", torch.float32), 1e-5),
    ],
    ids=["half", "bfloat16", "float", "to"],
)
def test_casts(model, dtype, cast, tolerance):
    x = torch.randn(IMAGE)
    expected = model(x)
    cast(model)
    assert {p.dtype for p in model.parameters()} == {dtype}
    got = model(x.to(dtype))
    assert got.dtype == dtype
    torch.testing.assert_close(got.double(), expected, rtol=tolerance, atol=tolerance)
    table = model.field.weights(step_stages(3))
    assert {w.dtype for w in (*table.moving.values(), *table.constant.values())} == {dtype}
    model.double()
    again = model(x)
    torch.testing.assert_close(again, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    "options", [{"basis": nanode.Legendre(2)}, *KINDS[1:]], ids=["legendre", *IDS[1:]]
)
def test_meta(options):
    model = network(**copy.deepcopy(options)).to("meta")
    assert all(p.is_meta for p in model.parameters())
    y = model(torch.empty(IMAGE, device="meta"))
    assert y.is_meta
    assert y.shape == (2, 4, 5, 5)
    table = model.field.weights(step_stages(3)).moving["2.weight"]
    assert table.is_meta
    assert table.shape == (3, 4, 4, 3, 3)


def test_from_meta(model):
    state = copy.deepcopy(model.state_dict())
    x = torch.randn(IMAGE)
    expected = model(x)
    model.to("meta").to_empty(device="cpu")
    model.load_state_dict(state)
    assert torch.equal(model(x), expected)


def test_channels_last(model):
    x = torch.randn(IMAGE)
    expected = model(x)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    model.to(memory_format=torch.channels_last)
    for name, p in model.named_parameters():
        assert torch.equal(p, before[name])
        assert p.shape == before[name].shape
    got = model(x.to(memory_format=torch.channels_last))
    # Another convolution kernel, which sums 36 products in another order.
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)


def test_channels_last_keeps_constant_convolutions():
    module = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1))
    field = nanode.TimeVarying(module, nanode.Legendre(2), overrides={"0": None})
    x = torch.randn(1, 4, 5, 5)
    expected = field(0.2, x)
    field.to(memory_format=torch.channels_last)
    assert field.module[0].weight.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(field(0.2, x), expected, rtol=1e-12, atol=1e-12)


def test_three_dimensional_kernels_survive_channels_last():
    # Coefficients of rank 5 or 6 would make torch raise, or be permuted.
    module = nn.Sequential(nn.Conv1d(2, 2, 3, padding=1), nn.Unflatten(2, (5, 1, 1)))
    module.append(nn.Conv3d(2, 2, 1))
    field = stirred(nanode.TimeVarying(module, nanode.Trigonometric(2)))
    x = torch.randn(1, 2, 5)
    expected = field(0.2, x)
    field.to(memory_format=torch.channels_last)
    torch.testing.assert_close(field(0.2, x), expected, rtol=1e-12, atol=1e-12)


# ---- copies


def test_deepcopies_are_independent(model):
    x = torch.randn(IMAGE)
    expected = model(x)
    other = copy.deepcopy(model)
    assert torch.equal(other(x), expected)
    own = {id(p) for p in model.parameters()}
    assert not any(id(p) in own for p in other.parameters())
    stirred(other, seed=3)
    assert not torch.allclose(other(x), expected)
    assert torch.equal(model(x), expected)
    stirred(model, seed=3)
    assert torch.equal(model(x), other(x))


@pytest.mark.parametrize("kind", MODULES)
def test_every_module_copies(kind):
    module, x = sample(kind)
    field = stirred(nanode.TimeVarying(module, nanode.Legendre(2)))
    expected = field(0.3, x)
    other = copy.deepcopy(field)
    assert torch.equal(other(0.3, x), expected)
    stirred(other)
    assert not torch.allclose(other(0.3, x), expected)
    assert torch.equal(field(0.3, x), expected)


@pytest.mark.parametrize("kind", PICKLABLE)
def test_every_module_pickles(kind):
    module, x = sample(kind)
    field = stirred(nanode.TimeVarying(module, nanode.Legendre(2)))
    expected = field(0.3, x)
    for other in (
        pickle.loads(pickle.dumps(field)),
        torch.load(saved(field), weights_only=False),
    ):
        assert torch.equal(other(0.3, x), expected)
        stirred(other)
        assert not torch.allclose(other(0.3, x), expected)


def test_whole_models_pickle(model):
    x = torch.randn(IMAGE)
    expected = model(x)
    assert torch.equal(pickle.loads(pickle.dumps(model))(x), expected)
    assert torch.equal(torch.load(saved(model), weights_only=False)(x), expected)


# ---- state dicts


def test_state_dict_keys_show_the_wrapped_path():
    keys = {name: tuple(value.shape) for name, value in network().state_dict().items()}
    assert keys == {
        "stem.weight": (4, 2, 1, 1),
        "stem.bias": (4,),
        "field.trajectory.basis.frequencies": (3,),
        "field.trajectory.basis.phases": (3,),
        "field.trajectory.coefficients.0.weight": (4, 4),
        "field.trajectory.coefficients.0.bias": (4, 4),
        "field.trajectory.coefficients.2.weight": (4, 144),
        "field.module.2.bias": (4,),
    }


def test_state_dict_keys_of_several_trajectories():
    module = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2))
    field = nanode.TimeVarying(
        module,
        nanode.Legendre(2),
        overrides={"0.bias": partial(nanode.Hypernetwork, embedding=2, hidden=(5,))},
    )
    keys = {name: tuple(value.shape) for name, value in field.state_dict().items()}
    assert keys == {
        "trajectory.parts.0.coefficients.0.weight": (3, 6),
        "trajectory.parts.0.coefficients.1.weight": (3, 6),
        "trajectory.parts.0.coefficients.1.bias": (3, 2),
        "trajectory.parts.1.mean": (1,),
        "trajectory.parts.1.spread": (1,),
        "trajectory.parts.1.embeddings.0.bias": (2, 3),
        "trajectory.parts.1.layers.0.weight": (5, 3),
        "trajectory.parts.1.layers.0.bias": (5,),
        "trajectory.parts.1.layers.1.weight": (1, 5),
        "trajectory.parts.1.layers.1.bias": (1,),
    }


def test_state_dict_keys_of_other_fields():
    appended = nanode.TimeAppended(nn.Sequential(nn.Linear(2, 2), nn.Tanh()))
    assert list(appended.state_dict()) == [
        "module.0.time_weight",
        "module.0.layer.weight",
        "module.0.layer.bias",
    ]
    gated = nanode.Gated([nn.Linear(2, 2), nanode.TimeVarying(nn.PReLU(), nanode.Constant())])
    assert list(gated.state_dict()) == [
        "fields.0.module.weight",
        "fields.0.module.bias",
        "fields.1.trajectory.coefficients.weight",
        "gates.coefficients.logits",
    ]
    assert list(nanode.Autonomous(nn.PReLU()).state_dict()) == ["module.weight"]


@pytest.mark.parametrize("assign", [False, True])
def test_state_dict_round_trip(model, assign):
    x = torch.randn(IMAGE)
    expected = model(x)
    state = torch.load(saved(model.state_dict()), weights_only=True)
    other = stirred(copy.deepcopy(model), seed=5)
    assert not torch.allclose(other(x), expected)
    report = other.load_state_dict(state, assign=assign)
    assert not report.missing_keys
    assert not report.unexpected_keys
    assert torch.equal(other(x), expected)


@pytest.mark.parametrize("kind", MODULES)
def test_every_module_round_trips(kind):
    module, x = sample(kind)
    twin = copy.deepcopy(module)
    field = stirred(nanode.TimeVarying(module, nanode.Legendre(2)))
    other = nanode.TimeVarying(twin, nanode.Legendre(2))
    expected = field(0.3, x)
    assert not torch.allclose(other(0.3, x), expected)
    other.load_state_dict(torch.load(saved(field.state_dict()), weights_only=True))
    assert torch.equal(other(0.3, x), expected)


def test_random_features_travel_with_the_state():
    one, other = (network(basis=nanode.RandomFourier(3, seed=seed)) for seed in (1, 2))
    other.load_state_dict(one.state_dict())
    x = torch.randn(IMAGE)
    assert torch.equal(other(x), one(x))
    stages = step_stages(3)
    got, expected = (m.field.weights(stages).moving["2.weight"] for m in (other, one))
    assert torch.equal(got, expected)


# ---- training


def test_requires_grad(model):
    model.requires_grad_(False)
    assert not any(p.requires_grad for p in model.parameters())
    assert not model(torch.randn(IMAGE)).requires_grad
    model.requires_grad_(True)
    model(torch.randn(IMAGE)).sum().backward()
    # The bucketed basis leaves no weight out either: the gradient is there, zero in other buckets.
    assert all(p.grad is not None for p in model.parameters())


def test_weight_decay_by_name():
    model = network()
    groups = {True: [], False: []}
    for name, p in model.named_parameters():
        groups[name.endswith("weight") and ".0." not in name].append(p)
    assert len(groups[True]) == 2  # the stem's and the field's convolution
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimiser = torch.optim.SGD(
        [{"params": groups[True], "weight_decay": 0.1}, {"params": groups[False]}], lr=1.0
    )
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    optimiser.step()
    for name, p in model.named_parameters():
        factor = 0.9 if name in ("stem.weight", "field.trajectory.coefficients.2.weight") else 1.0
        torch.testing.assert_close(p.detach(), factor * before[name], rtol=1e-15, atol=0)


def test_functional_call(model):
    x = torch.randn(IMAGE)
    other = stirred(copy.deepcopy(model), seed=5)
    before, expected = model(x), other(x)
    given = {name: p.detach().clone().requires_grad_() for name, p in other.named_parameters()}
    got = torch.func.functional_call(model, given, (x,))
    assert torch.equal(got, expected)
    assert torch.equal(model(x), before)
    upstream = torch.randn_like(got)
    grads = torch.autograd.grad(got, [*given.values()], upstream)
    wanted = torch.autograd.grad(expected, [*other.parameters()], upstream)
    assert all(torch.equal(a, b) for a, b in zip(grads, wanted, strict=True))


def test_an_optimiser_step_changes_the_next_call():
    model = network()
    x = torch.randn(IMAGE)
    stages = step_stages(3)
    y, table = model(x), model.field.weights(stages).moving["2.weight"]
    (y.square().sum() + table.square().sum()).backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    assert not torch.allclose(model(x), y)
    assert not torch.allclose(model.field.weights(stages).moving["2.weight"], table)


def test_prints(model):
    assert "TimeVarying" in repr(model)
    assert "GroupNorm(2, 4" in repr(model)
