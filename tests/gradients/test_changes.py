"""Fields, weights and settings that change between solves, or between the passes of one."""

import copy
import functools

import pytest
import torch
from torch import nn
from torch.func import functional_call

import nanode
from nanode.gradients import compiled
from nanode.gradients.compiled import Compiled
from tests.gradients.models import bottleneck, bottleneck_field

RECOMPUTING = [
    (nanode.Checkpointed(), nanode.Euler()),
    (nanode.Checkpointed(chunk=3), nanode.Euler()),
    (nanode.Reversal(), nanode.Coupled(nanode.Euler())),
]
METHODS = pytest.mark.parametrize(("gradient", "solver"), RECOMPUTING, ids=repr)


@pytest.fixture(autouse=True)
def double(monkeypatch):
    monkeypatch.setattr(compiled, "WORTH_COMPILING", 0)
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager"))
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def net():
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 3))


def moving(*more):
    module = nn.Sequential(*net(), *more)
    return nanode.TimeVarying(module, nanode.Legendre(2), start=nanode.Noisy(0.5))


def point():
    return torch.randn(4, 3, requires_grad=True)


def off(found, expected):
    return float((found - expected).norm() / expected.norm())


# ---- hooks on parameters


@METHODS
def test_a_hook_on_a_parameter_is_called_once(gradient, solver):
    field, x = moving(), point()
    weight = next(field.parameters())
    block = nanode.ODEBlock(field, 8, solver, gradient)
    (plain,) = torch.autograd.grad(block(x).square().sum(), weight)
    weight.register_hook(lambda grad: 10 * grad)
    block(x).square().sum().backward()
    assert off(weight.grad, 10 * plain) < 1e-12


def test_a_hook_on_a_parameter_is_called_once_by_an_adaptive_adjoint():
    field, x = moving(), point()
    block = nanode.ODEBlock(field, solver=nanode.Adaptive(), gradient=nanode.Backsolve())
    calls = []
    next(field.parameters()).register_hook(calls.append)
    block(x).square().sum().backward()
    assert len(calls) == 1


