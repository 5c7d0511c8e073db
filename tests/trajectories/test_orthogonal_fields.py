"""Orthogonal weights in a field, in a solve, in training."""

import threading

import pytest
import torch
from torch import nn

import nanode
from nanode.trajectories import Joined
from tests.trajectories.orthogonal_samples import FORMS, gap
from tests.trajectories.samples import step_stages, stirred


def network():
    return nn.Sequential(
        nn.Conv2d(4, 6, 3, padding=1), nn.Tanh(), nn.GroupNorm(2, 6), nn.Conv2d(6, 4, 1)
    )


def test_matrices_and_kernels_move_orthogonally_and_the_rest_as_ever(form):
    field = stirred(nanode.TimeVarying(network(), nanode.Chebyshev(3), orthogonal=form))
    w = field.weights_at(0.3)
    assert gap(w["0.weight"]) <= 1e-12
    assert gap(w["3.weight"]) <= 1e-12
    ordinary, orthogonal = field.trajectory.parts
    assert isinstance(ordinary, nanode.Expansion)
    assert list(ordinary.shapes) == ["0.bias", "2.weight", "2.bias", "3.bias"]
    assert list(orthogonal.shapes) == ["0.weight", "3.weight"]
    assert "trajectory.parts.1.inner.coefficients.0.weight" in field.state_dict()


def test_forms_are_chosen_by_name():
    basis = nanode.Legendre(2)
    field = nanode.TimeVarying(
        nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)),
        basis,
        overrides={"3.*": None},
        orthogonal={"*": nanode.Householder(), "1": nanode.Skew(), "2.weight": None},
    )
    forms = {
        key: form
        for part in field.trajectory.parts
        if isinstance(part, nanode.Orthogonal)
        for key, form in part.forms.items()
    }
    assert forms == {"0.weight": nanode.Householder(), "1.weight": nanode.Skew()}


def test_a_whole_field_of_orthogonal_weights_has_one_trajectory(form):
    field = nanode.TimeVarying(nn.Linear(3, 3, bias=False), nanode.Legendre(2), orthogonal=form)
    assert isinstance(field.trajectory, nanode.Orthogonal)
    field = nanode.TimeVarying(
        nn.Linear(3, 3, bias=False), weights=nanode.Hypernetwork, orthogonal=form
    )
    assert isinstance(field.trajectory.inner, nanode.Hypernetwork)


def passed(block, x):
    x = x.clone().requires_grad_()
    y = block(x)
    upstream = torch.linspace(-1, 1, y.numel()).view_as(y)
    return [y.detach(), *torch.autograd.grad(y, [x, *block.parameters()], upstream)]


def solved(gradient, solver, form):
    torch.manual_seed(3)
    field = stirred(nanode.TimeVarying(network(), nanode.Chebyshev(3), orthogonal=form))
    return passed(nanode.ODEBlock(field, 4, solver, gradient), torch.randn(2, 4, 5, 5))


@pytest.mark.parametrize(
    ("gradient", "solver"),
    [
        (nanode.Checkpointed(), nanode.Euler()),
        (nanode.Checkpointed(chunk=2), nanode.RK4()),
        (nanode.Reversal(), nanode.Coupled(nanode.Euler())),
        (nanode.Reversal(chunk=3), nanode.Leapfrog()),
    ],
    ids=lambda value: type(value).__name__,
)
def test_gradient_methods_agree(form, gradient, solver):
    expected = solved(nanode.Backprop(), solver, form)
    for got, want in zip(solved(gradient, solver, form), expected, strict=True):
        # Reversal rebuilds states to about 1e-12 in double precision.
        torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9)


def test_tables_can_be_compiled():
    """As part of a whole block: a block that compiles its field gets its tables ready-made."""
    module = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 4), nn.Linear(4, 4))
    forms = dict(zip("023", FORMS, strict=True))
    field = stirred(nanode.TimeVarying(module, nanode.Chebyshev(3), orthogonal=forms))
    block, x = nanode.ODEBlock(field, 2), torch.randn(3, 4)
    torch._dynamo.reset()  # torch counts recompilations over all blocks of a process
    compiled = torch.compile(block, fullgraph=True, backend="aot_eager")
    for got, want in zip(passed(compiled, x), passed(block, x), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)


