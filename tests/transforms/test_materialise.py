"""A block as ordinary modules computes what the block does."""

import copy
import gc
import io
import weakref

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune

import nanode

DOUBLE = torch.float64
SOLVERS = [
    nanode.Euler(),
    nanode.Heun(),
    nanode.RK4(),
    nanode.Leapfrog(),
    nanode.ReversibleHeun(),
    nanode.Coupled(nanode.Midpoint()),
]


def network():
    torch.manual_seed(0)
    return nn.Sequential(
        nanode.BatchNorm(3), nn.Tanh(), nn.Conv1d(3, 3, 3, padding=1), nn.Dropout(0.0)
    ).to(DOUBLE)


FIELDS = {
    "moving": lambda: nanode.TimeVarying(network(), nanode.Legendre(2), start=nanode.Noisy(0.5)),
    "some": lambda: nanode.TimeVarying(
        network(), nanode.Bucketed(4), start=nanode.Noisy(0.5), overrides={"0": None}
    ),
    "constant": lambda: nanode.Autonomous(network()),
    "appended": lambda: nanode.TimeAppended(network()),
    "gated": lambda: nanode.Gated([network(), network()]),
    "recurrent": lambda: nanode.TimeVarying(Recurrent().to(DOUBLE), nanode.Legendre(1)),
    "function": lambda: nanode.Callback(lambda t, x: t * x.sin()),
}


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.LSTM(5, 5, batch_first=True)

    def forward(self, x):
        return self.layer(x)[0]


@pytest.mark.filterwarnings("ignore:the weights jump")  # slopes that are carried over
@pytest.mark.parametrize("solver", SOLVERS, ids=repr)
@pytest.mark.parametrize("kind", FIELDS)
def test_it_computes_what_the_block_does(kind, solver):
    block = nanode.ODEBlock(FIELDS[kind](), 4, solver, scale=1.5)
    x = torch.randn(4, 3, 5, dtype=DOUBLE)
    block(x)  # statistics that aren't zeros and ones
    plain = nanode.materialise(block)
    assert torch.equal(plain(x), block(x))
    block.eval()
    assert (nanode.materialise(block)(x) - block(x)).abs().max() < 1e-13
    # Each has moved its own statistics in the same way.
    assert (plain.eval()(x) - block(x)).abs().max() < 1e-13


def test_what_moves_is_independent_and_what_is_constant_is_shared():
    block = nanode.ODEBlock(FIELDS["some"](), 4)
    plain, x = nanode.materialise(block), torch.randn(4, 3, 5, dtype=DOUBLE)
    # Kernel and bias of four evaluations, and one norm.
    assert sum(p.numel() for p in plain.parameters()) == 4 * (27 + 3) + 6
    assert not {id(p) for p in plain.parameters()} & {id(p) for p in block.parameters()}
    plain(x).square().sum().backward()
    block(x).square().sum().backward()
    ours = torch.stack([e[2].weight.grad.flatten() for e in plain.evaluations])
    # With a bucket an evaluation each coefficient is a weight.
    theirs = block.field.trajectory.coefficients.get_submodule("2").weight.grad
    assert (ours - theirs).abs().max() < 1e-13
    shared = plain.evaluations[0][0].weight
    assert all(e[0].weight is shared for e in plain.evaluations)
    assert (shared.grad - block.field.module[0].weight.grad).abs().max() < 1e-13


@pytest.mark.parametrize("kind", ["moving", "some", "constant"])
def test_frozen_weights_stay_frozen(kind):
    field = FIELDS[kind]().requires_grad_(False)
    plain = nanode.materialise(nanode.ODEBlock(field, 2))
    assert not any(p.requires_grad for p in plain.parameters())


def test_frozen_gates_stay_frozen():
    field = nanode.Gated([nn.Linear(3, 3), nn.Linear(3, 3)])
    field.gates.requires_grad_(False)
    plain = nanode.materialise(nanode.ODEBlock(field, 2))
    assert [one.gates.requires_grad for one in plain.evaluations] == [False, False]


@pytest.mark.parametrize("training", [False, True])
def test_the_mode_is_the_blocks(training):
    block = nanode.ODEBlock(FIELDS["moving"](), 2).train(training)
    assert nanode.materialise(block).training is training


def test_weights_that_layers_share_are_one_in_each_evaluation():
    module = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))
    module[2].weight = module[0].weight
    block = nanode.ODEBlock(nanode.TimeVarying(module, nanode.Legendre(1)), 4)
    plain = nanode.materialise(block)
    assert all(e[0].weight is e[2].weight for e in plain.evaluations)
    # A shared weight and two biases.
    assert sum(p.numel() for p in plain.parameters()) == 4 * (9 + 3 + 3)


def test_nothing_of_the_block_is_kept():
    block = nanode.ODEBlock(nanode.TimeVarying(nn.Linear(3, 3), nanode.Legendre(2)), 4)
    x = torch.randn(2, 3)
    expected = block(x)
    basis = weakref.ref(block.field.trajectory.basis)
    plain = nanode.materialise(block)
    del block
    gc.collect()
    assert basis() is None
    assert torch.equal(plain(x), expected)


