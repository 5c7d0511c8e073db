"""Mistakes that other libraries make without a word."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.utils.flop_counter import FlopCounterMode

import nanode
from tests.gradients.models import DOUBLE, Net, distance, gradients, inputs, moving

RECOMPUTING = [
    (nanode.Checkpointed(), nanode.Euler()),
    (nanode.Reversal(), nanode.Coupled(nanode.Euler())),
    (nanode.Backsolve(), nanode.Midpoint()),
]
EXACT = RECOMPUTING[:2]
EVERY = [(nanode.Backprop(), nanode.Euler()), *RECOMPUTING]


# ---- a tensor that the field closes over


@pytest.mark.parametrize(("gradient", "solver"), RECOMPUTING, ids=repr)
@pytest.mark.parametrize("kind", ["function", "module", "computed"])
def test_a_hidden_tensor_is_an_error(gradient, solver, kind):
    hidden = torch.tensor(2.0, dtype=DOUBLE, requires_grad=True)
    layer = nn.Linear(3, 3).double()
    fields = {
        "function": lambda t, x: hidden * x,
        "module": lambda t, x: layer(x),
        "computed": lambda t, x: hidden.exp() * x,
    }
    x, _ = inputs()
    with pytest.raises(ValueError, match="neither x, conditioning, nor a parameter") as error:
        nanode.odeint(fields[kind], x, steps=4, solver=solver, gradient=gradient)
    assert type(gradient).__name__ in str(error.value)
    assert "Backprop" in str(error.value)


@pytest.mark.parametrize("solver", [nanode.Euler(), nanode.Leapfrog()], ids=repr)
def test_the_start_itself_may_not_be_hidden(solver):
    """In the first evaluation, here the only one, it is at the state's own place in memory."""
    x, _ = inputs()
    with pytest.raises(ValueError, match="neither x, conditioning, nor a parameter"):
        nanode.odeint(lambda t, y: x * y, x, steps=1, solver=solver, gradient=nanode.Checkpointed())


def test_a_hidden_tensor_gets_its_gradient_by_backprop():
    hidden = torch.tensor(2.0, dtype=DOUBLE, requires_grad=True)
    x = torch.ones(1, dtype=DOUBLE)
    end = nanode.odeint(lambda t, x: hidden * x, x, steps=4)
    end.sum().backward()
    # (1 + w/4)^4 differentiated: (1 + w/4)³.
    assert abs(float(hidden.grad) - 1.5**3) < 1e-14


@pytest.mark.parametrize(("gradient", "solver"), EXACT, ids=repr)
def test_as_conditioning_or_parameter_it_is_fine(gradient, solver):
    rate = torch.tensor(0.5, dtype=DOUBLE, requires_grad=True)
    x, _ = inputs()
    found = []
    for method in (gradient, nanode.Backprop()):
        end = nanode.odeint(
            lambda t, x, w: w * x, x, steps=4, solver=solver, gradient=method, conditioning=(rate,)
        )
        found.append(torch.autograd.grad(end.sum(), [x, rate]))
    for ours, theirs in zip(*found, strict=True):
        assert (ours - theirs).abs().max() < 1e-12


@pytest.mark.parametrize(("gradient", "solver"), RECOMPUTING, ids=repr)
def test_a_hidden_constant_is_no_error(gradient, solver):
    constant = torch.tensor(2.0, dtype=DOUBLE)
    x, _ = inputs()
    end = nanode.odeint(lambda t, x: -constant * x, x, steps=200, solver=solver, gradient=gradient)
    end.sum().backward()
    assert x.grad.abs().max() > 0


# ---- a first operation in place


@pytest.mark.parametrize(("gradient", "solver"), EVERY, ids=repr)
def test_a_first_operation_in_place_is_an_error(gradient, solver):
    module = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(3, 3).double())
    field = nanode.TimeVarying(module, nanode.Trigonometric(1))
    with pytest.raises(ValueError, match=r"changed x in place.*nn\.ReLU\(\)"):
        nanode.odeint(field, inputs()[0].detach(), steps=200, solver=solver, gradient=gradient)


