"""Further inputs of a field's module, given to a block by name."""

import pytest
import torch
from torch import nn

import nanode
from nanode.analysis import analyse

X = torch.linspace(-1, 1, 6).view(2, 3)
PUSH, GAIN = torch.linspace(0, 1, 3), torch.tensor(2.0)


class Steered(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x, push=None, gain=1.0, *, sharp=False):
        y = torch.tanh(gain * self.layer(x))
        return y if push is None else y + push


class Timed(Steered):
    def forward(self, t, x, push=None, gain=1.0):
        return super().forward(x, push, gain) * t


FIELDS = {
    "constant": lambda: nanode.Autonomous(Steered()),
    "moving": lambda: nanode.TimeVarying(Steered(), nanode.Legendre(1)),
    "timed": lambda: nanode.TimeVarying(Timed(), nanode.Legendre(1), takes_time=True),
    "module of (t, x)": Timed,
    "function": lambda: lambda t, x, push=0.0, gain=1.0: torch.tanh(gain * x * t) + push,
}


@pytest.mark.parametrize("gradient", [nanode.Backprop(), nanode.Checkpointed()], ids=repr)
@pytest.mark.parametrize("kind", FIELDS)
def test_names_are_places(kind, gradient):
    block = nanode.ODEBlock(FIELDS[kind](), 3, gradient=gradient)
    assert torch.equal(block(X, PUSH, gain=GAIN), block(X, PUSH, GAIN))
    assert torch.equal(block(X, gain=GAIN, push=PUSH), block(X, PUSH, GAIN))
    # What stands before a name has its default.
    default = 0.0 if kind == "function" else None
    assert torch.equal(block(X, gain=GAIN), block(X, default, GAIN))


@pytest.mark.parametrize("kind", ["moving", "timed"])
def test_written_out(kind):
    block = nanode.ODEBlock(FIELDS[kind](), 3)
    assert torch.equal(nanode.materialise(block)(X, gain=GAIN), block(X, gain=GAIN))


def test_traced_as_a_whole():
    block = nanode.ODEBlock(FIELDS["moving"](), 3)
    traced = torch.compile(block, backend="eager", fullgraph=True)
    assert torch.equal(traced(X, gain=GAIN), block(X, gain=GAIN))


def test_analysed_in_a_model():
    class Model(nn.Module):
        def __init__(self, flow, inputs, named):
            super().__init__()
            self.flow, self.inputs, self.named = flow, inputs, named

        def forward(self, x):
            return self.flow(x, *self.inputs, **self.named)

    flow = nanode.ODEBlock(FIELDS["moving"](), 3)
    by_name, by_place, without = (
        analyse(Model(flow, inputs, named), X[:1]).flows["flow"].samples[0].transition.values
        for inputs, named in (((), {"gain": GAIN}), ((None, GAIN), {}), ((), {}))
    )
    assert torch.equal(by_name, by_place)
    assert not torch.allclose(by_name, without)


@pytest.mark.parametrize(
    ("field", "names", "message"),
    [
        (FIELDS["moving"], {"pull": PUSH}, "the field's Steered: .*'pull'"),
        (FIELDS["moving"], {"sharp": True}, "the field's Steered takes sharp by name only"),
        (
            lambda: nanode.Gated([Steered(), Steered()]),
            {"push": PUSH},
            "Gated takes .* by position",
        ),
    ],
)
def test_names_that_can_t_be_placed(field, names, message):
    with pytest.raises(TypeError, match=message):
        nanode.ODEBlock(field(), 2)(X, **names)


def test_a_compiled_module_has_the_names_of_its_own():
    block = nanode.ODEBlock(nanode.Autonomous(Steered()), 2)
    block.field.module = torch.compile(block.field.module, backend="eager")
    assert torch.equal(block(X, gain=GAIN), block(X, None, GAIN))


class Around(nn.Module):
    """As wrappers are: it hands on what it is given."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, *inputs, **named):
        return self.inner(*inputs, **named)


class Pushed(nn.Module):
    def forward(self, x: torch.Tensor, push: torch.Tensor) -> torch.Tensor:
        return push.expand_as(x)


def test_a_module_that_does_not_say_its_names():
    block = nanode.ODEBlock(nanode.Autonomous(Around(Pushed())), 2)
    assert torch.equal(block(X, PUSH), X + PUSH)
    with pytest.raises(TypeError, match="Around doesn't say where push belongs; pass it by posit"):
        block(X, push=PUSH)


def test_a_function_that_is_not_pythons_own_does_not_say_its_names():
    with pytest.raises(TypeError, match="the field's function doesn't say where out belongs"):
        nanode.ODEBlock(torch.mul, 2)(X, out=X)
