"""The table of weights is made twice by recomputing methods: it must be the same both times."""

import gc
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

import nanode
from tests.gradients.models import DOUBLE, distance

RECOMPUTING = [
    (nanode.Checkpointed(), nanode.Euler()),
    (nanode.Reversal(), nanode.Leapfrog()),
]


class Twice(nn.Module):
    def forward(self, x):
        return 2 * x


class Mixed(nn.Module):
    """A product, which autocast takes in half precision."""

    def __init__(self, size):
        super().__init__()
        self.matrix = nn.Parameter(torch.eye(size) + 0.1 * torch.randn(size, size))

    def forward(self, x):
        return x @ self.matrix


class Changed(nanode.Trajectory):
    """Another trajectory's weights, changed by a function of them."""

    def __init__(self, parameters, change):
        super().__init__()
        self.inner = nanode.Expansion(parameters, nanode.Chebyshev(2))
        self.shapes, self.interval, self.change = self.inner.shapes, self.inner.interval, change

    def forward(self, t, side="right"):
        return {name: self.change(w) for name, w in self.inner(t, side).items()}

    def table(self, stages):
        return {name: self.change(w) for name, w in self.inner.table(stages).items()}

    def energy(self, m=0):
        return self.inner.energy(m)


def parametrised(change, size=4, dtype=DOUBLE):
    """A field whose coefficients of a weight go through a module first."""
    torch.manual_seed(0)
    layer = nn.Sequential(nn.Linear(size, size), nn.Tanh())
    field = nanode.TimeVarying(layer, nanode.Chebyshev(2), start=nanode.Noisy(0.5))
    coefficients = field.trajectory.coefficients.get_submodule("0")
    parametrize.register_parametrization(coefficients, "weight", change)
    return field.to(dtype)


def both(field, solver, gradient, x, steps=6, **autocast):
    """Gradients by a method and by Backprop, from the same random numbers."""
    found = []
    for method in (gradient, nanode.Backprop()):
        torch.manual_seed(1)
        with torch.autocast("cpu", enabled=bool(autocast), **autocast):
            y = nanode.odeint(field, x, steps=steps, solver=solver, gradient=method)
        wanted = {"x": x, **dict(field.named_parameters())}
        grads = torch.autograd.grad(y.double().square().sum(), list(wanted.values()))
        found.append({"y": y.detach(), **dict(zip(wanted, grads, strict=True))})
    return found


@pytest.mark.parametrize(("gradient", "solver"), RECOMPUTING, ids=repr)
def test_random_numbers_in_weights_are_repeated(gradient, solver):
    x = torch.randn(3, 4, dtype=DOUBLE, requires_grad=True)
    ours, exact = both(parametrised(nn.Dropout(0.3)), solver, gradient, x)
    assert distance(ours, exact) < 1e-12
    noise = nanode.TimeVarying(
        nn.Sequential(nn.Linear(4, 4), nn.Tanh()).double(),
        weights=lambda named: Changed(named, lambda w: w + 0.3 * torch.randn_like(w)),
    )
    ours, exact = both(noise, solver, gradient, x)  # other numbers for every row
    assert distance(ours, exact) < 1e-12


@pytest.mark.parametrize(("gradient", "solver"), RECOMPUTING, ids=repr)
def test_random_numbers_in_weights_and_in_evaluations_are_repeated(gradient, solver):
    """The table is drawn in the first evaluation, whose own numbers come after."""
    x = torch.randn(3, 4, dtype=DOUBLE, requires_grad=True)
    field = nanode.TimeVarying(
        nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Dropout(0.5)).double(),
        weights=lambda named: Changed(named, lambda w: nn.functional.dropout(w, 0.3)),
    )
    ours, exact = both(field, solver, gradient, x)
    assert distance(ours, exact) < 1e-12


@pytest.mark.parametrize(("gradient", "solver"), RECOMPUTING, ids=repr)
def test_random_numbers_in_constant_weights_are_repeated(gradient, solver):
    """Those come after the numbers of all rows, however many rows are asked for."""

    class Drawn(nanode.TimeVarying):
        def weights(self, stages):
            table = super().weights(stages)
            constant = {n: nn.functional.dropout(w, 0.5) for n, w in table.constant.items()}
            return replace(table, constant=constant)

    x = torch.randn(3, 4, dtype=DOUBLE, requires_grad=True)
    field = Drawn(
        nn.Sequential(nn.Linear(4, 4), nn.Tanh()).double(),
        weights=lambda named: Changed(named, lambda w: nn.functional.dropout(w, 0.3)),
        overrides={"*bias": None},
    )
    ours, exact = both(field, solver, gradient, x)
    assert distance(ours, exact) < 1e-12


