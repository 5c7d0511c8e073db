"""Residual layers as a flow compute what they did, and come back as they were."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

import nanode

DOUBLE = torch.float64


class Guided(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 3)

    def forward(self, x, context):
        return torch.tanh(self.inner(x) + context)


MAKES = {
    "linear": lambda: nn.Linear(3, 3),
    "norms": lambda: nn.Sequential(
        nn.BatchNorm1d(3), nn.ReLU(), nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)
    ),
    "norm alone": lambda: nn.BatchNorm1d(3),
    "parametrised": lambda: parametrizations.weight_norm(nn.Linear(3, 3)),
}


def stack(make, count=4):
    """Layers whose norms have seen different batches."""
    torch.manual_seed(0)
    layers = [make().to(DOUBLE) for _ in range(count)]
    for k, layer in enumerate(layers):
        for _ in range(2):
            layer((k + 1) * torch.randn(16, 3, dtype=DOUBLE) + k)
    return layers


def residual(layers, x, *conditioning):
    for layer in layers:
        x = x + layer(x, *conditioning)
    return x


@pytest.fixture
def x():
    return torch.randn(6, 3, dtype=DOUBLE, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("count", [1, 4])
@pytest.mark.parametrize("make", MAKES.values(), ids=MAKES)
def test_a_flow_computes_what_the_layers_do(make, count, training, x):
    layers = [layer.train(training) for layer in stack(make, count)]
    expected = residual(copy.deepcopy(layers), x)
    flow = nanode.from_layers(layers)
    assert torch.allclose(flow(x), expected, rtol=1e-12, atol=1e-12)
    for own in (*flow.parameters(), *flow.buffers()):
        own.data.zero_()
    assert torch.equal(residual(layers, x), expected)  # nothing is shared


@pytest.mark.parametrize("method", [nanode.Backprop(), nanode.Checkpointed()])
def test_gradients_are_those_of_the_layers(method, x):
    layers = stack(MAKES["norms"])
    flow = nanode.from_layers(layers, gradient=method)
    cotangent = torch.randn(x.shape, dtype=DOUBLE, generator=torch.Generator().manual_seed(2))
    flow(x).backward(cotangent)
    residual(layers, x).backward(cotangent)
    found = flow.field.trajectory.coefficients
    for name, _ in layers[0].named_parameters():
        expected = torch.stack([dict(layer.named_parameters())[name].grad for layer in layers])
        assert torch.allclose(found[name].grad, expected.flatten(1), rtol=1e-9, atol=1e-12), name
        assert expected.abs().max() > 0


def test_statistics_go_on_from_those_of_each_layer(x):
    layers = stack(MAKES["norms"])
    flow = nanode.from_layers(layers)
    residual(layers, x)
    flow(x)
    for k, layer in enumerate(layers):
        for i in (0, 3):
            norm = flow.field.module[i]
            assert torch.allclose(norm.running_mean[k], layer[i].running_mean, atol=1e-12)
            assert torch.allclose(norm.running_var[k], layer[i].running_var, atol=1e-12)


@pytest.mark.parametrize("make", MAKES.values(), ids=MAKES)
def test_there_and_back(make, x):
    layers = [layer.eval() for layer in stack(make)]
    written = nanode.materialise(nanode.from_layers(layers))
    assert len(written.evaluations) == len(layers)
    for layer, evaluation in zip(layers, written.evaluations, strict=True):
        assert torch.equal(evaluation(x), layer(x))
    again = nanode.from_layers(written.evaluations)
    assert torch.allclose(again(x), residual(layers, x), rtol=1e-12, atol=1e-12)


def test_further_inputs_and_modes(x):
    torch.manual_seed(0)
    layers = [Guided().to(DOUBLE) for _ in range(3)]
    flow = nanode.from_layers(iter(layers))
    assert torch.allclose(flow(x, context=x), residual(layers, x, x), rtol=1e-12)
    layers = stack(MAKES["norms"])
    for layer in layers:
        layer[3].eval()  # frozen statistics in a layer that is trained
    flow = nanode.from_layers(layers)
    assert flow.training
    assert [flow.field.module[i].training for i in (0, 3)] == [True, False]
    assert torch.allclose(flow(x), residual(layers, x), rtol=1e-12)


def frozen():
    layer = nn.Linear(3, 3)
    layer.weight.requires_grad_(False)
    return layer


def masked(mask, name="mask"):
    layer = nn.Sequential(nn.Linear(3, 3))
    layer.register_buffer(name, None if mask is None else torch.tensor(mask))
    return layer


def repeated(*places):
    """Two linear layers, in these places."""
    parts = [nn.Linear(3, 3), nn.Linear(3, 3)]
    return nn.Sequential(*(parts[i] for i in places))


def tied(*places):
    """Three layers, some with the first one's weight."""
    parts = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3))
    for i in places:
        parts[i].weight = parts[0].weight
    return parts


def named(*names):
    layer = nn.ModuleDict({name: nn.Tanh() for name in names})
    layer["linear"] = nn.Linear(3, 3)
    return layer


def hooked(before=False):
    layer = nn.Linear(3, 3)
    if before:
        layer.register_forward_pre_hook(lambda module, inputs: (2 * inputs[0],))
    else:
        layer.register_forward_hook(lambda module, inputs, output: 2 * output)
    return layer


