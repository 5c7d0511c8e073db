"""The quick walk through a module against torch's own."""

from torch import nn

from nanode.fields.walk import parts_of


def test_finds_what_torch_finds_in_the_same_order():
    shared, none = nn.Linear(2, 2), nn.Module()
    none.register_module("missing", None)
    inner = nn.ModuleDict({"a": nn.Sequential(shared, nn.ReLU()), "b": shared, "c": none})
    module = nn.Sequential(nn.Sequential(), inner, nn.ModuleList([nn.Tanh(), inner]), shared)
    assert parts_of(module) == list(module.modules())
    module[0].append(nn.Dropout())
    assert parts_of(module) == list(module.modules())
