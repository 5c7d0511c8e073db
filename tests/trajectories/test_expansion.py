"""Expansion: α ↦ W(t), one time at once or a whole solve."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

import nanode
from nanode.stages import Stage, Stages
from tests.trajectories.samples import EVERY, SPLINES, make, step_stages, stirred

INTERVALS = [(0.0, 1.0), (-2.0, 3.0)]


def values():
    """Weights of all kinds of shape: a matrix, a convolution, a vector, a number, nothing."""
    return {
        "a.weight": torch.randn(3, 2),
        "a.bias": torch.randn(3),
        "b.kernel": torch.randn(2, 1, 3, 3),
        "scale": torch.randn(()),
        "nothing": torch.randn(3, 0),
    }


@pytest.mark.parametrize("interval", INTERVALS, ids=str)
@pytest.mark.parametrize("name", EVERY)
def test_starts_at_the_given_values_at_every_time(name, interval):
    given = values()
    path = nanode.Expansion(given, make(name, interval))
    for t in np.linspace(*interval, 13):
        for key, w in path(float(t)).items():
            if name in SPLINES:  # weights that sum to 1 within an ulp or two
                torch.testing.assert_close(w, given[key], rtol=4 * 2.3e-16, atol=0)
            else:
                assert torch.equal(w, given[key])


@pytest.mark.parametrize("interval", INTERVALS, ids=str)
@pytest.mark.parametrize("name", EVERY)
def test_table_stacks_single_times(name, interval):
    path = stirred(nanode.Expansion(values(), make(name, interval)))
    stages = step_stages(7, interval)
    table = path.table(stages)
    assert list(table) == list(path.shapes)
    for key, rows in table.items():
        single = torch.stack([path(stage.time)[key] for stage in stages])
        assert rows.shape == (7, *path.shapes[key])
        # The same sum of at most 9 products, in another order.
        torch.testing.assert_close(rows, single, rtol=1e-13, atol=1e-13)


def test_values_against_the_formula():
    alpha = torch.randn(4, 6)
    path = nanode.Expansion({"w": torch.zeros(2, 3)}, nanode.Legendre(3, interval=(-1.0, 2.0)))
    with torch.no_grad():
        path.coefficients.w.copy_(alpha)
    for t in (-1.0, 0.3, 1.9):
        x = (2 * t - 1.0) / 3.0  # [-1, 2] mapped to [-1, 1]
        expected = np.polynomial.legendre.legval(x, alpha.numpy()).reshape(2, 3)
        np.testing.assert_allclose(path(t)["w"].detach().numpy(), expected, rtol=0, atol=1e-14)


def test_a_jump_takes_the_side_that_is_asked_for():
    path = nanode.Expansion({"w": torch.zeros(1)}, nanode.Bucketed(2))
    with torch.no_grad():
        path.coefficients.w.copy_(torch.tensor([[1.0], [2.0]]))
    assert path(0.5)["w"] == 2
    assert path(0.5, "left")["w"] == 1
    assert path.jumps == path.breakpoints == (0.5,)


def test_a_whole_step_uses_the_bucket_of_its_start():
    path = nanode.Expansion({"w": torch.zeros(())}, nanode.Bucketed(10))
    with torch.no_grad():
        path.coefficients.w.copy_(torch.arange(10.0)[:, None])
    # k/10 in floating point lies on both sides of the exact tenths.
    assert path.table(step_stages(10))["w"].tolist() == list(range(10))
    assert path.table(step_stages(20))["w"].tolist() == [k // 2 for k in range(20)]


class Products(torch.overrides.TorchFunctionMode):
    """Counts matrix products."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func in (torch.Tensor.matmul, torch.Tensor.__matmul__, torch.matmul, torch.mm):
            self.count += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("steps", [1, 50])
def test_a_table_takes_one_product_per_weight(steps):
    path = nanode.Expansion({"a": torch.ones(2, 2), "b": torch.ones(3)}, nanode.Trigonometric(4))
    with Products() as products:
        path.table(step_stages(steps))
    assert products.count == 2


def test_the_basis_is_evaluated_once_per_grid(monkeypatch):
    calls = []
    on = nanode.Trigonometric.on
    monkeypatch.setattr(
        nanode.Trigonometric, "on", lambda self, stages: calls.append(self) or on(self, stages)
    )
    basis = nanode.Trigonometric(2)
    path = nanode.Expansion({"a": torch.ones(2), "b": torch.ones(3)}, basis)
    stages = step_stages(5)
    for _ in range(3):
        path.table(stages)
    assert calls == [basis]
    path.table(step_stages(5))
    assert len(calls) == 2