IN_PLACE = {
    # A tensor made outside counts there too, and raises.
    "inference mode": torch.inference_mode()(lambda block, x: block(x.clone())),
    "traced": lambda block, x: torch.compile(block, fullgraph=True, backend="aot_eager")(x),
    "traced, no grad": lambda block, x: torch.no_grad()(torch.compile(block, backend="eager"))(x),
    "vmap": lambda block, x: torch.func.vmap(block)(x),
}


@pytest.mark.parametrize("way", IN_PLACE)
def test_where_torch_counts_no_changes_an_operation_in_place_is_given_a_copy(way):
    layer = nn.Linear(3, 3).double()
    block, plain = (
        nanode.ODEBlock(nanode.Autonomous(nn.Sequential(nn.ReLU(inplace=inplace), layer)), 3)
        for inplace in (True, False)
    )
    x = inputs()[0].detach()
    before = x.clone()
    assert (x < 0).any()
    assert torch.allclose(IN_PLACE[way](block, x), plain(x), atol=1e-15)
    assert torch.equal(x, before)


@pytest.mark.parametrize(("gradient", "solver"), EXACT, ids=repr)
def test_later_operations_in_place_are_fine(gradient, solver):
    module = nn.Sequential(nn.Linear(3, 4), nn.ReLU(inplace=True), nn.Linear(4, 3))
    field = moving(nanode.Bucketed(4), net=module)
    x, _ = inputs()
    _, expected = gradients(nanode.ODEBlock(field, 4, solver, nanode.Backprop()), x)
    _, got = gradients(nanode.ODEBlock(field, 4, solver, gradient), x)
    assert distance(got, expected) < 1e-12


# ---- weights or states changed between the passes


@pytest.mark.parametrize(("gradient", "solver"), RECOMPUTING, ids=repr)
def test_weights_changed_before_backward_are_an_error(gradient, solver):
    block = nanode.ODEBlock(moving(nanode.Trigonometric(1)), 200, solver, gradient)
    y = block(*inputs())
    with torch.no_grad():
        next(block.parameters()).mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


# ---- buffers that an evaluation changes


class Counting(nn.Module):
    """A layer that counts its calls, in place or by a new tensor, and depends on the count."""

    def __init__(self, in_place):
        super().__init__()
        self.layer, self.in_place = nn.Linear(3, 3).double(), in_place
        self.register_buffer("calls", torch.zeros((), dtype=DOUBLE))

    def forward(self, x):
        if self.in_place:
            self.calls.add_(1)
        else:
            self.calls = self.calls + 1
        return self.calls.clone() * self.layer(x)


@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize(("gradient", "solver"), RECOMPUTING, ids=repr)
def test_a_buffer_that_evaluations_change_is_an_error(gradient, solver, in_place):
    field = nanode.TimeVarying(Counting(in_place), nanode.Trigonometric(1))
    block = nanode.ODEBlock(field, 200, solver, gradient)
    x, _ = inputs()
    with pytest.raises(ValueError, match=r"changes its buffer 'module\.calls'.*Backprop"):
        block(x)
    with torch.no_grad():  # no backward pass will come
        block(x)
    nanode.ODEBlock(field, 4)(x).sum().backward()