def encoder(**settings):
    return nn.TransformerEncoderLayer(4, 2, 8, **settings)


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ([], "at least one"),
        ([torch.tanh], "takes the modules"),
        (nn.Linear(3, 3), "takes the modules"),
        ([nn.Tanh(), nn.Tanh()], "Tanh has no parameters"),
        ([nn.Linear(3, 3), nn.Linear(3, 4)], r"layer 1 has Linear\(.*out_features=4.* first has L"),
        ([nn.Linear(3, 3), nn.Linear(3, 3, bias=False)], "layer 1 has Linear"),
        ([nn.Sequential(nn.Tanh()), nn.Sequential(nn.ReLU())], r"ReLU\(\) where .* Tanh\(\) \(0\)"),
        ([nn.Sequential(nn.Tanh()), nn.Sequential(nn.Tanh(), nn.Tanh())], "layer 1 has Tanh"),
        ([nn.Sequential(nn.Tanh(), nn.Tanh()), nn.Sequential(nn.Tanh())], "None where the first"),
        ([nn.Linear(3, 3), frozen()], "others that are frozen"),
        ([masked([1.0]), masked([1.0]), masked([2.0])], "layer 2 has another buffer 'mask'"),
        ([masked([1.0]), masked(None)], "layer 1 has another buffer 'mask'"),
        ([masked(None), masked([1.0])], "layer 1 has another buffer 'mask'"),
        ([masked([0.0]), masked([False])], "layer 1 has another buffer 'mask'"),
        # Statistics are the norms' own; others are buffers like any.
        ([masked([k], "running_mean") for k in (1.0, 2.0)], "another buffer 'running_mean'"),
        ([nn.BatchNorm1d(3), nn.BatchNorm1d(3, eps=0.1)], "BatchNorm with eps=0.1 where .* 1e-05"),
        ([nn.BatchNorm1d(3), nn.BatchNorm1d(3, momentum=0.2)], "with momentum=0.2 where .* 0.1"),
        ([nn.MultiheadAttention(4, heads) for heads in (1, 2)], "num_heads=2 where the first has"),
        ([encoder(), encoder(norm_first=True)], "norm_first=True where the first has False"),
        ([encoder(), encoder(activation="gelu")], "layer 1 has TransformerEncoderLayer with"),
        ([nn.Linear(3, 3), nn.Linear(3, 3).eval()], "Linear in eval mode where .* train mode"),
        ([nn.Linear(3, 3), hooked()], "layer 1 has Linear with hooks=1 where the first has 0"),
        ([nn.Linear(3, 3), hooked(before=True)], "layer 1 has Linear with hooks=1 where"),
        ([repeated(0, 1, 0), repeated(0, 1, 1)], "parts that are shared in other places"),
        ([tied(1), tied(2)], "layer 1 has parameters that are shared in other places"),
        ([named("a", "b"), named("a", "c")], "a part 'c' where the first has 'b'"),
        ([nn.Linear(3, 3), nn.Linear(3, 3).double()], "shapes or dtypes"),
        ([nn.LazyLinear(3), nn.LazyLinear(3)], "weight has no shape yet"),
    ],
)
def test_layers_of_several_kinds_are_refused(layers, message):
    with pytest.raises(ValueError, match=message):
        nanode.from_layers(layers)


def test_layers_with_this_packages_own_norms(x):
    """Such as have seen nothing yet, and those that convert_norms makes."""
    for make in (lambda: nanode.BatchNorm(3), lambda: nanode.convert_norms(nn.BatchNorm1d(3))):
        layers = [nn.Sequential(make(), nn.Linear(3, 3)).to(DOUBLE) for _ in range(3)]
        expected = residual(copy.deepcopy(layers), x)
        flow = nanode.from_layers(layers)
        assert torch.allclose(flow(x), expected, rtol=1e-12)
        norm = flow.field.module[0]
        assert norm.running_mean.shape == (3, 3)
        assert norm.running_mean.abs().amin(1).all()  # each moved once
    # Evaluated, norms that have seen nothing have the statistics that torch's begin with.
    layers = [
        nn.Sequential(nanode.BatchNorm(3), nn.Linear(3, 3)).to(DOUBLE).eval() for _ in range(3)
    ]
    flow = nanode.from_layers(layers)
    assert not any((flow.training, flow.field.training, flow.field.module.training))
    plain = [nn.Sequential(nn.BatchNorm1d(3).to(DOUBLE).eval(), layer[1]) for layer in layers]
    assert torch.allclose(flow(x), residual(plain, x), rtol=1e-12)
    # Nor is it a difference that the statistics of one were reset.
    for norm, _ in layers:
        nanode.odeint(nanode.Autonomous(norm.train()), x, steps=1)
        norm.eval()
    layers[0][0].reset_running_stats()
    nanode.from_layers(layers)
    several = nanode.BatchNorm(3)
    several.prepare((0.0, 0.5))
    with pytest.raises(ValueError, match="statistics of 2 evaluations"):
        nanode.from_layers([nn.Sequential(several, nn.Linear(3, 3))])


class Timed(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 3)

    def forward(self, t, x):
        return t * self.inner(x)


def test_layers_written_out_for_a_time(x):
    """They are a flow again at these times alone, and where the flow can tell them the time."""

    def evaluations(field, steps=4, **settings):
        block = nanode.ODEBlock(field.to(DOUBLE), steps, **settings)
        return nanode.materialise(block).evaluations

    appended = evaluations(nanode.TimeAppended(nn.Linear(3, 3)))
    expected = residual(appended, x)
    assert torch.allclose(nanode.from_layers(appended)(x), expected, rtol=1e-12)
    elsewhere = evaluations(nanode.TimeAppended(nn.Linear(3, 3)), interval=(0, 2))
    with pytest.raises(ValueError, match=r"for the time 0\.5, which would be 0\.25 in"):
        nanode.from_layers(elsewhere)
    timed = nanode.TimeVarying(Timed(), nanode.Bucketed(4), takes_time=True)
    with pytest.raises(ValueError, match=r"AtTime with time=0.25 where the first has 0\.0"):
        nanode.from_layers(evaluations(timed))