def test_values_of_a_grid_are_made_in_double_precision():
    # At order 60 a float32 phase of 60 is off by 2e-6; one rounded at the end by 6e-8.
    path = nanode.Expansion({"w": torch.zeros(1)}, nanode.Trigonometric(60)).float()
    with torch.no_grad():
        path.coefficients.w[60] = 1.0
    stages = step_stages(97)
    got = path.table(stages)["w"][:, 0].detach().numpy()
    expected = np.cos(60 * np.array([s.time for s in stages]))
    assert got.dtype == np.float32
    assert np.abs(got - expected).max() <= 6e-8


def test_new_buffers_of_the_basis_give_a_new_table():
    one, other = (
        nanode.Expansion({"w": torch.zeros(1)}, nanode.RandomFourier(3, seed=seed))
        for seed in (1, 2)
    )
    for path in (one, other):
        with torch.no_grad():
            path.coefficients.w.fill_(1.0)
    stages = step_stages(5)
    before, expected = one.table(stages)["w"], other.table(step_stages(5))["w"]
    assert not torch.allclose(before, expected)
    one.load_state_dict(other.state_dict())
    assert torch.equal(one.table(stages)["w"], expected)


def test_a_table_follows_the_dtype_on_the_same_grid():
    path = stirred(nanode.Expansion(values(), nanode.Chebyshev(3)))
    stages = step_stages(4)
    exact = path.table(stages)["a.weight"]
    assert path.float().table(stages)["a.weight"].dtype == torch.float32
    again = path.double().table(stages)["a.weight"]
    # The coefficients went through float32; the basis's values did not.
    torch.testing.assert_close(again, exact, rtol=0, atol=4 * 4 * 6e-8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_table_first_made_in_inference_mode_can_be_trained(dtype):
    path = nanode.Expansion({"w": nn.Parameter(torch.ones(2))}, nanode.Legendre(1)).to(dtype)
    stages = step_stages(2)
    with torch.inference_mode():
        path.table(stages)
    path.table(stages)["w"].sum().backward()
    # z_0 = 1 and z_1 = -1, 0 at t = 0, 1/2.
    expected = torch.tensor([[2.0, 2.0], [-1.0, -1.0]], dtype=dtype)
    assert torch.equal(path.coefficients.w.grad, expected)


def test_an_empty_solve_has_an_empty_table():
    table = nanode.Expansion(values(), nanode.Legendre(2)).table(Stages(()))
    assert table["b.kernel"].shape == (0, 2, 1, 3, 3)
    assert table["nothing"].shape == (0, 3, 0)


@pytest.mark.parametrize("name", EVERY)
def test_gradients_in_time_and_coefficients(name):
    path = stirred(nanode.Expansion({"w": nn.Parameter(torch.randn(2, 2))}, make(name)))
    t = torch.tensor(0.4, requires_grad=True)  # no knot
    alpha = path.coefficients.w

    def single(t, alpha):
        named = {"coefficients.w": alpha}
        return torch.func.functional_call(path, named, (t,))["w"]

    torch.autograd.gradcheck(single, (t, alpha))
    stages = step_stages(3)
    grid = np.stack([make(name)(torch.tensor(s.time)).numpy() for s in stages])
    upstream = torch.randn(3, 2, 2)
    (grad,) = torch.autograd.grad(path.table(stages)["w"], alpha, upstream)
    expected = grid.T @ upstream.reshape(3, 4).numpy()
    np.testing.assert_allclose(grad.numpy(), expected, rtol=1e-13, atol=1e-13)


def test_autocast_leaves_weights_in_their_own_dtype():
    path = stirred(nanode.Expansion({"w": torch.randn(3, 3)}, nanode.Chebyshev(3)).float())
    stages = step_stages(3)
    expected, table = path(0.3)["w"], path.table(stages)["w"]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(path(0.3)["w"], expected)
        assert torch.equal(path.table(stages)["w"], table)


def test_frozen_values_stay_frozen():
    given = {
        "free": nn.Parameter(torch.ones(2)),
        "frozen": nn.Parameter(torch.ones(2), requires_grad=False),
    }
    path = nanode.Expansion(given, nanode.Legendre(1))
    assert path.coefficients.free.requires_grad
    assert not path.coefficients.frozen.requires_grad


def test_the_given_tensors_are_not_shared():
    given = torch.ones(2, 2)
    stirred(nanode.Expansion({"w": given}, nanode.Constant()))
    assert torch.equal(given, torch.ones(2, 2))


@pytest.mark.parametrize("name", ["paths", "items", "coefficients.basis", "keys.values"])
def test_any_name_a_module_can_have(name):
    path = nanode.Expansion({f"{name}.weight": torch.ones(2)}, nanode.Constant())
    assert [*path.state_dict()] == [f"coefficients.{name}.weight"]
    assert torch.equal(path(0.5)[f"{name}.weight"], torch.ones(2))


def test_copies_are_independent():
    path = stirred(nanode.Expansion(values(), nanode.Trigonometric(2)))
    other = copy.deepcopy(path)
    before = path(0.3)["a.weight"].clone()
    stirred(other)
    assert torch.equal(path(0.3)["a.weight"], before)
    assert not torch.allclose(other(0.3)["a.weight"], before)


# ---- bad input


def test_refuses_a_basis_with_parameters():
    """Its values are kept, and wouldn't follow."""

    class Learnt(nanode.Legendre):
        def __init__(self):
            super().__init__(degree=2)
            self.stretch = nn.Parameter(torch.ones(()), requires_grad=False)

    with pytest.raises(ValueError, match=r"Learnt has parameters.*register_buffer"):
        nanode.Expansion({"w": torch.randn(2)}, Learnt())


def test_refuses_nothing():
    with pytest.raises(ValueError, match="at least one weight, got none"):
        nanode.Expansion({}, nanode.Constant())


@pytest.mark.parametrize("t", [float("nan"), float("inf"), float("-inf")])
def test_refuses_times_that_are_no_numbers(t):
    path = nanode.Expansion({"w": torch.ones(2)}, nanode.Legendre(2))
    with pytest.raises(ValueError, match=f"t must be a finite number, got {t!r}"):
        path(t)


def test_refuses_many_times_at_once():
    path = nanode.Expansion({"w": torch.ones(2)}, nanode.Legendre(2))
    with pytest.raises(ValueError, match=r"shape \(3,\).*vmap\(field.weights_at\)"):
        path(torch.zeros(3))


def test_a_table_refuses_tensor_times():
    path = nanode.Expansion({"w": torch.ones(2)}, nanode.Legendre(2))
    with pytest.raises(ValueError, match="numbers as times"):
        path.table(Stages((Stage.alone(torch.tensor(0.5, requires_grad=True)),)))


# ---- Joined


def test_joined_reads_as_one():
    a = stirred(nanode.Expansion({"a": torch.ones(2)}, nanode.Bucketed(2)), seed=1)
    b = stirred(nanode.Expansion({"b": torch.ones(3)}, nanode.PiecewiseLinear(4)), seed=2)
    both = nanode.trajectories.Joined([a, b])
    stages = step_stages(5)
    assert torch.equal(both(0.3)["a"], a(0.3)["a"])
    assert torch.equal(both.table(stages)["b"], b.table(stages)["b"])
    assert both.shapes == {"a": (2,), "b": (3,)}
    assert both.breakpoints == pytest.approx((1 / 3, 0.5, 2 / 3))
    assert both.jumps == (0.5,)
    assert torch.equal(both(0.5, "left")["a"], a(0.5, "left")["a"])
    torch.testing.assert_close(both.energy(1), a.energy(1) + b.energy(1))


def test_joined_refuses_several_intervals():
    parts = [
        nanode.Expansion({name: torch.ones(2)}, nanode.Legendre(2, interval=interval))
        for name, interval in (("a", (0.0, 1.0)), ("b", (0.0, 2.0)))
    ]
    with pytest.raises(ValueError, match=r"share an interval.*\(0\.0, 1\.0\).*\(0\.0, 2\.0\)"):
        nanode.trajectories.Joined(parts)


def test_prints_names_and_shapes():
    module = nn.Sequential(nn.Linear(2, 3), nn.Sequential(nn.Linear(3, 2, bias=False)))
    field = nanode.TimeVarying(module, nanode.Legendre(2))
    assert repr(field.trajectory.coefficients) == (
        "Tree(\n  0.weight: (3, 6)\n  0.bias: (3, 3)\n  1.0.weight: (3, 6)\n)"
    )
    block = nanode.ODEBlock(field, 2)
    assert "0.weight: (3, 6)" in repr(block)
    outer = nanode.TimeVarying(block, nanode.Legendre(1))  # takes what the inner one has
    assert "0.weight: moved by another field" in repr(outer)