class Scaled(nn.Module):
    """A layer whose buffer a person may change."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3).double()
        self.register_buffer("factor", torch.ones((), dtype=DOUBLE))

    def forward(self, x):
        return self.factor * self.layer(x)


@pytest.mark.parametrize(("gradient", "solver"), EVERY, ids=repr)
def test_a_buffer_changed_before_backward_is_an_error(gradient, solver):
    field = nanode.TimeVarying(Scaled(), nanode.Trigonometric(1))
    block = nanode.ODEBlock(field, 200, solver, gradient)
    y = block(inputs()[0])
    field.module.factor.mul_(3)
    with pytest.raises(RuntimeError, match=r"factor' was changed|inplace operation"):
        y.sum().backward()


def test_buffers_lent_for_a_call_are_compared_by_value():
    field = nanode.TimeVarying(Scaled(), nanode.Trigonometric(1))
    field.module.updates = []  # a name of the user's own
    block = nanode.ODEBlock(field, 4, gradient=nanode.Checkpointed())
    x, parameters = inputs()[0], dict(block.named_parameters())
    for factor in (1.0, 2.0):
        lent = {name: factor * buffer.clone() for name, buffer in block.named_buffers()}
        y = torch.func.functional_call(block, parameters | lent, (x,))
        if factor == 1.0:
            y.sum().backward()
        else:
            with pytest.raises(RuntimeError, match="lent to it by functional_call"):
                y.sum().backward()


def test_a_buffer_that_holds_nan_is_not_taken_for_a_changed_one():
    field = nanode.TimeVarying(Scaled(), nanode.Trigonometric(1))
    field.module.register_buffer("unknown", torch.tensor([1.0, torch.nan]))
    block = nanode.ODEBlock(field, 4, gradient=nanode.Checkpointed())
    block(inputs()[0]).sum().backward()


def test_statistics_moved_before_the_backward_pass_of_an_evaluation_are_an_error():
    field = nanode.TimeVarying(
        nn.Sequential(nanode.BatchNorm(3), nn.Linear(3, 3)).double(), nanode.Trigonometric(1)
    )
    block = nanode.ODEBlock(field, 4, gradient=nanode.Checkpointed()).train()
    x = inputs()[0]
    block(x)
    y = block.eval()(x)
    block.train()(x)
    with pytest.raises(RuntimeError, match="running_mean' was changed"):
        block.eval() and y.sum().backward()
    # In training mode nothing reads them: two passes before the backward pass of either are fine.
    block.train()
    (block(x).sum() + block(2 * x).sum()).backward()


# ---- double backward


@pytest.mark.parametrize(("gradient", "solver"), RECOMPUTING, ids=repr)
def test_double_backward_is_an_error(gradient, solver):
    x, between = inputs()
    block = nanode.ODEBlock(moving(nanode.Trigonometric(1)), 200, solver, gradient)
    # Linear and not: in the first case what flows into the solve has no graph of its own.
    for loss in (torch.sum, lambda y: y.square().sum()):
        with pytest.raises(RuntimeError, match=r"first derivatives only.*Backprop"):
            torch.autograd.grad(loss(block(x, between)), x, create_graph=True)
        with pytest.raises(RuntimeError, match=r"first derivatives only.*Backprop"):
            loss(block(x, between)).backward(create_graph=True)
    with pytest.raises(RuntimeError, match="first derivatives only"):
        torch.autograd.functional.hessian(lambda x: block(x, between).sum(), x)


@pytest.mark.parametrize(("gradient", "solver"), RECOMPUTING, ids=repr)
def test_without_gradients_samples_may_be_mapped_over(gradient, solver):
    block = nanode.ODEBlock(moving(nanode.Trigonometric(1)), 200, solver, gradient)
    x = inputs()[0].detach()
    with torch.no_grad():
        one_by_one = torch.stack([block(sample) for sample in x])
        assert torch.allclose(torch.func.vmap(block)(x), one_by_one, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(("gradient", "solver"), RECOMPUTING, ids=repr)
def test_transforms_are_refused_by_recomputing_methods(gradient, solver):
    block = nanode.ODEBlock(moving(nanode.Trigonometric(1)), 200, solver, gradient)
    x = inputs()[0].detach()
    message = rf"can't look into a solve with {type(gradient).__name__}; use .*Backprop"
    with pytest.raises(RuntimeError, match=message):
        torch.func.jvp(block, (x,), (torch.ones_like(x),))
    with pytest.raises(RuntimeError, match=message):
        torch.func.vmap(block)(x)
    with pytest.raises(RuntimeError, match=message):
        torch.func.grad(lambda x: block(x).sum())(x)
    x.requires_grad_()
    with pytest.raises(RuntimeError, match=r"batched gradients .*Backprop"):
        torch.autograd.functional.jacobian(block, x, vectorize=True)
    with (
        forward_ad.dual_level(),
        pytest.raises(RuntimeError, match=r"forward mode; use .*Backprop"),
    ):
        block(forward_ad.make_dual(x, torch.ones_like(x)))


@pytest.mark.parametrize(("gradient", "solver"), RECOMPUTING, ids=repr)
def test_operations_can_be_counted(gradient, solver):
    """Products of matrices an evaluation: 1 + 2 by Backprop, 1 + 1 + 2 where it is repeated.

    The coupled solver's last evaluation moves what nobody reads, and isn't differentiated.
    """
    counts = []
    for method in (nanode.Backprop(), gradient):
        block = nanode.ODEBlock(nanode.Autonomous(nn.Linear(3, 3)), 4, solver, method)
        x = torch.randn(2, 3, requires_grad=True)
        with FlopCounterMode(display=False) as counter:
            block(x).sum().backward()
        counts.append(counter.get_total_flops())
    product, made = 2 * 2 * 3 * 3, 4 if isinstance(solver, nanode.Euler) else 8
    read = made - isinstance(solver, nanode.Coupled)
    assert counts == [(made + 2 * read) * product, (2 * made + 2 * read) * product]


# ---- two threads


@pytest.mark.parametrize(
    ("gradient", "solver"), [(nanode.Backprop(), nanode.Coupled(nanode.Euler())), *EXACT], ids=repr
)
def test_two_threads_share_a_block(gradient, solver):
    torch.manual_seed(0)
    field = moving(nanode.Bucketed(4), net=Net(hidden=16), overrides={"last": None})
    block = nanode.ODEBlock(field, 8, solver, gradient)
    starts = [torch.randn(4, 3, dtype=DOUBLE, requires_grad=True) for _ in range(2)]
    alone = [gradients(block, x) for x in starts]
    parameters = dict(block.named_parameters())
    barrier = threading.Barrier(2)

    def work(n):
        barrier.wait()
        for _ in range(20):
            y, found = gradients(block, starts[n], parameters=parameters)
            assert torch.equal(y, alone[n][0])
            # The same operations on the same numbers, in the same order.
            assert distance(found, alone[n][1]) == 0

    with ThreadPoolExecutor(2) as pool:
        for future in [pool.submit(work, n) for n in range(2)]:
            future.result()


# ---- an exception inside the user's module


@pytest.mark.parametrize(("gradient", "solver"), EVERY, ids=repr)
def test_the_modules_own_exception_comes_through(gradient, solver):
    class Broken(nn.Linear):
        def forward(self, x):
            raise KeyError("mine")

    field = nanode.TimeVarying(Broken(3, 3), nanode.Trigonometric(1))
    with pytest.raises(KeyError, match="mine"):
        nanode.odeint(field, torch.ones(1, 3), steps=200, solver=solver, gradient=gradient)
    # And the module is as it was: its weights are out again.
    assert field.module.weight is None


@pytest.mark.parametrize("gradient", [nanode.Checkpointed(), nanode.Reversal()], ids=repr)
def test_switching_modes_before_backward_is_an_error(gradient):
    """Repeated evaluations would take the other branch of dropout or batch norm."""
    field = nanode.TimeVarying(torch.nn.Linear(3, 3), nanode.Legendre(degree=1))
    block = nanode.ODEBlock(field, 3, nanode.Coupled(), gradient)
    y = block(torch.randn(2, 3))
    block.eval()
    with pytest.raises(RuntimeError, match=r"train\(\) and eval\(\)"):
        y.sum().backward()


# ---- a state in half precision


def test_undoing_steps_in_half_precision_warns():
    block = nanode.ODEBlock(moving(nanode.Constant()), 4, nanode.Coupled(), nanode.Reversal())
    x = inputs()[0].detach().bfloat16()
    with pytest.warns(UserWarning, match=r"state in half precision.*autocast.*Checkpointed"):
        block.bfloat16()(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):  # raises the state to float32
        block.float()(x)
