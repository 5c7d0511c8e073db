"""ODEBlock as an ordinary module, under each way of differentiating it."""

import copy
import io
import os
import pickle
import threading
import warnings

import pytest
import torch
import torch.distributed
import torch.multiprocessing
from torch import nn
from torch.func import functional_call
from torch.nn.parallel import DistributedDataParallel

import nanode
from tests.gradients.models import DOUBLE, Net, distance, gradients, inputs, moving

EXACT = [
    (nanode.Backprop(), nanode.Euler()),
    (nanode.Checkpointed(), nanode.Euler()),
    (nanode.Reversal(), nanode.Coupled(nanode.Euler())),
]
RECOMPUTING = EXACT[1:]
# Reversal finds its inputs again up to rounding; Checkpointed repeats the very operations.
ROUNDING = 1e-12


def make(gradient=None, solver=None, steps=4, net=None, **settings):
    field = moving(nanode.Bucketed(4), net=net, overrides={"*bias": None})
    return nanode.ODEBlock(field, steps, solver, gradient, **settings)


def like(block, gradient):
    """The same field under another gradient method."""
    return nanode.ODEBlock(block.field, block.steps, block.solver, gradient)


# ---- a module among modules


@pytest.mark.parametrize(("gradient", "solver"), EXACT, ids=repr)
class TestModule:
    def test_inside_sequential(self, gradient, solver):
        block = make(gradient, solver)
        model = nn.Sequential(nn.Linear(5, 3), block, nn.Linear(3, 1)).double()
        x = torch.randn(6, 5, dtype=DOUBLE)
        model(x).sum().backward()
        assert all(p.grad is not None and p.grad.abs().max() > 0 for p in model.parameters())
        assert torch.equal(model(x), model[2](block(model[0](x))))

    def test_a_training_step_lowers_the_loss(self, gradient, solver):
        block = make(gradient, solver)
        x, y = (torch.randn(16, 3, dtype=DOUBLE) for _ in range(2))
        before = (block(x) - y).square().mean()
        optimizer = torch.optim.SGD(block.parameters(), lr=1e-3)
        before.backward()
        slope = sum(float(p.grad.square().sum()) for p in block.parameters())
        optimizer.step()
        after = (block(x) - y).square().mean()
        # To first order the loss falls by lr·|gradient|²; lr is small enough for that.
        assert abs(float(before - after) / (1e-3 * slope) - 1) < 0.05

    @pytest.mark.parametrize("way", ["deepcopy", "pickle", "save"])
    def test_copies(self, gradient, solver, way):
        block = make(gradient, solver, at=[0.5, 1.0], scale=0.5)
        x = inputs()[0]
        block(x).sum().backward()  # with whatever a used block keeps
        block.zero_grad()
        if way == "deepcopy":
            other = copy.deepcopy(block)
        elif way == "pickle":
            other = pickle.loads(pickle.dumps(block))
        else:
            file = io.BytesIO()
            torch.save(block, file)
            file.seek(0)
            other = torch.load(file, weights_only=False)
        y, expected = gradients(block, x)
        z, got = gradients(other, x)
        assert torch.equal(y, z)
        assert distance(got, expected) == 0
        # And nothing is shared.
        with torch.no_grad():
            for p in other.parameters():
                p.zero_()
        assert torch.equal(block(x), y)
        assert torch.equal(other(x), torch.stack([x, x]))

    def test_state_dict(self, gradient, solver):
        block, other = make(gradient, solver), make(gradient, solver, net=Net())
        keys = {
            "field.trajectory.coefficients.first.weight",
            "field.trajectory.coefficients.last.weight",
            "field.module.first.bias",
            "field.module.last.bias",
        }
        assert set(block.state_dict()) == keys
        file = io.BytesIO()
        torch.save(block.state_dict(), file)
        file.seek(0)
        with torch.no_grad():
            for p in other.parameters():
                p.normal_()
        x = inputs()[0]
        assert not torch.allclose(other(x), block(x))
        other.load_state_dict(torch.load(file))
        assert torch.equal(other(x), block(x))

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
    def test_dtypes(self, gradient, solver, dtype):
        block = make(gradient, solver).to(dtype)
        x = inputs()[0].detach().to(dtype).requires_grad_()
        y, got = gradients(block, x)
        assert y.dtype == dtype
        assert all(grad.dtype == dtype for grad in got.values())
        _, expected = gradients(make(nanode.Backprop(), solver), inputs()[0])
        # Some hundred roundings.
        assert distance(got, expected) < 200 * torch.finfo(dtype).eps

    def test_hooks_see_every_evaluation(self, gradient, solver):
        block = make(gradient, solver)
        seen = {"before": 0, "after": 0, "backward": 0}

        def count(name):
            def hook(*_):
                seen[name] += 1

            return hook

        block.field.module.register_forward_pre_hook(count("before"))
        block.field.module.last.register_forward_hook(count("after"))
        block.field.module.last.register_full_backward_hook(count("backward"))
        block(inputs()[0]).sum().backward()
        plain = isinstance(solver, nanode.Euler)
        calls = (4 if plain else 8) * (1 if isinstance(gradient, nanode.Backprop) else 2)
        # The last half of the last coupled step moves z, which nobody asks for.
        assert seen == {"before": calls, "after": calls, "backward": 4 if plain else 7}

    def test_a_hook_may_change_the_output(self, gradient, solver):
        block = make(gradient, solver)
        block.field.module.register_forward_hook(lambda module, given, out: 2 * out)
        doubled = like(block, nanode.Backprop())
        x = inputs()[0]
        _, expected = gradients(doubled, x)
        _, got = gradients(block, x)
        assert distance(got, expected) < ROUNDING

    def test_functional_call_with_other_parameters(self, gradient, solver):
        block = make(gradient, solver)
        other = {n: torch.randn_like(p) for n, p in block.named_parameters()}
        x = inputs()[0]
        reference = make(nanode.Backprop(), solver)
        with torch.no_grad():
            for name, p in reference.named_parameters():
                p.copy_(other[name])
        y, expected = gradients(reference, x)
        # Computed from others still, as a hypernetwork or meta-learning does.
        roots = {n: p.clone().requires_grad_() for n, p in other.items()}
        given = {n: 1.0 * p for n, p in roots.items()}
        z = functional_call(block, given, (x,))
        assert torch.equal(y, z)
        weight = torch.linspace(-1, 1, z.numel(), dtype=DOUBLE).view_as(z)
        found = torch.autograd.grad((z * weight).sum(), [x, *roots.values()])
        assert distance(dict(zip(["x", *roots], found, strict=True)), expected) < ROUNDING
        # The block's own parameters have had no part in it.
        assert all(p.grad is None for p in block.parameters())

    def test_no_grad(self, gradient, solver):
        block = make(gradient, solver)
        x = inputs()[0]
        expected = block(x)
        with torch.no_grad():
            assert torch.equal(block(x), expected)
        with torch.inference_mode():
            assert torch.equal(block(x), expected)
        # What inference left behind doesn't stand in the way of training.
        fresh = copy.deepcopy(block).float()
        with torch.inference_mode():
            fresh(x.float())
        fresh(x.float()).sum().backward()

    def test_backward_in_another_thread(self, gradient, solver):
        block = make(gradient, solver)
        x = inputs()[0]
        _, expected = gradients(block, x)
        y = block(x)
        weight = torch.linspace(-1, 1, y.numel(), dtype=DOUBLE).view_as(y)
        thread = threading.Thread(target=lambda: (y * weight).sum().backward())
        thread.start()
        thread.join()
        got = {"x": x.grad} | {n: p.grad for n, p in block.named_parameters()}
        assert distance(got, expected) == 0

    def test_memory_formats(self, gradient, solver):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.Tanh(), nn.Conv2d(4, 4, 1)).double()
        block = nanode.ODEBlock(moving(nanode.Bucketed(2), net=net), 4, solver, gradient)
        x = torch.randn(2, 4, 5, 6, dtype=DOUBLE, requires_grad=True)
        y, expected = gradients(block, x)
        block.to(memory_format=torch.channels_last)
        last = x.detach().contiguous(memory_format=torch.channels_last).requires_grad_()
        z, got = gradients(block, last)
        # Convolutions sum in another order.
        assert (y - z).abs().max() < 1e-12
        assert distance(got, expected) < 1e-12


