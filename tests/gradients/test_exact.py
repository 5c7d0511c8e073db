"""Backprop, Checkpointed and Reversal give the gradient of the solve that was run."""

import itertools
import warnings

import pytest
import torch
from torch.func import functional_call

import nanode
from tests.gradients.models import (
    BASES,
    DOUBLE,
    INVERTIBLE,
    RUNGE_KUTTA,
    Net,
    distance,
    gradients,
    inputs,
    moving,
)

STEPS = 4
CHECKPOINTED = [
    nanode.Checkpointed(),
    nanode.Checkpointed(segments=1),
    nanode.Checkpointed(segments=3),
    nanode.Checkpointed(segments=STEPS),
    nanode.Checkpointed(segments=STEPS + 5),
    nanode.Checkpointed(chunk=1),
    nanode.Checkpointed(segments=2, chunk=3),
    nanode.Checkpointed(chunk=1000),
]
REVERSAL = [nanode.Reversal(), nanode.Reversal(chunk=1), nanode.Reversal(chunk=3)]
METHODS = [
    *itertools.product([nanode.Backprop()], [nanode.Euler(), nanode.RK4(), nanode.Leapfrog()]),
    *itertools.product(CHECKPOINTED, [nanode.Euler()]),
    *itertools.product(
        CHECKPOINTED[::3],
        [nanode.ThreeEighths(), nanode.Leapfrog(), nanode.ReversibleHeun()],
    ),
    (nanode.Checkpointed(), nanode.Coupled(nanode.Midpoint())),
    *itertools.product([nanode.Reversal()], INVERTIBLE),
    *itertools.product(REVERSAL[1:], [nanode.ReversibleHeun(), nanode.Coupled(nanode.Heun())]),
]
# Reversal's inputs are found again up to rounding: 100 roundings of 1e-16 by e² from the coupling.
REVERSAL_ROUNDING = 1e-12


def make_block(field, solver, gradient, steps=STEPS, **settings):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # jumps inside a step; tested elsewhere
        return nanode.ODEBlock(field, steps, solver, gradient, **settings)


def checks(block, *values):
    """Finite differences against the gradients in values and every parameter of the block."""
    names = list(dict(block.named_parameters()))
    parameters = [p.detach().clone().requires_grad_() for p in block.parameters()]

    def run(*args):
        given = dict(zip(names, args[len(values) :], strict=True))
        return functional_call(block, given, args[: len(values)])

    # Central differences of 1e-6 leave 1e-9 from f''' and 1e-10 from rounding; atol 1e-7 is safe.
    return torch.autograd.gradcheck(
        run, (*values, *parameters), eps=1e-6, atol=1e-7, rtol=1e-6, fast_mode=True
    )


@pytest.mark.parametrize("basis", BASES)
@pytest.mark.parametrize(("gradient", "solver"), METHODS, ids=repr)
def test_gradcheck(gradient, solver, basis):
    block = make_block(moving(BASES[basis]()), solver, gradient)
    assert checks(block, *inputs())


