"""TimeAppended against layers whose input has t as one more channel, literally appended.

Tolerance 1e-12: sums of at most 300 products of order 1, in another order.
"""

import copy

import pytest
import torch
from torch import nn

import nanode
from nanode.fields.time_appended import AppendedLayer
from tests.fields.modules import as_function
from tests.trajectories.samples import stirred

CLOSE = {"rtol": 1e-12, "atol": 1e-12}
TIMES = (0.0, 0.4, -1.3)

CONVOLUTIONS = [
    (nn.Conv1d, {}),
    (nn.Conv1d, {"padding": "same", "dilation": 2}),
    (nn.Conv2d, {}),
    (nn.Conv2d, {"stride": 2, "padding": 1}),
    (nn.Conv2d, {"padding": 2, "dilation": 2}),
    (nn.Conv2d, {"padding": 1, "groups": 2}),
    (nn.Conv2d, {"padding": (0, 2), "stride": (2, 1), "groups": 4, "bias": False}),
    (nn.Conv2d, {"padding": 1, "padding_mode": "circular"}),
    (nn.Conv2d, {"padding": 1, "padding_mode": "reflect", "groups": 2}),
    (nn.Conv2d, {"padding": 1, "padding_mode": "replicate"}),
    (nn.Conv3d, {"padding": 1, "stride": 2}),
]
TRANSPOSED = [
    (nn.ConvTranspose1d, {"stride": 2}),
    (nn.ConvTranspose2d, {"padding": 1}),
    (nn.ConvTranspose2d, {"stride": 2, "padding": 1, "output_padding": 1, "dilation": 2}),
    (nn.ConvTranspose2d, {"groups": 2, "bias": False}),
    (nn.ConvTranspose3d, {}),
]


def image(layer, batch=2):
    size = {1: (7,), 2: (6, 7), 3: (5, 4, 5)}[len(layer.kernel_size)]
    return torch.randn(batch, layer.in_channels, *size)


def with_channels(x, t, groups):
    """t as one more channel in front of the others of each group."""
    parts = []
    for part in x.chunk(groups, dim=1):
        extra = torch.full_like(part[:, :1], t)
        parts += [extra, part]
    return torch.cat(parts, dim=1)


def literal(kind, options, layer, time_weight):
    """A layer with one more input channel per group, its weights those of the appended one."""
    groups = layer.groups
    larger = kind(layer.in_channels + groups, layer.out_channels, layer.kernel_size, **options)
    with torch.no_grad():
        if layer.transposed:  # (in, out / groups, ...): one more row for each group
            rows = []
            for n, part in enumerate(layer.weight.chunk(groups)):
                rows += [time_weight[n : n + 1], part]
            larger.weight.copy_(torch.cat(rows))
        else:  # (out, in / groups, ...): one more column for every output
            larger.weight.copy_(torch.cat([time_weight, layer.weight], dim=1))
        if layer.bias is not None:
            larger.bias.copy_(layer.bias)
    return larger


def test_linear():
    field = stirred(nanode.TimeAppended(nn.Linear(3, 4)))
    layer, time_weight = field.module.layer, field.module.time_weight
    larger = nn.Linear(4, 4)
    with torch.no_grad():
        larger.weight.copy_(torch.cat([layer.weight, time_weight[:, None]], dim=1))
        larger.bias.copy_(layer.bias)
    for shape in ((3,), (2, 3), (2, 5, 3)):
        x = torch.randn(shape)
        for t in TIMES:
            appended = torch.cat([x, torch.full((*shape[:-1], 1), t)], dim=-1)
            torch.testing.assert_close(field(t, x), larger(appended), **CLOSE)


@pytest.mark.parametrize(("kind", "options"), [*CONVOLUTIONS, *TRANSPOSED])
def test_convolutions(kind, options):
    field = stirred(nanode.TimeAppended(kind(4, 4, 3, **options)))
    layer = field.module.layer
    larger = literal(kind, options, layer, field.module.time_weight.detach())
    x = image(layer)
    for t in TIMES:
        expected = larger(with_channels(x, t, layer.groups))
        torch.testing.assert_close(field(t, x), expected, **CLOSE)
    # Time matters, and by as much as any other channel.
    assert (field(1.0, x) - field(0.0, x)).abs().max() > 0.1


