"""A block is a module among modules."""

import copy
import io
import pickle
import threading

import pytest
import torch
from torch import nn
from torch.func import functional_call

import nanode
from tests.block.common import EXACT, ROUNDING, like, make
from tests.gradients.models import DOUBLE, Net, distance, gradients, inputs, moving


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


@pytest.mark.parametrize("basis", [nanode.Legendre(2), nanode.RandomFourier(3)], ids=repr)
def test_meta_and_back(basis):
    """Made without memory, then filled from a checkpoint."""
    block = nanode.ODEBlock(nanode.TimeVarying(nn.Linear(3, 3), basis), 4)
    x, state = torch.randn(2, 3), block.state_dict()
    expected = block(x)
    state = {name: value.clone() for name, value in state.items()}
    block.to("meta").to_empty(device="cpu").load_state_dict(state)
    torch.testing.assert_close(block(x), expected, rtol=0, atol=0)