@pytest.mark.parametrize(
    ("gradient", "solver"),
    [
        (nanode.Backprop(), nanode.Midpoint()),
        (nanode.Checkpointed(segments=2), nanode.Midpoint()),
        (nanode.Reversal(), nanode.Coupled(nanode.Midpoint())),
    ],
    ids=repr,
)
class TestKindsOfSolve:
    def test_every_entry_of_the_jacobian(self, gradient, solver):
        """Without the random projections of gradcheck's fast mode."""
        field = moving(nanode.Bucketed(2), net=torch.nn.Linear(2, 2))
        block = make_block(field, solver, gradient)
        x = torch.randn(2, 2, dtype=DOUBLE, requires_grad=True)
        names = list(dict(block.named_parameters()))
        parameters = [p.detach().clone().requires_grad_() for p in block.parameters()]
        assert torch.autograd.gradcheck(
            lambda x, *p: functional_call(block, dict(zip(names, p, strict=True)), (x,)),
            (x, *parameters),
            atol=1e-7,
            rtol=1e-6,
        )

    def test_constant_parameters(self, gradient, solver):
        field = moving(nanode.Trigonometric(1), overrides={"first": None})
        assert {n.split(".")[0] for n, _ in field.named_parameters()} == {"module", "trajectory"}
        assert checks(make_block(field, solver, gradient), *inputs())

    def test_nothing_moves(self, gradient, solver):
        torch.manual_seed(0)
        field = nanode.Autonomous(Net().double())
        assert checks(make_block(field, solver, gradient), *inputs())

    def test_frozen_parameters_get_none(self, gradient, solver):
        net = Net().double()
        net.first.requires_grad_(False)
        field = moving(nanode.Bucketed(2), net=net, overrides={"*.bias": None})
        block = make_block(field, solver, gradient)
        x, between = inputs()
        block(x, between).sum().backward()
        got = {name for name, p in block.named_parameters() if p.grad is not None}
        assert got == {"field.trajectory.coefficients.last.weight", "field.module.last.bias"}
        reference = make_block(field, solver, nanode.Backprop())
        ours = {n: p.grad.clone() for n, p in block.named_parameters() if n in got}
        block.zero_grad()
        reference(x, between).sum().backward()
        theirs = {n: p.grad for n, p in reference.named_parameters() if n in got}
        assert distance(ours, theirs) < REVERSAL_ROUNDING

    @pytest.mark.parametrize("basis", ["aligned buckets", "trigonometric"])
    def test_backward_in_time(self, gradient, solver, basis):
        field = moving(BASES[basis]())
        assert checks(make_block(field, solver, gradient, interval=(1.0, 0.0)), *inputs())

    @pytest.mark.parametrize(
        "at", [(0.0, 0.5, 0.75, 1.0), (0.25, 1.0), (0.5,), (0.75, 0.5)], ids=str
    )
    def test_several_times(self, gradient, solver, at):
        ends = (1.0, 0.0) if at[0] > at[-1] else (0.0, 1.0)
        block = make_block(moving(nanode.Bucketed(4)), solver, gradient, at=at, interval=ends)
        x, between = inputs()
        assert block(x, between).shape == (len(at), *x.shape)
        assert checks(block, x, between)

    def test_uneven_steps(self, gradient, solver):
        field = moving(nanode.Trigonometric(1))
        steps = nanode.Given([0.0, 0.1, 0.5, 0.6, 1.0])
        assert checks(make_block(field, solver, gradient, steps=steps), *inputs())

    @pytest.mark.parametrize("kind", [tuple, dict])
    def test_states_of_several_tensors(self, gradient, solver, kind):
        torch.manual_seed(0)
        w = torch.nn.Parameter(torch.randn(3, 2, dtype=DOUBLE))

        class Pair(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.w = w

            def forward(self, state):
                a, b = state.values() if kind is dict else state
                slopes = (torch.tanh(b @ self.w.T), torch.sin(a @ self.w))
                return dict(zip(state, slopes, strict=True)) if kind is dict else slopes

        block = make_block(moving(nanode.Bucketed(2), net=Pair()), solver, gradient)
        a = torch.randn(2, 3, dtype=DOUBLE, requires_grad=True)
        b = torch.randn(2, 2, dtype=DOUBLE, requires_grad=True)
        names = list(dict(block.named_parameters()))

        def run(a, b, *parameters):
            state = {"a": a, "b": b} if kind is dict else (a, b)
            end = functional_call(block, dict(zip(names, parameters, strict=True)), (state,))
            assert type(end) is kind
            return tuple(end.values()) if kind is dict else end

        parameters = [p.detach().clone().requires_grad_() for p in block.parameters()]
        assert torch.autograd.gradcheck(run, (a, b, *parameters), atol=1e-7, fast_mode=True)

    def test_complex_states(self, gradient, solver):
        torch.manual_seed(0)
        net = torch.nn.Linear(2, 2, dtype=torch.complex128)
        field = nanode.TimeVarying(net, nanode.Bucketed(2))
        block = make_block(field, solver, gradient)
        x = torch.randn(2, 2, dtype=torch.complex128, requires_grad=True)
        assert checks(block, x)

    def test_only_x_or_only_conditioning_requires_grad(self, gradient, solver):
        field = moving(nanode.Bucketed(2)).requires_grad_(False)
        block = make_block(field, solver, gradient)
        x, between = inputs()
        assert torch.autograd.gradcheck(block, (x, between.detach()), fast_mode=True, atol=1e-7)
        assert torch.autograd.gradcheck(block, (x.detach(), between), fast_mode=True, atol=1e-7)
        assert not block(x.detach(), between.detach()).requires_grad

    def test_conditioning_of_any_structure(self, gradient, solver):
        class Affine(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.w = torch.nn.Parameter(torch.ones(3, dtype=DOUBLE))

            def forward(self, x, settings, name):
                assert name == "tanh"
                return torch.tanh(x * self.w * settings["power"]) + settings["shift"]

        block = make_block(moving(nanode.Bucketed(2), net=Affine()), solver, gradient)
        x, _ = inputs()
        shift = torch.randn(3, dtype=DOUBLE, requires_grad=True)

        def run(x, shift):
            return block(x, {"power": 2, "shift": shift}, "tanh")

        assert torch.autograd.gradcheck(run, (x, shift), fast_mode=True, atol=1e-7)

    def test_parameters_before_and_after_the_block(self, gradient, solver):
        """Gradients pass through to what made x, conditioning and the loss."""
        torch.manual_seed(0)
        block = make_block(moving(nanode.Bucketed(4)), solver, gradient)
        reference = make_block(block.field, solver, nanode.Backprop())
        before, beside, after = (
            torch.nn.Linear(n, m).double() for n, m in [(5, 3), (5, 4), (3, 1)]
        )
        outer = torch.nn.ModuleList([before, beside, after])
        z = torch.randn(2, 5, dtype=DOUBLE)
        found = []
        for solve in (block, reference):
            loss = after(solve(before(z), beside(z))).square().sum()
            found.append(torch.autograd.grad(loss, list(outer.parameters())))
        ours, theirs = (dict(enumerate(grads)) for grads in found)
        assert distance(ours, theirs) < REVERSAL_ROUNDING


@pytest.mark.parametrize("basis", BASES)
@pytest.mark.parametrize("gradient", CHECKPOINTED, ids=repr)
@pytest.mark.parametrize(
    "solver", [*(m() for m in RUNGE_KUTTA), nanode.Leapfrog(), nanode.ReversibleHeun()], ids=repr
)
def test_checkpointed_equals_backprop(solver, gradient, basis):
    # The same operations on the same numbers; only sums over stages may be ordered otherwise.
    field = moving(BASES[basis]())
    values = inputs()
    y, expected = gradients(make_block(field, solver, nanode.Backprop(), steps=12), *values)
    z, got = gradients(make_block(field, solver, gradient, steps=12), *values)
    assert (y - z).abs().max() < 1e-14  # a table by chunks may be rounded otherwise
    assert distance(got, expected) < 1e-12


@pytest.mark.parametrize("basis", BASES)
@pytest.mark.parametrize("gradient", REVERSAL, ids=repr)
@pytest.mark.parametrize("solver", INVERTIBLE, ids=repr)
def test_reversal_equals_backprop_up_to_rounding(solver, gradient, basis):
    field = moving(BASES[basis]())
    values = inputs()
    y, expected = gradients(make_block(field, solver, nanode.Backprop(), steps=12), *values)
    z, got = gradients(make_block(field, solver, gradient, steps=12), *values)
    assert (y - z).abs().max() < 1e-14  # a table by chunks may be rounded otherwise
    assert distance(got, expected) < REVERSAL_ROUNDING


@pytest.mark.parametrize("solver", INVERTIBLE, ids=repr)
def test_a_solve_may_go_on_after_the_last_wanted_state(solver):
    field, values = moving(nanode.Bucketed(4)), inputs()
    (_, expected), (_, got) = (
        gradients(make_block(field, solver, method, at=[0.0, 0.5], interval=(0.0, 1.0)), *values)
        for method in (nanode.Backprop(), nanode.Reversal())
    )
    for name, grad in expected.items():
        assert torch.allclose(got[name], grad, rtol=0, atol=REVERSAL_ROUNDING), name


@pytest.mark.parametrize("gradient", [nanode.Checkpointed(chunk=5), nanode.Reversal(chunk=5)])
def test_other_trajectories_and_fields(gradient):
    """Tables that aren't linear in the parameters, and fields made of fields."""
    torch.manual_seed(0)
    solver = nanode.Coupled(nanode.Euler())
    hyper = nanode.TimeVarying(Net().double(), weights=nanode.Hypernetwork).double()
    gated = nanode.Gated([moving(nanode.Bucketed(2), seed=1), Net().double()]).double()
    appended = nanode.TimeAppended(Net().double())
    for field in (hyper, gated, appended):
        with torch.no_grad():  # away from starts where some gradients vanish
            for p in field.parameters():
                p.add_(0.3 * torch.randn_like(p))
        values = inputs()
        _, expected = gradients(make_block(field, solver, nanode.Backprop(), 6), *values)
        _, got = gradients(make_block(field, solver, gradient, 6), *values)
        assert distance(got, expected) < REVERSAL_ROUNDING


@pytest.mark.parametrize("inner", [nanode.Checkpointed(), nanode.Reversal()], ids=repr)
@pytest.mark.parametrize("outer", [nanode.Backprop(), nanode.Checkpointed(), nanode.Reversal()])
def test_a_solve_inside_a_field(outer, inner):
    solver = nanode.Coupled(nanode.Euler())

    class Deeper(torch.nn.Module):
        def __init__(self, gradient):
            super().__init__()
            field = moving(nanode.Bucketed(2), net=torch.nn.Linear(3, 3))
            self.block = make_block(field, solver, gradient, 2)

        def forward(self, x):
            return torch.tanh(self.block(x))

    x, _ = inputs()
    found = []
    for outside, inside in ((nanode.Backprop(), nanode.Backprop()), (outer, inner)):
        torch.manual_seed(0)
        field = moving(nanode.Bucketed(2), net=Deeper(inside))
        found.append(gradients(make_block(field, solver, outside), x)[1])
    assert distance(found[1], found[0]) < REVERSAL_ROUNDING


def test_gradients_add_up_over_several_backward_passes():
    field = moving(nanode.Bucketed(4))
    x, between = inputs()
    block = make_block(field, nanode.Euler(), nanode.Checkpointed())
    one, two = block(x, between), block(2 * x, between)
    (one.sum() + two.sum()).backward()
    together = {n: p.grad.clone() for n, p in block.named_parameters()}
    block.zero_grad()
    reference = make_block(field, nanode.Euler(), nanode.Backprop())
    reference(2 * x, between).sum().backward()
    reference(x, between).sum().backward()
    assert distance(together, {n: p.grad for n, p in block.named_parameters()}) < 1e-12


@pytest.mark.parametrize("gradient", [nanode.Checkpointed(), nanode.Reversal()], ids=repr)
def test_a_graph_kept_can_be_used_again(gradient):
    block = make_block(moving(nanode.Bucketed(4)), nanode.Leapfrog(), gradient)
    x, between = inputs()
    y = block(x, between).sum()
    (first,) = torch.autograd.grad(y, x, retain_graph=True)
    (second,) = torch.autograd.grad(y, x)
    assert torch.equal(first, second)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: nanode.Checkpointed(segments=0), "segments must be a whole number of at least 1"),
        (lambda: nanode.Checkpointed(segments=1.5), "segments must be a whole number"),
        (lambda: nanode.Checkpointed(chunk=0), "chunk must be a whole number of at least 1"),
        (lambda: nanode.Reversal(chunk=-1), "chunk must be a whole number of at least 1"),
    ],
)
def test_refuses(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("method", RUNGE_KUTTA)
def test_reversal_needs_an_invertible_stepper(method):
    with pytest.raises(ValueError, match=r"Coupled.*Leapfrog.*ReversibleHeun.*Checkpointed"):
        nanode.ODEBlock(moving(nanode.Constant()), 4, method(), nanode.Reversal())


def test_weights_with_one_gradient_between_them_get_it_each():
    """Autograd hands both the same tensor, which must not be added to in place."""

    class Sum(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = (torch.nn.Parameter(torch.ones(3, dtype=DOUBLE)) for _ in range(2))

        def forward(self, x):
            return self.a + self.b

    x = torch.zeros(3, dtype=DOUBLE, requires_grad=True)
    for gradient in (nanode.Checkpointed(segments=STEPS), nanode.Reversal()):
        solver = nanode.Coupled() if isinstance(gradient, nanode.Reversal) else nanode.Euler()
        field = nanode.Autonomous(Sum())
        y = nanode.odeint(field, x, steps=STEPS, solver=solver, gradient=gradient)
        for grad in torch.autograd.grad(y.sum(), list(field.parameters())):
            assert torch.allclose(grad, torch.ones(3, dtype=DOUBLE), rtol=1e-12)
