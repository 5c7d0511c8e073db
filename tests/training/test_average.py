"""The weight average against a plain loop."""

import pytest
import torch
from torch import nn

from nanode.training.average import Average


def test_against_a_plain_loop():
    torch.manual_seed(0)
    model = nn.Linear(3, 2).double()
    average = Average(model, decay=0.9)
    expected = model.weight.detach().clone()
    for n in range(30):
        with torch.no_grad():
            model.weight.add_(torch.randn(2, 3))
        average.update()
        beta = min(0.9, (1 + n) / (10 + n))
        expected = beta * expected + (1 - beta) * model.weight.detach()
    # Two ways to write the same sum in double precision, thirty times.
    torch.testing.assert_close(average.state()["weight"], expected, rtol=1e-13, atol=1e-13)


def test_the_start_is_forgotten_in_a_short_run():
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, 100.0)
    average = Average(model, decay=0.999)
    nn.init.zeros_(model.weight)
    for _ in range(1400):
        average.update()
    assert float(average.state()["weight"]) < 1e-9  # 24.6 with a fixed decay


def test_applied_for_a_while_only():
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    average = Average(model, decay=0.5)
    mean = {name: w.clone() for name, w in average.state().items()}
    nn.init.ones_(model[0].weight)
    before = {name: w.clone() for name, w in model.state_dict().items()}
    address = model[0].weight.data_ptr()
    with average.applied():
        assert all(torch.equal(p, mean[name]) for name, p in model.named_parameters())
        assert model[0].weight.data_ptr() == address
        model[1].running_mean.fill_(3.0)
    assert torch.equal(model[0].weight, before["0.weight"])
    assert torch.equal(model[1].running_mean, torch.full((2,), 3.0))  # buffers are the model's


def test_given_back_after_an_error():
    model = nn.Linear(2, 2)
    average = Average(model, decay=0.5)
    nn.init.ones_(model.weight)

    def fail():
        with average.applied():
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert torch.equal(model.weight, torch.ones(2, 2))


def test_goes_on_from_a_state():
    torch.manual_seed(0)
    model = nn.Linear(2, 2)
    one, other = Average(model, 0.99), Average(model, 0.99)
    for n in range(6):
        nn.init.normal_(model.weight)
        one.update()
        if n == 2:
            other.load({name: w.clone() for name, w in one.state().items()}, one.updates)
        elif n > 2:
            other.update()
    assert torch.equal(one.state()["weight"], other.state()["weight"])