class TwoNames(nn.Module):
    """A module with a layer under two names, as in a list of its parts."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.parts = nn.ModuleList([self.layer, nn.Tanh()])

    def forward(self, x):
        return self.parts[1](self.layer(x))


@METHODS
def test_a_hook_on_a_parameter_of_a_layer_with_two_names(gradient, solver):
    x, found = point(), []
    block = nanode.ODEBlock(nanode.Autonomous(TwoNames()), 8, solver, gradient)
    before = list(block.parameters())
    before[0].register_hook(lambda grad: 10 * grad)
    for method in (nanode.Backprop(), gradient, gradient):
        block.gradient = method
        found.append(torch.autograd.grad(block(x).square().sum(), before))
        assert all(a is b for a, b in zip(before, block.parameters(), strict=True))
    for exact, *others in zip(*found, strict=True):
        assert max(off(other, exact) for other in others) < 1e-12


# ---- hooks on saved tensors, which may give others of the same values


@METHODS
@pytest.mark.parametrize("own", [True, False], ids=["own weights", "lent weights"])
def test_saved_tensors_that_come_back_as_copies(gradient, solver, own):
    """As they do where they are offloaded, compressed or kept on a disk meanwhile."""
    field, x = nanode.TimeVarying(net(), nanode.Legendre(2), overrides={"2": None}), point()
    field.trajectory.coefficients["0.bias"].requires_grad_(False)
    lent = {
        f"field.{name}": p if own else (1.7 * p.detach()).requires_grad_(p.requires_grad)
        for name, p in field.named_parameters()
    }
    trained = [x, *(p for p in lent.values() if p.requires_grad)]
    found = []
    for method in (nanode.Backprop(), gradient):
        block = nanode.ODEBlock(field, 8, solver, method)
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t.numpy(force=True), _restored):
            y = block(x) if own else functional_call(block, lent, (x,))
        found.append(torch.autograd.grad(y.square().sum(), trained))
    for a, b in zip(*found, strict=True):
        assert off(a, b) < 1e-10


def _restored(array):
    return torch.from_numpy(array.copy())


# ---- weights lent for the forward pass, or changed after it


@METHODS
@pytest.mark.parametrize("which", [slice(None), slice(1)], ids=["all", "some"])
def test_weights_lent_without_gradients(gradient, solver, which):
    """As averaged or a teacher's weights are; the others are the field's own."""
    field, x = moving(), point()
    names = [name for name, _ in field.named_parameters(prefix="field")][which]
    own = dict(field.named_parameters(prefix="field"))
    lent = {name: 1.7 * own[name].detach() for name in names}
    found = []
    for method in (nanode.Backprop(), gradient):
        y = functional_call(nanode.ODEBlock(field, 8, solver, method), lent, (x,))
        found.append(torch.autograd.grad(y.square().sum(), x)[0])
    assert off(found[1], found[0]) < 1e-10


@METHODS
def test_frozen_weights_changed_before_backward_are_an_error(gradient, solver):
    field, x = moving().requires_grad_(False), point()
    y = nanode.ODEBlock(field, 8, solver, gradient)(x).square().sum()
    with torch.no_grad():
        next(field.parameters()).mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(y, x)


def test_an_adaptive_adjoint_uses_the_weights_lent_to_it():
    field, x = moving(), point()
    found = []
    for method in (nanode.Backprop(), nanode.Backsolve()):
        solver = nanode.Adaptive(rtol=1e-9, atol=1e-9)
        block = nanode.ODEBlock(field, solver=solver, gradient=method)
        lent = {name: (1.7 * p.detach()).requires_grad_() for name, p in block.named_parameters()}
        y = functional_call(block, lent, (x,)).square().sum()
        found.append(torch.autograd.grad(y, [x, *lent.values()]))
    for a, b in zip(*found, strict=True):
        assert off(a, b) < 1e-6


def test_an_adaptive_adjoint_inside_another_solve():
    x, found = point(), []
    inner = net()
    for method in (nanode.Backprop(), nanode.Backsolve()):
        solver = nanode.Adaptive(rtol=1e-9, atol=1e-9)
        block = nanode.ODEBlock(
            nanode.Autonomous(copy.deepcopy(inner)), solver=solver, gradient=method
        )
        outer = nanode.ODEBlock(nanode.Autonomous(block), 3, gradient=nanode.Checkpointed())
        found.append(torch.autograd.grad(outer(x).square().sum(), list(outer.parameters())))
    for a, b in zip(*found, strict=True):
        assert off(a, b) < 1e-6


class Times(nn.Module):
    """A layer times its conditioning, which it may change."""

    def __init__(self, in_place=False):
        super().__init__()
        self.layer, self.in_place = nn.Linear(3, 3), in_place

    def forward(self, x, c):
        if self.in_place:
            c.mul_(0.5)
        return torch.tanh(self.layer(x)) * c


def test_conditioning_changed_before_an_adaptive_adjoint_is_an_error():
    field, x, c = nanode.Autonomous(Times()), point(), torch.ones(3)
    y = nanode.ODEBlock(field, solver=nanode.Adaptive(), gradient=nanode.Backsolve())(x, c).sum()
    c.mul_(3)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()


@METHODS
def test_a_field_that_changes_its_conditioning_is_an_error(gradient, solver):
    block = nanode.ODEBlock(nanode.Autonomous(Times(in_place=True)), 4, solver, gradient)
    with pytest.raises(ValueError, match="changed its conditioning in place"):
        block(point(), torch.ones(4, 3))


@METHODS
@pytest.mark.parametrize("change", ["probability", "module"])
def test_a_field_changed_before_backward_is_an_error(gradient, solver, change):
    field = moving(nn.Dropout(0.3))
    y = nanode.ODEBlock(field, 6, solver, gradient)(point()).sum()
    if change == "probability":
        field.module[3].p = 0.6
    else:
        field.module[1] = nn.ReLU()
    with pytest.raises(RuntimeError, match="was replaced after the forward pass"):
        y.backward()


def test_shared_weights_that_are_shared_no_more():
    module = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))
    module[2].weight = module[0].weight
    block, x = nanode.ODEBlock(nanode.Autonomous(module), 1), point()
    assert torch.allclose(block(x), x + module(x))
    module[2].weight = nn.Parameter(torch.randn(3, 3))
    y = block(x)
    assert torch.allclose(y, x + module(x))
    y.sum().backward()
    assert module[0].weight.grad is not None
    assert module[2].weight.grad is not None


# ---- another field, or another basis


def test_a_block_given_another_field():
    one, two, x = moving(), moving(), point()
    for compile in (False, True):
        block = nanode.ODEBlock(one, 4, compile=compile)
        block(x)
        block.field = two
        y = block(x)
        assert torch.allclose(y, nanode.ODEBlock(two, 4)(x))
        grads = torch.autograd.grad(y.sum(), list(block.parameters()))
        assert all(grad.norm() > 0 for grad in grads)


def test_one_compiled_method_may_serve_two_fields():
    method, x = Compiled(nanode.Backprop()), point()
    for field in (lambda t, x: -x, lambda t, x: x.sin()):
        found = nanode.odeint(field, x, steps=4, gradient=method)
        assert torch.allclose(found, nanode.odeint(field, x, steps=4))


def test_random_features_replaced_again_and_again():
    """Buffers that are gone leave their ids to others."""
    field = nanode.TimeVarying(net(), nanode.RandomFourier(4), start=nanode.Noisy(1.0))
    block, basis, start = nanode.ODEBlock(field, 4), field.trajectory.basis, point()
    first = basis.frequencies.clone()
    for factor in range(1, 21):
        basis.register_buffer("frequencies", first * factor)
        x = start
        for k in range(4):
            x = x + 0.25 * field(k / 4, x)
        assert off(block(start), x) < 1e-12


# ---- random numbers that a field begins to draw


class DropPath(nn.Module):
    """Dropout whose probability a schedule raises, under a name of its own."""

    def __init__(self):
        super().__init__()
        self.drop_prob = 0.0

    def forward(self, x):
        return nn.functional.dropout(x, self.drop_prob) if self.drop_prob else x


def test_a_compiled_field_that_begins_to_draw_random_numbers():
    field, x, found = moving(DropPath()), point(), []
    fast = nanode.ODEBlock(field, 6, gradient=nanode.Checkpointed(), compile=True)
    fast(x)
    field.module[3].drop_prob = 0.5
    for block in (fast, nanode.ODEBlock(field, 6)):
        torch.manual_seed(5)
        y = block(x).square().sum()
        found.append(torch.autograd.grad(y, list(field.parameters())))
    for a, b in zip(*found, strict=True):
        assert off(a, b) < 1e-12


# ---- what only looks like a bottleneck


class Damped(nn.Sequential):
    def forward(self, x):
        return super().forward(x) - x


class Half(nanode.TimeVarying):
    def evaluate(self, weights, stage, x):
        return super().evaluate(weights, stage, x) / 2


@pytest.mark.parametrize("kind", ["module", "field", "backward hook"])
def test_fused_kernels_leave_what_is_special_alone(kind):
    module, basis = bottleneck(8, 4, nanode.BatchNorm), nanode.Legendre(1)
    if kind == "field":
        field = Half(module, basis)
    else:
        field = nanode.TimeVarying(Damped(*module) if kind == "module" else module, basis)
    if kind == "backward hook":
        module[2].register_full_backward_hook(lambda m, given, grad: (3 * given[0],))
    found = []
    x = torch.randn(2, 8, 5, 5)
    for gradient in (nanode.Backprop(), Compiled(nanode.Backprop(), fused=True)):
        given = x.clone().requires_grad_()
        y = nanode.ODEBlock(copy.deepcopy(field), 4, gradient=gradient)(given)
        found.append([y.detach(), *torch.autograd.grad(y.square().sum(), given)])
    for a, b in zip(*found, strict=True):
        assert off(a, b) < 1e-12


@pytest.mark.parametrize("fused", [False, True])
def test_an_empty_batch_leaves_statistics_alone(fused):
    field = bottleneck_field("moving").double()
    block = nanode.ODEBlock(field, 3, gradient=Compiled(nanode.Backprop(), fused=fused))
    x = torch.randn(2, 16, 5, 5)
    block(x)
    before = [buffer.clone() for buffer in block.buffers()]
    block(x[:0])
    for a, b in zip(block.buffers(), before, strict=True):
        assert torch.equal(a, b)
