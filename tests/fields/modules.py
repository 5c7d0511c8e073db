"""Modules of every kind that a field can be made of, each with an input."""

import torch
from torch import nn
from torch.nn.utils.parametrizations import orthogonal, weight_norm


class SelfAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, x):
        return self.attention(x, x, x, need_weights=False)[0]


class Recurrent(nn.Module):
    def __init__(self, kind, **options):
        super().__init__()
        self.cell = kind(4, 4, batch_first=True, **options)

    def forward(self, x):
        return self.cell(x)[0]


class Nested(nn.Module):
    """Every container, a list and a dict of parameters, and a number as a parameter."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4), nn.Sequential(nn.Tanh(), nn.Linear(4, 4))])
        self.named = nn.ModuleDict({"last": nn.Linear(4, 4), "norm": nn.LayerNorm(4)})
        self.shifts = nn.ParameterList([torch.randn(4), torch.randn(4)])
        self.scales = nn.ParameterDict({"left": torch.randn(4), "right": torch.randn(4)})
        self.number = nn.Parameter(torch.randn(()))

    def forward(self, x):
        for layer, shift in zip(self.layers, self.shifts, strict=True):
            x = layer(x) + shift
        x = self.named["norm"](self.named["last"](x)) * self.scales["left"]
        return self.number * x + self.scales["right"]


class Tied(nn.Module):
    """One weight under two names."""

    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = nn.Linear(4, 4), nn.Linear(4, 4)
        self.decoder.weight = self.encoder.weight

    def forward(self, x):
        return self.decoder(torch.tanh(self.encoder(x)))


class Buffered(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("mask", torch.tensor([1.0, 0.0, 1.0, 1.0]))
        self.register_buffer("count", torch.tensor(3))

    def forward(self, x):
        return self.mask * self.linear(x) / self.count


class Complex(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4, dtype=torch.complex128))

    def forward(self, x):
        return x @ self.weight


class Names(nn.Module):
    """Names that a dictionary's or a tree's methods have."""

    def __init__(self):
        super().__init__()
        self.items, self.paths = nn.Linear(4, 4), nn.ModuleList([nn.Linear(4, 4)])

    def forward(self, x):
        return self.paths[0](self.items(x))


def repeated():
    layer = nn.Linear(4, 4)
    return nn.Sequential(layer, nn.Tanh(), layer)


def transformer():
    return nn.TransformerEncoderLayer(4, 2, dim_feedforward=6, dropout=0.0, batch_first=True)


ROWS, SEQUENCE, IMAGE = (3, 4), (2, 5, 4), (2, 4, 5, 5)
#: name -> (a function that makes the module, the shape of its input)
MODULES = {
    "linear": (lambda: nn.Linear(4, 4), ROWS),
    "conv2d": (lambda: nn.Conv2d(4, 4, 3, padding=1, groups=2), IMAGE),
    "conv_transpose2d": (lambda: nn.ConvTranspose2d(4, 4, 3, padding=1), IMAGE),
    "group_norm": (lambda: nn.GroupNorm(2, 4), IMAGE),
    "layer_norm": (lambda: nn.LayerNorm(4), ROWS),
    "prelu": (lambda: nn.PReLU(4), ROWS),
    "attention": (SelfAttention, SEQUENCE),
    "transformer": (transformer, SEQUENCE),
    "lstm": (lambda: Recurrent(nn.LSTM, num_layers=2), SEQUENCE),
    "gru": (lambda: Recurrent(nn.GRU), SEQUENCE),
    "nested": (Nested, ROWS),
    "tied": (Tied, ROWS),
    "repeated": (repeated, ROWS),
    "buffered": (Buffered, ROWS),
    "weight_norm": (lambda: nn.Sequential(weight_norm(nn.Linear(4, 4)), nn.Tanh()), ROWS),
    "orthogonal": (lambda: nn.Sequential(orthogonal(nn.Linear(4, 4))), ROWS),
    "complex": (Complex, ROWS),
    "names": (Names, ROWS),
}
#: torch itself pickles parametrized modules by their state dict only.
PICKLABLE = [name for name in MODULES if name not in ("weight_norm", "orthogonal")]


def sample(name):
    """The module, its values drawn anew so that none is 0 or 1, and an input."""
    make, shape = MODULES[name]
    module = make()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape).to(parameter.dtype))
    dtype = torch.complex128 if name == "complex" else torch.float64
    return module, torch.randn(shape, dtype=dtype)


def as_function(field, x):
    """The field as a function of time, state and parameters, and leaves to call it with."""
    names = [name for name, _ in field.named_parameters()]

    def f(t, x, *parameters):
        named = dict(zip(names, parameters, strict=True))
        return torch.func.functional_call(field, named, (t, x))

    given = torch.tensor(0.4), x, *field.parameters()
    return f, tuple(value.detach().requires_grad_() for value in given)
