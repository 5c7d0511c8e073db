"""Hypernetwork against Ψ([v, t]) computed weight by weight.

Tolerance 1e-13: sums of at most some ten products of order 1 in float64, in another order.
"""

import copy
import math
from functools import partial

import pytest
import torch
from torch import nn

import nanode
from nanode.stages import Stage, Stages
from nanode.trajectories import hypernetwork
from tests.trajectories.samples import quadrature, step_stages, stirred

CLOSE = {"rtol": 1e-13, "atol": 1e-13}
KINDS = [
    {"embedding": 1, "hidden": (5,)},
    {"embedding": 3, "hidden": (5,)},
    {"embedding": 2, "hidden": (4, 6)},
]


def values():
    return {
        "a.weight": nn.Parameter(2 + 3 * torch.randn(3, 2)),
        "a.bias": nn.Parameter(torch.randn(3)),
        "scale": nn.Parameter(torch.randn(())),
    }


def naive(path, start, name, t):
    """One weight after the other: Ψ of the column of its embedding with t below."""
    vectors = dict(path.embeddings.named_parameters())[name]
    outputs = []
    for v in vectors.unbind(1):
        h = torch.cat([v, t.reshape(1)])
        for n, layer in enumerate(path.layers):
            h = layer.weight @ (h if n == 0 else h.tanh()) + layer.bias
        if path.residual:
            size = vectors.shape[1] * path.layers[-1].in_features
            outputs.append(v[0] + h[0] / math.sqrt(size))
        else:
            w = start[name].detach()
            outputs.append(w.mean() + w.std(correction=0) * h[0])
    return torch.stack(outputs).reshape(start[name].shape)


@pytest.mark.parametrize("residual", [True, False], ids=["residual", "bare"])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_is_the_network_of_embedding_and_time(kind, residual):
    start = values()
    path = stirred(nanode.Hypernetwork(start, **kind, residual=residual))
    stages = step_stages(4)
    table = path.table(stages)
    for name in start:
        assert path.embeddings.get_parameter(name).shape == (kind["embedding"], start[name].numel())
        assert table[name].shape == (4, *start[name].shape)
        for k, stage in enumerate(stages):
            expected = naive(path, start, name, torch.tensor(stage.time))
            torch.testing.assert_close(path(stage.time)[name], expected, **CLOSE)
            torch.testing.assert_close(table[name][k], expected, **CLOSE)
    # It moves, so that a forgotten t would show.
    assert (table["a.weight"][0] - table["a.weight"][-1]).abs().max() > 1e-2


def test_a_step_of_the_last_layer_is_no_longer_than_the_weights_own():
    # |tanh| <= 1, so J Jᵀ <= (1 + 1/h) for the last layer's h weights and its bias, whatever the
    # gradient; one that is the same for all weights comes nearest.
    path = stirred(nanode.Hypernetwork({"w": torch.randn(30, 20)}, hidden=(8,)))
    before = path(0.3)["w"]
    before.backward(torch.ones_like(before))
    with torch.no_grad():
        for p in path.layers[-1].parameters():
            p -= 0.01 * p.grad
    moved = torch.linalg.vector_norm(path(0.3)["w"] - before)
    own = 0.01 * math.sqrt(30 * 20)
    assert own / 8 < moved <= (1 + 1 / 8) * own


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_starts_as_the_module(kind):
    module = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3))
    x = torch.randn(2, 3)
    y = module(x)
    field = nanode.TimeVarying(module, weights=partial(nanode.Hypernetwork, **kind))
    for t in (0.0, 0.37, 1.0):
        assert torch.equal(field(t, x), y)


def test_a_bare_network_starts_at_the_mean_and_spread_of_its_parameter():
    start = {"w": nn.Parameter(5 + 0.1 * torch.randn(40, 40))}
    path = nanode.Hypernetwork(start, embedding=4, residual=False)
    w = path(0.5)["w"].detach()
    # Ψ's output is of order 1 whatever its inputs: torch's linear layers keep |Ψ| below 2 here.
    assert (w - 5).abs().max() < 2.2 * 0.1
    assert w.std() > 0.001


def test_equal_weights_of_a_bare_network_have_embeddings_of_their_own():
    path = nanode.Hypernetwork({"w": torch.ones(4, 4)}, residual=False)
    assert path.embeddings["w"].unique().numel() == 16