# ---- functional transforms are Backprop's


class TestTransforms:
    def test_vmap(self):
        block = make()
        x = torch.randn(5, 2, 3, dtype=DOUBLE)
        assert (torch.func.vmap(block)(x) - block(x)).abs().max() < 1e-14

    def test_jvp(self):
        block = make(solver=nanode.RK4())
        x, v = torch.randn(2, 2, 3, dtype=DOUBLE)
        _, slope = torch.func.jvp(block, (x,), (v,))
        h = 1e-6
        with torch.no_grad():
            expected = (block(x + h * v) - block(x - h * v)) / (2 * h)
        # Central differences: h² from f''', 1e-16 / h from rounding.
        assert (slope - expected).abs().max() < 1e-8

    def test_jacobians_of_parameters(self):
        block = make()
        x = torch.randn(3, dtype=DOUBLE)
        parameters = {n: p.detach() for n, p in block.named_parameters()}
        jacobian = torch.func.jacrev(lambda p: functional_call(block, p, (x,)))(parameters)
        for n, p in enumerate(torch.eye(3, dtype=DOUBLE)):
            rows = torch.autograd.grad((block(x) * p).sum(), list(block.parameters()))
            for row, name in zip(rows, parameters, strict=True):
                assert (jacobian[name][n] - row).abs().max() < 1e-14

    def test_double_backward(self):
        block = make(solver=nanode.Midpoint(), steps=4)
        assert torch.autograd.gradgradcheck(block, inputs(), atol=1e-7, fast_mode=True)