def test_other_evaluations_can_be_put_in_their_place():
    """One by one or all at once."""
    plain, x = nanode.materialise(nanode.ODEBlock(FIELDS["constant"](), 2)), torch.randn(2, 3)
    for layers in (nn.ModuleList([nn.Identity(), nn.Identity()]), nn.ModuleList([nn.Tanh()] * 2)):
        plain.evaluations = layers
        half = x + layers[0](x) / 2
        assert torch.equal(plain(x), half + layers[1](half) / 2)
    plain.evaluations[1] = nn.ReLU()
    half = x + x.tanh() / 2
    assert torch.equal(plain(x), half + half.relu() / 2)


def test_modes_are_those_of_the_parts():
    block = nanode.ODEBlock(FIELDS["moving"](), 2)
    block.field.module[0].eval()  # a norm that is frozen while the rest trains
    with torch.no_grad():
        plain = nanode.materialise(block)
    assert [e[0].training for e in plain.evaluations] == [False, False]
    assert all(e[3].training for e in plain.evaluations)
    assert plain.training
    assert all(p.requires_grad for p in plain.parameters())


def test_wanted_times_more_features_and_further_inputs():
    class Steered(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(5, 5)

        def forward(self, x, push):
            return torch.tanh(self.layer(x)) + push

    field = nanode.TimeVarying(Steered(), nanode.Legendre(1))
    block = nanode.ODEBlock(field, 4, augment=2, at=[0.0, 0.5, 1.0])
    plain = nanode.materialise(block)
    x, push = torch.randn(2, 3), torch.randn(2, 5)
    assert plain(x, push).shape == (3, 2, 5)
    assert torch.equal(plain(x, push), block(x, push))


def test_a_state_of_several_parts():
    block = nanode.ODEBlock(lambda t, x: {"a": x["b"], "b": -x["a"]}, 8, nanode.RK4())
    x = {"a": torch.ones(2), "b": torch.zeros(2)}
    found, expected = nanode.materialise(block)(x), block(x)
    assert torch.equal(found["a"], expected["a"])
    assert torch.equal(found["b"], expected["b"])


def test_parts_in_another_order():
    block = nanode.ODEBlock(lambda t, x: {"b": -x["a"], "a": x["b"]}, 8)
    x = {"a": torch.ones(2), "b": torch.zeros(2)}
    assert torch.equal(nanode.materialise(block)(x)["a"], block(x)["a"])


def test_what_a_block_refuses_is_refused():
    block = nanode.ODEBlock(nanode.Autonomous(nn.ReLU(inplace=True)), 2)
    with pytest.raises(ValueError, match="changed x in place"):
        nanode.materialise(block)(torch.randn(2, 3))


def test_compiled_as_a_whole():
    torch._dynamo.reset()
    plain, x = (
        nanode.materialise(nanode.ODEBlock(FIELDS["moving"](), 3)).eval(),
        torch.randn(4, 3, 5),
    )
    compiled = torch.compile(plain, fullgraph=True, backend="eager")
    assert torch.equal(compiled(x.double()), plain(x.double()))


def test_what_can_be_done_with_ordinary_modules():
    module = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6))
    block = nanode.ODEBlock(nanode.TimeVarying(module, nanode.Legendre(2)), 3)
    plain, x = nanode.materialise(block).eval(), torch.randn(2, 6)
    y = plain(x)
    file = io.BytesIO()
    torch.save(plain, file)
    file.seek(0)
    assert torch.equal(torch.load(file, weights_only=False)(x), y)
    assert torch.equal(copy.deepcopy(plain)(x), y)
    assert torch.equal(torch.export.export(plain, (x,)).module()(x), y)
    # Wrapped again, each evaluation a module like any other.
    again = nanode.TimeVarying(copy.deepcopy(plain.evaluations[0]), nanode.Legendre(1))
    assert torch.equal(again(0.0, x), plain.evaluations[0](x))
    prune.l1_unstructured(plain.evaluations[0][0], "weight", 0.5)
    assert (plain.evaluations[0][0].weight == 0).sum() == 18
    assert not torch.equal(plain(x), y)


def test_refuses():
    with pytest.raises(ValueError, match="takes an ODEBlock, got Linear"):
        nanode.materialise(nn.Linear(2, 2))
    adaptive = nanode.ODEBlock(lambda t, x: -x, solver=nanode.Adaptive())
    with pytest.raises(ValueError, match="no fixed evaluations"):
        nanode.materialise(adaptive)

    class Own(nanode.TimeVarying):
        def evaluate(self, weights, stage, x, *conditioning):
            return 2 * super().evaluate(weights, stage, x, *conditioning)

    with pytest.raises(ValueError, match="Own evaluates in a way of its own"):
        nanode.materialise(nanode.ODEBlock(Own(nn.Linear(2, 2), nanode.Legendre(1)), 2))