@pytest.mark.parametrize("residual", [True, False], ids=["residual", "bare"])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_gradients(kind, residual):
    start = {"w": nn.Parameter(torch.randn(2, 2)), "b": nn.Parameter(torch.randn(2))}
    path = stirred(nanode.Hypernetwork(start, **kind, residual=residual))
    names = [name for name, _ in path.named_parameters()]

    def single(t, *parameters):
        named = dict(zip(names, parameters, strict=True))
        return tuple(torch.func.functional_call(path, named, (t,)).values())

    t = torch.tensor(0.4, requires_grad=True)
    inputs = tuple(p.detach().requires_grad_() for p in path.parameters())
    torch.autograd.gradcheck(single, (t, *inputs))


def test_the_table_has_the_gradients_of_single_times():
    path = stirred(nanode.Hypernetwork(values(), embedding=2, residual=False))
    stages = step_stages(3)
    tables = sum(w.square().sum() for w in path.table(stages).values())
    singles = sum(w.square().sum() for s in stages for w in path(s.time).values())
    for got, expected in zip(
        torch.autograd.grad(tables, [*path.parameters()]),
        torch.autograd.grad(singles, [*path.parameters()]),
        strict=True,
    ):
        torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)


def test_recomputation_uses_the_parameters_of_the_call():
    # ``functional_call`` has put the module's own parameters back when backward recomputes.
    path = stirred(nanode.Hypernetwork(values(), embedding=2, residual=False))
    other = stirred(copy.deepcopy(path), seed=11)
    names = [name for name, _ in path.named_parameters()]
    given = [p.detach().clone().requires_grad_() for p in other.parameters()]
    named = dict(zip(names, given, strict=True))
    got = torch.func.functional_call(path, named, (0.3,))["a.weight"].square().sum()
    expected = other(0.3)["a.weight"].square().sum()
    for a, b in zip(
        torch.autograd.grad(got, given, allow_unused=True),
        torch.autograd.grad(expected, [*other.parameters()], allow_unused=True),
        strict=True,
    ):
        assert (a is None) == (b is None)
        assert a is None or torch.equal(a, b)


def test_chunks_change_nothing(monkeypatch):
    path = stirred(nanode.Hypernetwork(values(), embedding=2, hidden=(5, 3), residual=False))
    parameters = [*path.parameters()]

    def measured():
        table = path.table(step_stages(3))
        return table, torch.autograd.grad(sum(w.square().sum() for w in table.values()), parameters)

    whole, whole_grads = measured()
    sizes = []
    psi = hypernetwork._psi
    monkeypatch.setattr(
        hypernetwork, "_psi", lambda v, *rest: sizes.append(v.shape[1]) or psi(v, *rest)
    )
    # Two weights at once: 2 weights × 3 times × 5 hidden numbers.
    monkeypatch.setattr(hypernetwork, "_CHUNK", 30)
    parts, part_grads = measured()
    assert max(sizes) == 2
    for name in whole:
        torch.testing.assert_close(parts[name], whole[name], **CLOSE)
    for a, b in zip(part_grads, whole_grads, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def held_bytes(path, stages):
    """What autograd keeps of a table for the backward pass, each storage once."""
    kept = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        table = path.table(stages)
    assert table["w"].requires_grad
    return sum(kept.values())


def test_activations_are_not_held(monkeypatch):
    stages, weights, width = step_stages(20), 400, 64
    start = {"w": nn.Parameter(torch.randn(20, 20))}
    activations = 8 * len(stages) * weights * width
    narrow, wide = (nanode.Hypernetwork(start, hidden=(w,)) for w in (8, width))
    # The table itself is 1/64 of the activations; nothing beyond it and the parameters may stay.
    assert held_bytes(wide, stages) <= 2 * activations / width
    assert held_bytes(wide, stages) - held_bytes(narrow, stages) <= 8 * 4 * width
    # The counter sees them where they are held.
    monkeypatch.setattr(hypernetwork, "checkpoint", lambda f, *inputs, **_: f(*inputs))
    assert held_bytes(wide, stages) >= activations


@pytest.mark.parametrize("residual", [True, False], ids=["residual", "bare"])
def test_energy_matches_quadrature(residual):
    interval = (-1.0, 2.0)
    path = stirred(nanode.Hypernetwork(values(), residual=residual, interval=interval))
    t, w = quadrature(interval)
    at = [sum(float(v.detach().square().sum()) for v in path(float(s)).values()) for s in t]
    # A tanh network of order-1 weights is analytic well around the interval: 32 nodes reach 1e-9.
    assert nanode.function_penalty(path).item() == pytest.approx(
        float(torch.tensor(at) @ w), rel=1e-9
    )


def test_energy_of_derivatives_is_refused():
    path = nanode.Hypernetwork(values())
    with pytest.raises(ValueError, match=r"m = 0 only, got m = 1.*Expansion"):
        nanode.smoothness_penalty(path)


def test_complex_weights():
    start = {"w": nn.Parameter(torch.randn(3, 2, dtype=torch.complex128))}
    with pytest.warns(UserWarning, match="Complex modules"):  # torch's own
        path = nanode.Hypernetwork(start, embedding=2, residual=False)
    stirred(path)
    got = path(0.4)["w"]
    torch.testing.assert_close(got, naive(path, start, "w", torch.tensor(0.4)), **CLOSE)
    assert not nanode.function_penalty(path).is_complex()


def test_precision_of_times_follows_the_model():
    path = stirred(nanode.Hypernetwork(values(), residual=False))
    stages = step_stages(7)
    expected = path.table(step_stages(7))["a.weight"]
    again = copy.deepcopy(path).float()
    again.table(stages)
    again.double().load_state_dict(path.state_dict())
    # Times rounded to float32 would be off by 1e-8.
    torch.testing.assert_close(again.table(stages)["a.weight"], expected, **CLOSE)


def test_a_table_first_made_in_inference_mode_can_be_trained():
    path = nanode.Hypernetwork(values())
    stages = step_stages(3)
    with torch.inference_mode():
        path.table(stages)
    path.table(stages)["scale"].sum().backward()
    assert path.embeddings.scale.grad.item() == 3  # the residual path, once a stage


def test_without_grad_nothing_is_recorded():
    path = nanode.Hypernetwork(values())
    with torch.no_grad():
        assert not path.table(step_stages(3))["scale"].requires_grad


def test_autocast_leaves_weights_in_their_own_dtype():
    path = stirred(nanode.Hypernetwork(values(), residual=False).float())
    expected = path(0.3)["a.weight"]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(path(0.3)["a.weight"], expected)


def test_an_empty_solve_has_an_empty_table():
    table = nanode.Hypernetwork(values()).table(Stages(()))
    assert table["a.weight"].shape == (0, 3, 2)


# ---- bad input


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"embedding": 0}, "embedding must be a whole number of at least 1, got 0"),
        ({"embedding": 1.5}, "embedding must be a whole number"),
        ({"hidden": ()}, r"hidden must be layer widths, such as \(32,\); got \(\)"),
        ({"hidden": 32}, r"hidden must be layer widths, such as \(32,\); got 32"),
        ({"hidden": (4, 0)}, "a hidden width must be a whole number of at least 1, got 0"),
        ({"interval": (1.0, 0.0)}, "t0 < t1"),
    ],
    ids=str,
)
def test_refuses(given, message):
    with pytest.raises(ValueError, match=message):
        nanode.Hypernetwork(values(), **given)