# ---- torch.export and torch.compile


@pytest.mark.parametrize("weights", ["basis", "network"])
def test_export_leaves_nothing_behind(weights):
    kind = (
        {"basis": nanode.Chebyshev(2)} if weights == "basis" else {"weights": nanode.Hypernetwork}
    )
    # Not the dtype that the block was made in: what it keeps per dtype is made while exporting.
    block = nanode.ODEBlock(nanode.TimeVarying(Net().float(), **kind), 4).double()
    x = torch.randn(2, 3, dtype=DOUBLE)
    exported = torch.export.export(block, (x,)).module()
    assert type(block(x)) is torch.Tensor
    assert (exported(x) - block(x)).abs().max() < 1e-14


def test_compiled_with_gradients():
    block = make(solver=nanode.Heun())
    compiled = torch.compile(block, fullgraph=True)
    x = inputs()[0]
    y, expected = gradients(block, x)
    z = compiled(x)
    # Fused kernels may round otherwise.
    assert (y - z).abs().max() < 1e-13
    weight = torch.linspace(-1, 1, z.numel(), dtype=DOUBLE).view_as(z)
    found = torch.autograd.grad((z * weight).sum(), [x, *block.parameters()])
    assert distance(dict(zip(expected, found, strict=True)), expected) < 1e-12


@pytest.mark.parametrize("dtype", [DOUBLE, torch.complex128])
def test_compiled_with_a_plain_function(dtype):
    block = nanode.ODEBlock(lambda t, x: t * x, 3)
    x = torch.ones(2, dtype=dtype)
    assert torch.equal(torch.compile(block, fullgraph=True, backend="eager")(x), block(x))


def test_compiled_without_gradients_under_a_recomputing_method():
    block = copy.deepcopy(make(nanode.Reversal(), nanode.Leapfrog()))  # as if just loaded
    compiled = torch.compile(block, fullgraph=True)
    x = inputs()[0].detach()
    with torch.no_grad():
        assert (compiled(x) - block(x)).abs().max() < 1e-13


# ---- autocast