@pytest.mark.parametrize("gradient", [nanode.Checkpointed(chunk=2), nanode.Backsolve()], ids=repr)
def test_random_numbers_that_cannot_be_repeated_are_refused(gradient):
    x = torch.randn(3, 4, dtype=DOUBLE, requires_grad=True)
    block = nanode.ODEBlock(parametrised(nn.Dropout(0.3)), 6, nanode.Midpoint(), gradient)
    with pytest.raises(ValueError, match="random numbers"):
        block(x)
    block.eval()(x).sum().backward()


def test_random_numbers_are_not_refused_where_nothing_will_be_repeated():
    block = nanode.ODEBlock(parametrised(nn.Dropout(0.3)), 6, gradient=nanode.Checkpointed(chunk=2))
    with torch.no_grad():
        assert block(torch.ones(3, 4, dtype=DOUBLE)).shape == (3, 4)


@pytest.mark.parametrize(
    ("gradient", "solver"), [*RECOMPUTING, (nanode.Backsolve(), nanode.Midpoint())], ids=repr
)
def test_a_tensor_hidden_in_weights_is_an_error(gradient, solver):
    gain = torch.tensor(2.0, dtype=DOUBLE, requires_grad=True)
    field = nanode.TimeVarying(
        nn.Linear(3, 3).double(), weights=lambda named: Changed(named, lambda w: gain * w)
    )
    y = nanode.odeint(
        field, torch.ones(1, 3, dtype=DOUBLE), steps=4, solver=solver, gradient=gradient
    )
    with pytest.raises(ValueError, match=rf"{type(gradient).__name__} can't give it a gradient"):
        y.sum().backward()
    gain.requires_grad_(False)
    nanode.odeint(
        field, torch.ones(1, 3, dtype=DOUBLE), steps=4, solver=solver, gradient=gradient
    ).sum().backward()


def test_a_tensor_hidden_in_weights_is_an_error_in_an_adaptive_adjoint():
    gain = torch.tensor(2.0, dtype=DOUBLE, requires_grad=True)
    field = nanode.TimeVarying(
        nn.Linear(3, 3).double(), weights=lambda named: Changed(named, lambda w: gain * w)
    )
    with pytest.raises(ValueError, match="Backsolve can't give it a gradient"):
        nanode.odeint(
            field,
            torch.ones(1, 3, dtype=DOUBLE),
            solver=nanode.Adaptive(),
            gradient=nanode.Backsolve(),
        )


class Velocity(nanode.Trajectory):
    """W(t) = w · d/dt sin(a t), the derivative taken by autograd."""

    def __init__(self, parameters):
        super().__init__()
        ((self.name, value),) = parameters.items()
        self.shapes, self.interval = {self.name: value.shape}, (0.0, 1.0)
        self.w = nn.Parameter(value.detach().clone())
        self.a = nn.Parameter(torch.tensor(1.3).to(value))

    def forward(self, t, side="right"):
        return {self.name: self._at(torch.as_tensor(t).to(self.w)[None])[0]}

    def table(self, stages):
        return {self.name: self._at(torch.tensor([s.time for s in stages]).to(self.w))}

    def energy(self, m=0):
        return self.w.square().sum()

    def _at(self, times):
        with torch.enable_grad():
            times = times.detach().requires_grad_()
            position = torch.sin(self.a * times).sum()
            (velocity,) = torch.autograd.grad(position, times, create_graph=True)
        return velocity[:, None, None] * self.w


@pytest.mark.parametrize(("gradient", "solver"), RECOMPUTING, ids=repr)
def test_weights_may_be_derivatives_in_time(gradient, solver):
    """What they are taken in requires grad and is no parameter, but is made in every call."""
    x = torch.randn(3, 4, dtype=DOUBLE, requires_grad=True)
    field = nanode.TimeVarying(nn.Linear(4, 4, bias=False).double(), weights=Velocity)
    ours, exact = both(field, solver, gradient, x)
    assert distance(ours, exact) < 1e-12