def test_what_is_frozen_would_move_with_the_others():
    module = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 2))
    module[0].requires_grad_(False)
    with pytest.raises(ValueError, match=r"wouldn't stay as it is: 0\.weight, 0\.bias\. Leave it"):
        nanode.TimeVarying(module, weights=nanode.Hypernetwork)
    constant = dict.fromkeys(("0.weight", "0.bias"))
    field = nanode.TimeVarying(module, weights=nanode.Hypernetwork, overrides=constant)
    before = module[0].weight.clone()
    optimizer = torch.optim.SGD(field.parameters(), 0.1)
    for _ in range(3):
        optimizer.zero_grad()
        nanode.ODEBlock(field, 2)(torch.ones(4, 2)).square().sum().backward()
        optimizer.step()
    assert torch.equal(field.weights_at(0.5)["0.weight"], before)


def test_refuses_nothing():
    with pytest.raises(ValueError, match="at least one weight"):
        nanode.Hypernetwork({})


def test_refuses_times_that_are_no_numbers():
    path = nanode.Hypernetwork(values())
    with pytest.raises(ValueError, match="t must be a finite number, got nan"):
        path(float("nan"))
    with pytest.raises(ValueError, match="numbers as times"):
        path.table(Stages((Stage.alone(torch.tensor(0.5)),)))


def test_torch_func_differentiates_through_it():
    """What it recomputes otherwise it holds here: a transform can't follow."""
    torch.manual_seed(0)
    field = nanode.TimeVarying(nn.Linear(3, 3).double(), weights=nanode.Hypernetwork)
    block = nanode.ODEBlock(stirred(field), 3)
    x = torch.randn(2, 3, dtype=torch.float64)
    expected = torch.autograd.functional.jacobian(block, x)
    torch.testing.assert_close(torch.func.jacrev(block)(x), expected)
    parameters = dict(block.named_parameters())

    def loss(parameters):
        return torch.func.functional_call(block, parameters, x).square().sum()

    found = torch.func.grad(loss)(parameters)
    exact = torch.autograd.grad(block(x).square().sum(), list(parameters.values()))
    for one, other in zip(found.values(), exact, strict=True):
        torch.testing.assert_close(one, other)