def test_parametrisations_are_removed_from_one_evaluation_alone():
    layer = parametrizations.weight_norm(nn.Linear(3, 3))
    field = nanode.TimeVarying(nn.Sequential(layer), nanode.Legendre(2), start=nanode.Noisy(0.1))
    block = nanode.ODEBlock(field, steps=3)
    plain, x = nanode.materialise(block), torch.randn(2, 3)
    for evaluation in plain.evaluations:
        parametrize.remove_parametrizations(evaluation[0], "weight")
        assert torch.allclose(plain(x), block(x), atol=1e-6)


class Timed(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, t, x):
        return torch.sin(t) + self.layer(x)


def _varying(module, **options):
    return nanode.TimeVarying(module, nanode.Bucketed(4), start=nanode.Independent(), **options)


@pytest.mark.parametrize(
    "make",
    [
        lambda: _varying(nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))),
        lambda: _varying(nn.Linear(3, 3), overrides={"bias": None}),
        lambda: _varying(Timed(), takes_time=True),
        lambda: nanode.Autonomous(nn.Linear(3, 3)),
        lambda: nanode.Gated([nn.Linear(3, 3), nn.Linear(3, 3)]),
        lambda: nanode.TimeAppended(nn.Linear(3, 3)),
    ],
)
@pytest.mark.parametrize(("t", "side"), [(0.3, "right"), (0.5, "right"), (0.5, "left")])
def test_a_module_at_a_time(make, t, side):
    field, x = make(), torch.randn(2, 3)
    module = nanode.module_at(field, t, side)
    stage = nanode.stages.Stage.alone(t, side)
    expected = field.evaluate(field.weights_at(t, side), stage, x)
    assert torch.equal(module(x), expected)
    before = expected.detach().clone()
    with torch.no_grad():
        for parameter in field.parameters():
            parameter.add_(1.0)
    assert torch.equal(module(x), before)  # copies
    assert torch.equal(nanode.module_at(nanode.ODEBlock(field, 4), t)(x), field(t, x))


def test_a_module_at_a_time_keeps_it_where_another_field_has_used_it():
    module, x = nanode.module_at(nanode.TimeAppended(nn.Linear(3, 3)), 0.4), torch.randn(2, 3)
    expected = module(x)
    nanode.Autonomous(module)(0.9, x)
    assert torch.equal(module(x), expected)


def test_a_parametrised_weight_at_a_time():
    layer = nn.Linear(3, 3)
    parametrize.register_parametrization(layer, "weight", nn.Softplus())
    field = _varying(layer)
    raw = field.weights_at(0.3)["parametrizations.weight.original"]
    found = nanode.module_at(field, 0.3).weight
    torch.testing.assert_close(found, nn.functional.softplus(raw))
    assert (found > 0).all()


def test_the_statistics_of_a_module_at_a_time():
    field = _varying(nn.Sequential(nanode.BatchNorm(3), nn.Linear(3, 3)))
    fresh = nanode.module_at(field, 0.3)[0]
    assert (fresh.running_mean == 0).all()
    assert (fresh.running_var == 1).all()
    block = nanode.ODEBlock(field, 4)
    for _ in range(20):
        block(torch.randn(8, 3) + 3)
    norm = field.module[0]
    assert torch.equal(nanode.module_at(block, 0.25)[0].running_mean, norm.running_mean[1])
    between = nanode.module_at(block, 0.375)[0].running_mean
    torch.testing.assert_close(between, norm.running_mean[1:3].mean(0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_statistics_of_a_plain_norm_hold_at_all_times(dtype):
    plain = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 3)).to(dtype)
    x = torch.randn(64, 3, dtype=dtype) + 2
    for _ in range(50):
        plain(x)
    plain.eval()
    expected = plain(x)
    field = nanode.TimeVarying(nanode.convert_norms(plain), nanode.Legendre(2)).eval()
    torch.testing.assert_close(nanode.module_at(field, 0.3)(x), expected)
    fresh = nanode.TimeVarying(nanode.BatchNorm(3).to(dtype), nanode.Legendre(2))
    assert nanode.module_at(fresh, 0.3)(x).dtype == dtype


def test_a_module_at_a_time_refuses():
    with pytest.raises(ValueError, match="takes a field or an ODEBlock, got Linear"):
        nanode.module_at(nn.Linear(3, 3), 0.3)
    with pytest.raises(ValueError, match="t must be"):
        nanode.module_at(nanode.Autonomous(nn.Linear(3, 3)), float("nan"))


def test_norms_while_new_tensors_go_elsewhere():
    module = nn.Sequential(nn.Linear(3, 3), nanode.BatchNorm(3))
    block = nanode.ODEBlock(nanode.TimeVarying(module, nanode.Legendre(2)), 4)
    x = torch.randn(5, 3)
    block(x)
    block.eval()
    with torch.device("meta"):
        plain = nanode.materialise(block)
    assert torch.equal(plain(x), block(x))