def test_weights_may_be_derivatives_in_time_in_an_adaptive_adjoint():
    x = torch.randn(3, 4, dtype=DOUBLE, requires_grad=True)
    field = nanode.TimeVarying(nn.Linear(4, 4, bias=False).double(), weights=Velocity)
    adaptive = nanode.Adaptive(rtol=1e-10, atol=1e-10)
    ours, _ = both(field, adaptive, nanode.Backsolve(), x, steps=None)
    exact, _ = both(field, nanode.RK4(), nanode.Checkpointed(), x, steps=100)
    assert distance(ours, exact) < 1e-7


@pytest.mark.parametrize(("gradient", "solver"), RECOMPUTING, ids=repr)
def test_an_error_in_the_field_leaves_no_table_behind(gradient, solver):
    """Not even until the next garbage collection: it may have been a lack of memory."""

    class Failing(nn.Module):
        def forward(self, x):
            raise RuntimeError("out of memory")

    layers = nn.Sequential(nn.Linear(11, 7), Failing())
    field = nanode.TimeVarying(layers, nanode.Chebyshev(2))
    gc.collect()
    gc.disable()
    try:
        with pytest.raises(RuntimeError, match="out of memory"):
            nanode.odeint(field, torch.ones(1, 11), steps=4, solver=solver, gradient=gradient)
        left = [o for o in gc.get_objects() if isinstance(o, torch.Tensor) and o.shape == (7, 11)]
        assert not left
    finally:
        gc.enable()


@pytest.mark.parametrize(("gradient", "solver"), RECOMPUTING, ids=repr)
def test_torchs_cache_of_parametrised_weights_is_left_alone(gradient, solver):
    x = torch.randn(3, 4, dtype=DOUBLE)
    found = {}
    for method in (gradient, nanode.Backprop()):
        field = parametrised(Twice())
        with parametrize.cached():
            y = nanode.odeint(field, x, steps=4, solver=solver, gradient=method)
            loss = y.square().sum() + nanode.smoothness_penalty(field)
            loss.backward()
        found[method] = {name: p.grad for name, p in field.named_parameters()}
    assert distance(found[gradient], found[nanode.Backprop()]) < 1e-12


@pytest.mark.parametrize(("gradient", "solver"), RECOMPUTING, ids=repr)
def test_weights_are_made_under_the_same_autocast(gradient, solver):
    """The backward pass runs outside of it. Half precision would show as some 1e-3."""
    x = torch.randn(8, 16, requires_grad=True)
    field = parametrised(Mixed(256), 16, torch.float32)
    ours, exact = both(field, solver, gradient, x, dtype=torch.bfloat16)
    assert distance(ours, exact) < 1e-5


class Scaled(nanode.TimeVarying):
    """All weights, moving and constant, times one number that is made of a parameter."""

    def __init__(self):
        torch.manual_seed(0)
        layer = nn.Linear(3, 3).to(DOUBLE)
        super().__init__(
            layer, nanode.Chebyshev(2), start=nanode.Noisy(0.5), overrides={"bias": None}
        )
        self.log = nn.Parameter(torch.tensor(0.3, dtype=DOUBLE))

    def weights(self, stages):
        found, scale = super().weights(stages), self.log.exp()
        moving, constant = (
            {name: scale * w for name, w in part.items()} for part in (found.moving, found.constant)
        )
        return nanode.fields.Weights(moving, constant)


@pytest.mark.parametrize("chunk", [None, 2])
@pytest.mark.parametrize(("gradient", "solver"), RECOMPUTING, ids=repr)
def test_constants_may_be_made_of_what_the_table_is_made_of(gradient, solver, chunk):
    x, found = torch.ones(2, 3, dtype=DOUBLE), []
    for method in (nanode.Backprop(), replace(gradient, chunk=chunk)):
        field = Scaled()
        y = nanode.odeint(field, x, steps=5, solver=solver, gradient=method)
        grads = torch.autograd.grad(y.square().sum(), list(field.parameters()))
        found.append(dict(enumerate(grads)))
    assert distance(found[1], found[0]) < 1e-12
