import json

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import nanode
from nanode.analysis import (
    Effort,
    Steps,
    analyse,
    basis_condition,
    gradient_norms,
    growth_rates,
    jacobian_spectrum,
    sensitivity,
    state_transition,
    trajectory_spectrum,
    weight_norms,
)
from tests.analysis.systems import gaussian, largest, network, sample


class Model(nn.Module):
    """Two flows with a layer between them, the second conditioned on the input."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first = nanode.ODEBlock(network(), steps=3)
        self.between = nn.Linear(4, 2).double()
        self.second = nanode.ODEBlock(lambda t, x, u: -x * u, steps=2, solver=nanode.Leapfrog())

    def forward(self, x):
        return self.second(self.between(self.first(x)), x[:, :2] ** 2)


def test_every_number_is_that_of_its_own_analysis():
    model, x = Model(), sample(2, 4)
    found = analyse(model, x, effort=Effort(points=100, count=4)).flows["first"]
    one = x[1:]
    sample_found = found.samples[1]
    of, block = Steps(), model.first
    pairs = [
        (
            sample_found.transition.values,
            state_transition(block, one, of=of).singular_values.values[1:],
        ),
        (
            sample_found.sensitivity.values,
            sensitivity(block, one, of=of).singular_values.values[1:],
        ),
        (
            sample_found.jacobian.singular_values,
            jacobian_spectrum(block, one, of=of).singular_values,
        ),
        (sample_found.gradients.norms, gradient_norms(block, one, of=of).norms),
        (sample_found.growth.rates, growth_rates(block, one, of=of).rates),
        (found.weights.norms["0.weight"], weight_norms(block).norms["0.weight"]),
        (found.spectrum.orders["0.weight"], trajectory_spectrum(block).orders["0.weight"]),
    ]
    for ours, theirs in pairs:
        assert ours.shape == theirs.shape
        assert largest(ours - theirs) < 1e-13
    (basis,) = found.bases.values()
    assert basis.condition == basis_condition(nanode.Chebyshev(degree=2)).condition
    assert (found.exact, found.of, found.size, len(found.samples)) == (True, "Steps()", 4, 2)


def test_flows_that_carry_more_than_x():
    """Φ and S have steps from the start, whatever is carried; the rest is of the equation."""
    model, x = Model(), sample(1, 4)
    found = analyse(model, x).flows["second"]
    assert found.of == "Φ and S of Steps(), the rest of Equation(steps=2, solver=RK4())"
    start, u = model.between(model.first(x)).detach(), x[:, :2] ** 2
    jacobian = torch.autograd.functional.jacobian(lambda x: model.second(x, u), start)
    values = torch.linalg.svdvals(jacobian.reshape(2, 2))
    assert largest(found.samples[0].transition.values[-1] - values) < 1e-12
    assert found.weights is found.spectrum is found.samples[0].sensitivity is None
    # x' = −u x, so that log det Φ = −Σu.
    growth = found.samples[0].growth.rates[-1]
    assert float(growth.sum()) == pytest.approx(-float(u.sum()), rel=1e-2)


def test_the_gradient_is_that_of_the_loss():
    torch.manual_seed(0)
    field = nanode.TimeVarying(nn.Linear(4, 4), nanode.Legendre(degree=1)).double()
    block, head = nanode.ODEBlock(field, steps=3), nn.Linear(4, 3).double()
    model, x = nn.Sequential(block, head), sample(2, 4)

    def loss(logits, n):
        return F.cross_entropy(logits, torch.tensor([n]))

    samples = analyse(model, x, loss=loss).flows["0"].samples
    for n, found in enumerate(samples):
        end = block(x[n : n + 1]).detach().requires_grad_()
        (gradient,) = torch.autograd.grad(loss(head(end), n), end)
        assert float(found.gradients.norms[-1]) == pytest.approx(float(gradient.norm()))
    assert samples[0].gradients.norms[-1] != samples[1].gradients.norms[-1]


def test_a_flow_that_the_loss_does_not_look_at_has_no_gradient():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.seen = nanode.ODEBlock(network(), steps=2)
            self.unseen = nanode.ODEBlock(network(), steps=2)

        def forward(self, x):
            self.unseen(x)
            return self.seen(x)

    flows = analyse(Model(), sample(1, 4), loss=lambda y, n: y.sum()).flows
    assert float(flows["seen"].samples[0].gradients.norms[-1]) == pytest.approx(4**0.5)
    assert largest(flows["unseen"].samples[0].gradients.norms) == 0


def test_a_loss_of_states_along_the_way_is_not_followed():
    """The gradient at the end of the flow alone would not be the whole one."""
    model = nn.Sequential(nanode.ODEBlock(network(), steps=2, at=[0.0, 0.5, 1.0]))
    found, without = (
        analyse(model, sample(1, 4), loss=loss).flows["0"].samples[0].gradients
        for loss in (lambda y, n: 7 * y.square().sum(), None)
    )
    assert torch.equal(found.norms, without.norms)


def test_layers_outside_the_flows_are_in_eval_mode_too():
    block, seen = nanode.ODEBlock(network(), steps=2), []
    model, x = nn.Sequential(nn.Dropout(0.5), nn.Tanh(), block).train(), sample(2, 4)
    block.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].detach().clone()))
    analyse(model, x)
    assert largest(torch.cat(seen) - x.tanh()) < 1e-15


def test_a_model_may_change_its_input_in_place():
    model, x = nn.Sequential(nn.ReLU(inplace=True), nanode.ODEBlock(network(), 2)), -sample(1, 4)
    before = x.clone()
    assert (x < 0).any()
    analyse(model, x)
    assert torch.equal(x, before)


def test_some_rows_of_what_a_model_makes_of_a_sample():
    class Frames(nn.Module):
        """Three states of one sample, and a conditioning for each."""

        def __init__(self):
            super().__init__()
            self.flow = nanode.ODEBlock(lambda t, x, u: -u * x, steps=2)

        def forward(self, x):
            return self.flow(x.expand(3, -1), torch.arange(3).to(x)[:, None] + torch.rand(1))

    before = torch.get_rng_state()
    found = analyse(Frames(), sample(1, 4), loss=lambda y, n: y.sum(), rows=2).flows["flow"]
    assert torch.equal(torch.get_rng_state(), before)
    assert found.size == 2 * 4
    assert float(found.samples[0].gradients.norms[-1]) == pytest.approx(8**0.5)


def test_large_states_are_estimated():
    torch.manual_seed(0)
    block = nanode.ODEBlock(nanode.TimeVarying(nn.Conv2d(2, 2, 3, padding=1), nanode.Constant()), 2)
    effort = Effort(state_limit=10, entry_limit=10, count=2)
    x = torch.randn(1, 2, 6, 6)
    exact, found = (analyse(block, x, effort=e).flows[""] for e in (None, effort))
    assert exact.exact
    assert not found.exact
    assert not found.exact_sensitivity
    for name in ("transition", "sensitivity"):
        theirs = getattr(exact.samples[0], name).values[:, :2]
        assert largest(getattr(found.samples[0], name).values / theirs - 1) < 0.02


def test_estimates_are_within_two_per_cent_by_the_settings_of_a_page():
    """On the hardest case, a Gaussian matrix."""
    block, x = gaussian(500).requires_grad_(False), sample(1, 500)
    (found,) = analyse(block, x, effort=Effort(points=1)).flows[""].samples
    exact = state_transition(block, x, at=[1.0], of=Steps()).singular_values.values[-1, :3]
    assert largest(found.transition.values[-1] / exact - 1) < 0.02
    exact = jacobian_spectrum(block, x, points=1, of=Steps())
    assert largest(found.jacobian.singular_values / exact.singular_values[:, :3] - 1) < 0.02
    assert largest(found.jacobian.logarithmic_norm / exact.logarithmic_norm - 1) < 0.02


def test_one_point_alone_is_the_end_of_the_solve():
    (found,) = analyse(Model().first, sample(1, 4), effort=Effort(points=1)).flows[""].samples
    assert found.transition.times.tolist() == [1.0]
    assert found.sensitivity.times.tolist() == [1.0]
    (found,) = analyse(Model().first, sample(1, 4), effort=Effort(points=2)).flows[""].samples
    assert found.transition.times.tolist() == pytest.approx([1 / 3, 1])


def test_rounding_does_not_fill_a_panel():
    """W(t) orthogonal: norms and condition numbers are 1 but for rounding."""
    torch.manual_seed(0)
    field = nanode.TimeVarying(
        nn.Linear(4, 4),
        nanode.Chebyshev(degree=2),
        start=nanode.Noisy(0.5),
        orthogonal=nanode.Householder(),
    )
    figure = analyse(nanode.ODEBlock(field, steps=3), torch.randn(1, 4)).figure()
    (ax,) = (ax for ax in figure.subfigs[0].axes if ax.get_title().startswith("size and condition"))
    assert ax.get_ylim() == pytest.approx((0.5**0.5, 2**0.5), rel=1e-4)
    figure.canvas.draw()
    ticks = [*ax.get_yticklabels(), *ax.get_yticklabels(minor=True)]
    low, high = ax.get_ylim()
    labels = [tick.get_text() for tick in ticks if low <= tick.get_position()[1] <= high]
    labels = [label for label in labels if label]
    assert len(labels) == len(set(labels)) >= 3


def test_the_page_and_its_numbers():
    """As files they are in tests/training/test_analysis.py."""
    found = analyse(Model(), sample(2, 4))
    numbers = found.numbers()
    assert json.loads(json.dumps(numbers, allow_nan=False)) == numbers
    assert set(numbers) == {"first", "second"}
    first = numbers["first"]["samples"][1]
    assert first["growth"]["rates"] == found.flows["first"].samples[1].growth.rates.tolist()
    figure = found.figure()
    titles = [ax.get_title() for band in figure.subfigs for ax in band.axes]
    assert len(titles) == 16
    assert "gradient back in time" in titles
    # Two samples, one legend entry.
    assert len(figure.subfigs[0].axes[3].get_lines()) == 2
    assert len(figure.subfigs[0].axes[3].get_legend().get_texts()) == 1


def test_what_it_cannot_do_is_refused():
    with pytest.raises(ValueError, match="Linear has no ODEBlock in it"):
        analyse(nn.Linear(2, 2), torch.ones(1, 2))
    with pytest.raises(ValueError, match="samples along its first axis"):
        analyse(Model(), torch.ones(0, 4))
    model = Model()
    model.forward = lambda x: x
    with pytest.raises(ValueError, match=r"doesn't call its flow 'first' on the samples \[0\]"):
        analyse(model, sample(1, 4))


class Around(nn.Module):
    """A flow and a layer; the flow's weights are moved by whoever moves this."""

    def __init__(self):
        super().__init__()
        field = nanode.TimeVarying(nn.Linear(2, 2), nanode.Legendre(degree=1))
        self.flow, self.layer = nanode.ODEBlock(field, steps=2), nn.Linear(2, 2)

    def forward(self, x):
        return self.layer(self.flow(x)).tanh()