@pytest.mark.parametrize(("gradient", "solver"), EXACT, ids=repr)
def test_autocast_keeps_the_state_in_single_precision(gradient, solver):
    block = make(gradient, solver, net=Net(hidden=16)).float()
    inside = set()
    block.field.module.register_forward_hook(
        lambda module, given, out: inside.add((given[0].dtype, out.dtype))
    )
    x = torch.randn(8, 3, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        y = block(x)
    assert y.dtype == torch.float32
    y.sum().backward()  # outside of autocast
    # The recomputation too took a single-precision state and ran in bf16.
    assert inside == {(torch.float32, torch.bfloat16)}
    assert all(p.grad.dtype == torch.float32 for p in block.parameters())


@pytest.mark.parametrize(
    ("gradient", "solver"), [*RECOMPUTING, (nanode.Reversal(), nanode.Leapfrog())], ids=repr
)
def test_gradients_under_autocast_are_backprops(gradient, solver):
    block = make(gradient, solver, net=Net(hidden=16)).float()
    x = torch.randn(8, 3, requires_grad=True)
    found = []
    for one in (block, like(block, nanode.Backprop())):
        with torch.autocast("cpu", torch.bfloat16):
            y = one(x)
        found.append(torch.autograd.grad(y.sum(), [x, *one.parameters()]))
    for ours, theirs in zip(*found, strict=True):
        # Backprop adds up the gradients of shared weights in bf16, whose unit is 8e-3; a
        # recomputation out of autocast, or in it only by half, is off by a unit in every stage.
        assert (ours - theirs).norm() < 4e-3 * theirs.norm()


def test_autocast_around_the_backward_pass_leaves_the_recomputation_alone():
    block = make(nanode.Checkpointed()).float()
    inside = set()
    block.field.module.register_forward_hook(lambda module, given, out: inside.add(out.dtype))
    y = block(torch.randn(8, 3, requires_grad=True)).sum()
    with torch.autocast("cpu", torch.bfloat16):
        y.backward()
    assert inside == {torch.float32}


# ---- dropout


class Noisy(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(3, 16), nn.Linear(16, 3)

    def forward(self, x):
        return self.last(nn.functional.dropout(torch.tanh(self.first(x)), 0.5, self.training))


@pytest.mark.parametrize(
    ("gradient", "solver"),
    [
        *RECOMPUTING,
        (nanode.Checkpointed(segments=1), nanode.RK4()),
        (nanode.Checkpointed(chunk=3), nanode.Leapfrog()),
        (nanode.Reversal(chunk=1), nanode.ReversibleHeun()),
    ],
    ids=repr,
)
def test_dropout_masks_are_drawn_again(gradient, solver):
    block = make(gradient, solver, net=Noisy())
    x = inputs()[0]
    found = []
    for one in (like(block, nanode.Backprop()), block):
        torch.manual_seed(5)
        result = gradients(one, x)
        found.append((*result, torch.get_rng_state()))
    (y, expected, after), (z, got, after_ours) = found
    assert (y - z).abs().max() < 1e-14
    assert distance(got, expected) < ROUNDING
    # The next random number is the one that Backprop would leave.
    assert torch.equal(after, after_ours)
    # And masks do differ from solve to solve, and from evaluation to evaluation.
    assert not torch.allclose(block(x), y)


def test_random_numbers_drawn_between_the_passes_are_left_alone():
    block = make(nanode.Checkpointed(), net=Noisy())
    x = inputs()[0]
    torch.manual_seed(5)
    _, expected = gradients(like(block, nanode.Backprop()), x)
    torch.manual_seed(5)
    y = block(x)
    torch.randn(100)
    between = torch.get_rng_state()
    weight = torch.linspace(-1, 1, y.numel(), dtype=DOUBLE).view_as(y)
    found = torch.autograd.grad((y * weight).sum(), [x, *block.parameters()])
    assert torch.equal(torch.get_rng_state(), between)
    assert distance(dict(zip(expected, found, strict=True)), expected) < ROUNDING


# ---- norms


def normed(gradient, solver, steps=4, seed=0):
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(3, 6), nanode.BatchNorm(6), nn.Tanh(), nn.Linear(6, 3)).double()
    field = nanode.TimeVarying(net, nanode.Bucketed(2), start=nanode.Noisy(0.5))
    return nanode.ODEBlock(field, steps, solver, gradient)


def norm_of(block):
    return block.field.module[1]


NORMED = [
    (nanode.Backprop(), nanode.Coupled(nanode.Heun())),
    (nanode.Checkpointed(), nanode.Coupled(nanode.Heun())),
    (nanode.Checkpointed(segments=4, chunk=1), nanode.Coupled(nanode.Heun())),
    (nanode.Reversal(), nanode.Coupled(nanode.Heun())),
]


@pytest.mark.parametrize(("gradient", "solver"), NORMED, ids=repr)
class TestNorms:
    def test_statistics_are_updated_once_a_forward_pass(self, gradient, solver):
        block = normed(gradient, solver)
        x = torch.randn(32, 3, dtype=DOUBLE, requires_grad=True)
        activations = []
        handle = block.field.module[0].register_forward_hook(
            lambda module, given, out: activations.append(out.detach())
        )
        y = block(x)
        handle.remove()
        norm = norm_of(block)
        assert norm.running_mean.shape == (16, 6)  # 4 steps of 4 evaluations
        # One update each, from zeros and ones, with momentum 0.1.
        for k, h in enumerate(activations):
            assert (norm.running_mean[k] - 0.1 * h.mean(0)).abs().max() < 1e-14
            assert (norm.running_var[k] - 0.9 - 0.1 * h.var(0)).abs().max() < 1e-14
        before = norm.running_mean.clone(), norm.running_var.clone()
        y.sum().backward()
        assert torch.equal(norm.running_mean, before[0])
        assert torch.equal(norm.running_var, before[1])

    def test_statistics_and_gradients_are_backprops(self, gradient, solver):
        block, reference = normed(gradient, solver), normed(nanode.Backprop(), solver)
        for _ in range(3):
            x = torch.randn(32, 3, dtype=DOUBLE, requires_grad=True)
            _, expected = gradients(reference, x)
            _, got = gradients(block, x)
            # The bias before a norm has no effect: its gradient is rounding.
            for grads in (got, expected):
                del grads["field.trajectory.coefficients.0.bias"]
            assert distance(got, expected) < 1e-11  # norms amplify the rounding of reversal
        for name, buffer in block.named_buffers():
            assert torch.equal(buffer, dict(reference.named_buffers())[name])

    def test_eval_mode_uses_them(self, gradient, solver):
        block = normed(gradient, solver)
        x = torch.randn(256, 3, dtype=DOUBLE)
        with torch.no_grad():
            for _ in range(200):
                trained = block(x)
        block.eval()
        before = norm_of(block).running_mean.clone()
        few = x[:2].clone().requires_grad_()
        got = block(few)
        got.sum().backward()
        assert torch.equal(norm_of(block).running_mean, before)
        # 0.9^200 = 7e-10 of the start is left; variances differ by 256/255 in F.batch_norm.
        assert (got - trained[:2]).abs().max() < 1e-2
        # Row by row, which a norm of the batch's own statistics can't be.
        assert (block(few[:1]) - got[:1]).abs().max() < 1e-14
        # Each evaluation has its own.
        assert (before[0] - before[-1]).abs().max() > 1e-3

    def test_eval_gradients(self, gradient, solver):
        block, reference = normed(gradient, solver), normed(nanode.Backprop(), solver)
        x = torch.randn(8, 3, dtype=DOUBLE, requires_grad=True)
        for one in (block, reference):
            one(x)
            one.eval()
        _, expected = gradients(reference, x)
        _, got = gradients(block, x)
        assert distance(got, expected) < 1e-11

    def test_copies_and_state_dicts_carry_them(self, gradient, solver):
        block = normed(gradient, solver)
        block(torch.randn(8, 3, dtype=DOUBLE))
        other = normed(gradient, solver, seed=1)
        other.load_state_dict(block.state_dict())
        x = torch.randn(2, 3, dtype=DOUBLE)
        expected = block.eval()(x)
        assert torch.equal(other.eval()(x), expected)
        assert torch.equal(copy.deepcopy(block)(x), expected)


def test_group_and_layer_norms_work_as_they_are():
    net = nn.Sequential(nn.Linear(3, 4), nn.GroupNorm(2, 4), nn.LayerNorm(4), nn.Linear(4, 3))
    block = make(nanode.Reversal(), nanode.Leapfrog(), net=net)
    x = inputs()[0]
    _, expected = gradients(like(block, nanode.Backprop()), x)
    _, got = gradients(block, x)
    assert distance(got, expected) < 1e-11  # norms amplify the rounding of reversal


@pytest.mark.parametrize("norm", [nn.BatchNorm1d, nn.BatchNorm2d, nn.SyncBatchNorm])
@pytest.mark.parametrize(
    "wrap", [nanode.Autonomous, lambda m: nanode.TimeVarying(m, nanode.Bucketed(2))]
)
def test_plain_batch_norm_is_refused(norm, wrap):
    module = nn.Sequential(nn.Linear(3, 3), norm(3))
    with pytest.raises(ValueError, match=rf"1 is a {norm.__name__} .*nanode\.BatchNorm"):
        wrap(module)


def test_plain_batch_norm_in_a_callable_module_is_refused():
    class Timed(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(3)

        def forward(self, t, x):
            return self.norm(x)

    with pytest.raises(ValueError, match="norm is a BatchNorm1d"):
        nanode.ODEBlock(Timed(), 4)


# ---- settings


def test_regrid():
    block = make(solver=nanode.RK4())
    x = inputs()[0]
    coarse = block(x)
    block.regrid(8)
    fine = block(x)
    assert block.steps == 8
    assert block.nfe.forward == 32
    assert torch.equal(fine, make(solver=nanode.RK4(), steps=8)(x))
    # Order 4: halving the step leaves a sixteenth.
    block.regrid(16)
    ratio = (coarse - fine).norm() / (fine - block(x)).norm()
    assert 10 < ratio < 24
    with pytest.raises(ValueError, match="steps must be an integer of at least 1"):
        block.regrid(0)
    assert block.steps == 16


def test_regrid_interpolates_statistics():
    block = normed(nanode.Backprop(), nanode.Euler(), steps=4)
    norm = norm_of(block)
    with torch.no_grad():  # a line in t
        norm.running_mean.copy_(torch.arange(4.0)[:, None] / 4)
    block.regrid(8)
    assert norm.running_mean.shape == (8, 6)
    # Beyond the last evaluation, at 3/4, the last value holds.
    expected = (torch.arange(8.0) / 8).clamp(max=0.75).double()
    assert (norm.running_mean - expected[:, None]).abs().max() < 1e-15
    block(torch.randn(4, 3, dtype=DOUBLE))


def test_another_grid_on_the_same_field_leaves_statistics_in_order():
    block = normed(nanode.Backprop(), nanode.Euler(), steps=4)
    x = torch.randn(32, 3, dtype=DOUBLE)
    with torch.no_grad():
        for _ in range(20):
            block(x)
    expected = block.eval()(x)
    nanode.odeint(block.field, x, steps=20)
    # Every fifth time of the finer grid is one of the block's, so nothing is lost.
    assert (block(x) - expected).abs().max() < 1e-14


@pytest.mark.parametrize(("gradient", "solver"), EXACT, ids=repr)
def test_wanted_times(gradient, solver):
    block = make(gradient, solver, at=[0.0, 0.5, 1.0])
    x = inputs()[0]
    states = block(x)
    assert torch.equal(states[0], x)
    assert torch.equal(states[2], make(gradient, solver)(x))
    if isinstance(solver, nanode.Euler):
        half = nanode.ODEBlock(block.field, 2, solver, interval=(0.0, 0.5))
        assert (states[1] - half(x)).abs().max() < 1e-15


def test_augment():
    net = Net(size=5)
    for axis, shape, padded in [(1, (2, 3), (2, 5)), (-1, (2, 4, 3), (2, 4, 5))]:
        block = make(net=copy.deepcopy(net), augment=2, augment_axis=axis)
        x = torch.randn(shape, dtype=DOUBLE, requires_grad=True)
        y = block(x)
        assert y.shape == padded
        full = torch.cat([x, torch.zeros(*shape[:-1], 2, dtype=DOUBLE)], dim=-1)
        assert torch.equal(y, like(block, nanode.Backprop())(full))
        y.sum().backward()
        assert x.grad.shape == shape
    images = nanode.ODEBlock(nanode.Autonomous(nn.Conv2d(5, 5, 1)), 2, augment=2)
    assert images(torch.randn(1, 3, 4, 4)).shape == (1, 5, 4, 4)


def test_refuses_augment():
    with pytest.raises(ValueError, match="augment must be an integer of at least 0, got -1"):
        make(augment=-1)
    with pytest.raises(ValueError, match="augment= needs a tensor as state, got tuple"):
        make(augment=1)((torch.ones(1), torch.ones(1)))
    with pytest.raises(ValueError, match=r"augment_axis=2 is no axis of a state of shape \(4, 3\)"):
        make(augment=1, augment_axis=2)(torch.ones(4, 3))


def test_scale():
    block = make(scale=0.5)
    half = make(scale=1.0)
    half.field.module.register_forward_hook(lambda module, given, out: 0.5 * out)
    x = inputs()[0]
    assert (block(x) - half(x)).abs().max() < 1e-15


@pytest.mark.parametrize(("gradient", "solver"), EXACT, ids=repr)
def test_conditioning(gradient, solver):
    class Conditioned(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 3)

        def forward(self, x, shift, mode, mask):
            assert mode == "tanh"
            return torch.tanh(self.linear(x) + shift) * mask

    block = make(gradient, solver, net=Conditioned())
    x, shift = (torch.randn(2, 3, dtype=DOUBLE, requires_grad=True) for _ in range(2))
    mask = torch.tensor([1, 0, 1])  # an integer tensor has no gradient
    y = block(x, shift, "tanh", mask)
    assert torch.equal(y[:, 1], x[:, 1])
    found = torch.autograd.grad(y.sum(), [x, shift])
    reference = like(block, nanode.Backprop())(x, shift, "tanh", mask)
    expected = torch.autograd.grad(reference.sum(), [x, shift])
    for ours, theirs in zip(found, expected, strict=True):
        assert (ours - theirs).abs().max() < ROUNDING


def test_repr_shows_the_solve():
    text = repr(make(nanode.Checkpointed(segments=2), nanode.RK4(), scale=4.0))
    for part in ("steps=4", "RK4()", "segments=2", "scale=4.0", "interval=(0.0, 1.0)"):
        assert part in text


def test_check_finite():
    field = nanode.Autonomous(nn.Linear(1, 1, bias=False))
    with torch.no_grad():
        field.module.weight.fill_(1e30)
    block = nanode.ODEBlock(field, 4, check_finite=True)
    with pytest.raises(ValueError, match=r"not finite after step 1 of 4, from t = 0\.25 to"):
        block(torch.full((1, 1), 1.0))


def test_a_block_without_weights():
    block = nanode.ODEBlock(lambda t, x: -x, 4, gradient=nanode.Checkpointed())
    x = torch.ones(2, requires_grad=True)
    block(x).sum().backward()
    assert torch.allclose(x.grad, torch.full((2,), 0.75**4))


def test_the_callers_warnings():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        nanode.ODEBlock(moving(nanode.Bucketed(3)), 4, nanode.Heun())
    assert len(caught) == 1


# ---- distributed


def _rank(rank, world, store, batch, weights, results):
    """One process: its share of the batch, gradients averaged by DDP."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=world
    )
    found = []
    for gradient, solver in EXACT:
        block = make(gradient, solver)
        block.load_state_dict(weights)
        model = DistributedDataParallel(block)
        model(batch.chunk(world)[rank]).square().mean().backward()
        found.append([p.grad.clone() for p in block.parameters()])
    if rank == 0:
        torch.save(found, results)
    torch.distributed.barrier()
    # Now and then gloo's threads abort a process that ends as others do, with any model.
    os._exit(0)


def test_distributed_data_parallel(tmp_path):
    block = make()
    batch = torch.randn(8, 3, dtype=DOUBLE)
    torch.multiprocessing.spawn(
        _rank,
        args=(2, tmp_path / "store", batch, block.state_dict(), tmp_path / "found"),
        nprocs=2,
    )
    found = torch.load(tmp_path / "found")
    for (gradient, solver), got in zip(EXACT, found, strict=True):
        reference = make(gradient, solver)
        reference.load_state_dict(block.state_dict())
        # Both halves are equally large, so the mean of their means is the mean.
        reference(batch).square().mean().backward()
        expected = {n: p.grad for n, p in reference.named_parameters()}
        assert distance(dict(zip(expected, got, strict=True)), expected) < 1e-12