def test_threads_share_a_field(form):
    field = stirred(nanode.TimeVarying(network(), nanode.Chebyshev(3), orthogonal=form))
    block = nanode.ODEBlock(field, 3)
    inputs = torch.randn(4, 2, 4, 5, 5)
    with torch.no_grad():
        expected = [block(x) for x in inputs]
    found = [None] * 4

    def work(i):
        with torch.no_grad():
            for _ in range(3):
                found[i] = block(inputs[i])

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for got, want in zip(found, expected, strict=True):
        assert torch.equal(got, want)


def test_training_stays_orthogonal(form):
    torch.manual_seed(0)
    target = torch.linalg.qr(torch.randn(4, 4)).Q
    field = nanode.TimeVarying(
        nn.Linear(4, 4, bias=False), nanode.Chebyshev(2), orthogonal=form
    ).float()
    if torch.linalg.det(field.weights_at(0.0)["weight"]) * torch.linalg.det(target) < 0:
        target[0] *= -1
    optimizer = torch.optim.SGD(field.parameters(), lr=0.2)
    stages = step_stages(5)
    losses = []
    for _ in range(300):
        optimizer.zero_grad()
        w = field.trajectory.table(stages)["weight"]
        loss = (w - target.float()).square().sum((1, 2)).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        assert max(gap(row) for row in w) <= 1e-5
    assert losses[-1] < 1e-3 * losses[0]


def test_a_skew_field_keeps_its_norm():
    field = stirred(
        nanode.TimeVarying(
            nn.Linear(6, 6, bias=False), nanode.Legendre(2), orthogonal=nanode.Skew()
        )
    )
    x = torch.randn(3, 6)
    y = nanode.ODEBlock(field, 400, nanode.RK4())(x)
    assert (y - x).norm() > 0.5
    # RK4 loses h⁵ω⁶/144 a step: ω about 5, h = 1/400.
    torch.testing.assert_close(y.norm(dim=1), x.norm(dim=1), rtol=1e-7, atol=0)


@pytest.mark.parametrize("first", [nanode.Bucketed(2), nanode.Trigonometric(1)], ids=repr)
@pytest.mark.parametrize("other", [nanode.Legendre(3), nanode.Bucketed(3)], ids=repr)
def test_smoothness_of_weights_that_move_in_different_bases_is_their_sum(first, other):
    """Each by itself has the penalty of an expansion alone."""

    def start(name, basis):
        torch.manual_seed(3)
        values = {name: torch.randn(4, 4, dtype=torch.float64)}
        return nanode.Orthogonal(
            values, lambda g: nanode.Expansion(g, basis, nanode.Independent()), nanode.Cayley()
        )

    alone = [start("a", first), start("b", other)]
    both = {name: torch.randn(4, 4, dtype=torch.float64) for name in "ab"}
    joint = nanode.Orthogonal(
        both,
        lambda g: Joined(
            [
                nanode.Expansion({"a": g["a"]}, first),
                nanode.Expansion({"b": g["b"]}, other),
            ]
        ),
        nanode.Cayley(),
    )
    for part, one in zip(joint.inner.parts, alone, strict=True):
        part.load_state_dict(one.inner.state_dict())
    joint.fixed.load_state_dict({k: v for one in alone for k, v in one.fixed.state_dict().items()})
    for m in (0, 1):
        expected = sum(one.energy(m).item() for one in alone)
        assert joint.energy(m).item() == pytest.approx(expected, rel=1e-10)
    assert all(one.energy(1) > 0.1 for one in alone)


def test_smoothness_of_a_hypernetwork_alone_has_a_gradient():
    """Also where nothing else moves; against a small step."""
    torch.manual_seed(0)
    layer = nn.Linear(4, 4, bias=False).double()
    field = nanode.TimeVarying(layer, weights=nanode.Hypernetwork, orthogonal=nanode.Householder())
    stirred(field)
    parameters = list(field.parameters())
    grads = torch.autograd.grad(nanode.smoothness_penalty(field), parameters)
    along = [torch.randn_like(p) for p in parameters]

    def at(size):
        moved = {
            name: p.detach() + size * a
            for (name, p), a in zip(field.named_parameters(), along, strict=True)
        }
        return torch.func.functional_call(
            _Penalty(field), {f"field.{n}": p for n, p in moved.items()}
        )

    measured = (at(1e-5) - at(-1e-5)).item() / 2e-5
    assert measured != 0
    found = sum((g * a).sum().item() for g, a in zip(grads, along, strict=True))
    assert found == pytest.approx(measured, rel=1e-5)


class _Penalty(nn.Module):
    def __init__(self, field):
        super().__init__()
        self.field = field

    def forward(self):
        return nanode.smoothness_penalty(self.field)