def test_a_flow_whose_weights_are_moved_from_outside_is_left_out():
    block = nanode.ODEBlock(nanode.TimeVarying(Around(), nanode.Chebyshev(degree=1)), steps=2)
    assert list(analyse(block, torch.randn(1, 2)).flows) == [""]
    # In a field whose weights don't move it is looked at as well.
    constant = nanode.ODEBlock(nanode.Autonomous(Around()), steps=2)
    assert list(analyse(constant, torch.randn(1, 2)).flows) == ["", "field.module.flow"]


@pytest.mark.parametrize("kind", ["constant", "gated", "own function"])
def test_whose_weights_are_moved_from_outside_depends_on_who_moves_them(kind):
    class Timed(nn.Module):
        def __init__(self, field):
            super().__init__()
            self.inner = field

        def forward(self, t, x):
            return self.inner(t, x)

    basis = nanode.Legendre(degree=1)
    overrides = {"flow": None} if kind == "constant" else {}
    field = nanode.TimeVarying(Around(), basis, overrides=overrides)
    if kind == "gated":
        field = nanode.Gated([field, nn.Linear(2, 2)])
    block = nanode.ODEBlock(Timed(field) if kind == "own function" else field, steps=2)
    expected = ["", "field.module.flow"] if kind == "constant" else [""]
    assert list(analyse(block, torch.randn(1, 2)).flows) == expected


def test_a_flow_may_be_called_with_its_input_by_name():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.flow = nanode.ODEBlock(nanode.Autonomous(nn.Linear(2, 2)), steps=2)

        def forward(self, x):
            return self.flow(x=x)

    assert list(analyse(Model(), torch.randn(1, 2)).flows) == ["flow"]