def test_images_without_a_batch():
    field = nanode.TimeAppended(nn.Conv2d(4, 4, 3, padding=1))
    x = torch.randn(4, 6, 7)
    torch.testing.assert_close(field(0.3, x), field(0.3, x[None])[0], **CLOSE)


def test_every_layer_sees_the_time():
    module = nn.Sequential(
        nn.Conv2d(2, 3, 3, padding=1),
        nn.Tanh(),
        nn.Sequential(nn.GroupNorm(1, 3), nn.ConvTranspose2d(3, 2, 1)),
        nn.Flatten(1),
        nn.Linear(2 * 5 * 5, 3),
    )
    plain = sum(p.numel() for p in module.parameters())
    field = nanode.TimeAppended(copy.deepcopy(module))
    # One more input per layer: 3·9, 2·1 and 3 weights. The norm has none.
    assert sum(p.numel() for p in field.parameters()) == plain + 27 + 2 + 3
    x = torch.randn(2, 2, 5, 5)
    torch.testing.assert_close(field(0.0, x), module(x), **CLOSE)
    for number in (0, 2, 4):
        (layer,) = (m for m in field.module[number].modules() if isinstance(m, AppendedLayer))
        before = field(0.7, x)
        with torch.no_grad():
            layer.time_weight.add_(1.0)
        assert not torch.allclose(field(0.7, x), before)


def test_a_layer_used_twice_stays_one_layer():
    layer = nn.Linear(3, 3)
    field = stirred(nanode.TimeAppended(nn.Sequential(layer, nn.Tanh(), layer)))
    first, _, last = field.module
    assert first is last
    assert sum(p.numel() for p in field.parameters()) == 9 + 3 + 3
    x, t = torch.randn(2, 3), 0.6

    def once(x):
        return x @ layer.weight.T + layer.bias + t * first.time_weight

    torch.testing.assert_close(field(t, x), once(torch.tanh(once(x))), **CLOSE)


def test_a_container_used_twice_is_converted_once():
    shared = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
    module = nn.Sequential(nn.Sequential(shared), nn.Sequential(shared))
    field = nanode.TimeAppended(module)
    assert sum(isinstance(m, AppendedLayer) for m in field.modules()) == 1
    assert field(0.3, torch.randn(2, 3)).shape == (2, 3)


def test_time_starts_like_any_other_input():
    # torch's rule: uniform with bound 1/√(number of inputs), one more than before.
    torch.manual_seed(0)
    linear = nanode.TimeAppended(nn.Linear(24, 2000)).module.time_weight.detach()
    conv = nanode.TimeAppended(nn.Conv2d(3, 200, 3)).module.time_weight.detach()
    bounds = [(linear, 25**-0.5), (conv, (4 * 9) ** -0.5)]
    # Of a transposed convolution torch counts the outputs.
    transposed = nanode.TimeAppended(nn.ConvTranspose2d(6, 400, 3, groups=2)).module
    assert transposed.layer.weight.abs().max().item() == pytest.approx((200 * 9) ** -0.5, rel=0.01)
    bounds.append((transposed.time_weight.detach(), (200 * 9) ** -0.5))
    for w, bound in bounds:
        assert w.abs().max() <= bound
        # The largest of 1800 draws is below 0.99 of the bound with probability 1e-8.
        assert w.abs().max() >= 0.99 * bound


@pytest.mark.parametrize("layer", [nn.Linear(3, 3), nn.Conv1d(3, 3, 3, padding=1)], ids=repr)
def test_under_autocast_it_gives_what_the_layer_does(layer):
    x = torch.randn(3, 3, dtype=torch.float32)
    field = nanode.TimeAppended(copy.deepcopy(layer).float())
    with torch.autocast("cpu", torch.bfloat16):
        assert field(0.4, x).dtype == torch.bfloat16


