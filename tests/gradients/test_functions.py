"""Plain functions as fields: what they reach, and must not change."""

import functools

import pytest
import torch
from torch import nn

import nanode


@pytest.mark.parametrize("gradient", [nanode.Backprop(), nanode.Checkpointed()], ids=repr)
@pytest.mark.parametrize(
    "way",
    [
        "closed over",
        "bound",
        "later",
        "object",
        "list",
        "a list that holds itself",
        "partial",
        "keyword of a partial",
        "default",
        "default of a keyword",
        "other function",
        "bound to an object",
    ],
)
def test_a_plain_norm_behind_a_function_is_an_error(gradient, way):
    norm = nn.BatchNorm1d(3, affine=False)
    several = [nn.Identity(), norm]
    endless = [norm]
    endless.append(endless)

    class Call:
        def __init__(self):
            self.norm = norm

        def __call__(self, t, x):
            return self.norm(x)

        def slope(self, t, x):
            return self.norm(x)

    class Holder(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = norm

        def slope(self, t, x):
            return self.norm(x)

    functions = {
        "closed over": lambda t, x: norm(x),
        "bound": Holder().slope,
        "object": Call(),
        "list": lambda t, x: several[1](x),
        "a list that holds itself": lambda t, x: endless[1][0](x),
        "partial": functools.partial(lambda norm, t, x: norm(x), norm),
        "keyword of a partial": functools.partial(lambda t, x, own: own(x), own=norm),
        "default": lambda t, x, norm=norm: norm(x),
        "default of a keyword": lambda t, x, *, norm=norm: norm(x),
        "other function": lambda t, x: (lambda: norm)()(x),
        "bound to an object": Call().slope,
    }
    function = functions.get(way, lambda t, x: norm(x) if t > 0.4 else x)
    x = torch.randn(5, 3, requires_grad=True)
    with pytest.raises(ValueError, match="BatchNorm1d with running statistics"):
        nanode.odeint(function, x, steps=4, gradient=gradient)
    norm.eval()  # reads its statistics and leaves them alone
    nanode.odeint(function, x, steps=4, gradient=gradient).sum().backward()


def test_data_that_a_function_reads_is_not_walked_through():
    class Data(list):
        def __iter__(self):
            raise AssertionError("walked through")

    data = Data(range(100_000))
    x = torch.ones(2)
    assert torch.equal(nanode.odeint(lambda t, x: data[1] * x, x, steps=1), 2 * x)


def test_a_block_may_call_the_module_that_it_is_part_of():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 3)
            self.flow = nanode.ODEBlock(self.slope, 3)

        def slope(self, t, x):
            return self.layer(x)

        def forward(self, x):
            return self.flow(x)

    model = Model().train()
    model(torch.randn(2, 3)).sum().backward()
    assert model.layer.weight.grad is not None