def test_degree_one_biases_contain_it():
    appended = stirred(nanode.TimeAppended(nn.Linear(3, 3)))
    layer, time_weight = appended.module.layer, appended.module.time_weight
    field = nanode.TimeVarying(copy.deepcopy(layer), nanode.Monomial(1), overrides={"weight": None})
    with torch.no_grad():
        field.trajectory.coefficients.bias.copy_(torch.stack([layer.bias, time_weight]))
    x = torch.randn(2, 3)
    for t in TIMES:
        torch.testing.assert_close(field(t, x), appended(t, x), **CLOSE)


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (lambda: nn.Linear(2, 3), (2, 2)),
        (lambda: nn.Conv2d(2, 2, 2, padding=1, groups=2), (1, 2, 3, 3)),
        (lambda: nn.ConvTranspose1d(2, 2, 2), (1, 2, 3)),
    ],
    ids=["linear", "conv", "transposed"],
)
def test_gradients(layer, shape):
    field = stirred(nanode.TimeAppended(nn.Sequential(layer(), nn.Tanh())))
    torch.autograd.gradcheck(*as_function(field, torch.randn(shape)))


def test_activations_are_not_copied():
    # Nothing that autograd keeps of one layer is larger than the input or the output.
    field = nanode.TimeAppended(nn.Conv2d(8, 8, 3, padding=1))
    x = torch.randn(16, 8, 6, 6, requires_grad=True)
    sizes = []

    def pack(tensor):
        sizes.append((tensor.data_ptr(), tensor.numel()))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        field(0.3, x)
    large = {pointer for pointer, numel in sizes if numel >= x.numel() // 2}
    assert large == {x.data_ptr()}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_follows_the_dtype(dtype):
    field = nanode.TimeAppended(nn.Linear(3, 3)).to(dtype)
    for t in (0.3, torch.tensor(0.3)):
        assert field(t, torch.ones(2, 3, dtype=dtype)).dtype == dtype


# ---- bad input


@pytest.mark.parametrize(
    "module",
    [
        nn.MultiheadAttention(4, 2),
        nn.Sequential(nn.Linear(4, 4), nn.TransformerEncoderLayer(4, 2)),
        nn.LSTM(4, 4),
        nn.GRU(4, 4),
    ],
    ids=lambda module: type(module).__name__,
)
def test_refuses_modules_that_read_weights_themselves(module):
    with pytest.raises(ValueError, match=r"appended inside \w+, which reads.*nanode\.TimeVarying"):
        nanode.TimeAppended(module)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (lambda: nn.LSTM(4, 4), "appended inside LSTM"),
        (lambda: nn.BatchNorm1d(4), "with running statistics"),
        (lambda: nanode.TimeVarying(nn.Linear(4, 4), nanode.Constant()).module, "another field"),
        (lambda: nn.LazyLinear(4), "uninitialized parameter"),  # torch's own
    ],
    ids=["reads weights", "statistics", "lent", "lazy"],
)
def test_a_module_that_is_refused_stays_as_it_was(other, message):
    module = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), other()))
    before = list(module.modules())
    with pytest.raises(ValueError, match=message):
        nanode.TimeAppended(module)
    assert list(module.modules()) == before


def test_a_field_inside_keeps_to_its_own_time():
    moving = stirred(nanode.TimeVarying(nn.Linear(3, 3), nanode.Legendre(2)))
    inner = nanode.ODEBlock(moving, 2)
    field = stirred(nanode.TimeAppended(nn.Sequential(nn.Linear(3, 3), inner)))
    assert sum(isinstance(part, AppendedLayer) for part in field.modules()) == 1
    x = torch.randn(2, 3)
    layer, time_weight = field.module[0].layer, field.module[0].time_weight
    expected = inner(layer(x) + 0.4 * time_weight)
    torch.testing.assert_close(field(0.4, x), expected, **CLOSE)


@pytest.mark.parametrize("module", [nn.Sequential(), nn.LayerNorm(3), nn.Sequential(nn.ReLU())])
def test_refuses_modules_without_layers(module):
    name = type(module).__name__
    with pytest.raises(ValueError, match=rf"{name} has no linear.*nanode\.Autonomous"):
        nanode.TimeAppended(module)
