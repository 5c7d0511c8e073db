"""What the documents say of the classifiers, written out once more in plain PyTorch.

Golden files pin names and shapes; that a stride, a basis or a pooling is another they can't see.
"""

import math

import pytest
import torch
import torch.nn.functional as F

import nanode
from nanode.block import flows
from nanode.models import create
from nanode.models.flows import SOLVERS

#: Basis, number of coefficients, and the base frequency of waves.
BASES = {
    "b-nanode-3": (nanode.Bucketed, 3, None),
    "monomial-3": (nanode.Monomial, 3, None),
    "chebyshev-3": (nanode.Chebyshev, 3, None),
    "legendre-3": (nanode.Legendre, 3, None),
    "t-nanode-3": (nanode.Trigonometric, 7, 1.0),
    "t-nanode-3-periodic": (nanode.Trigonometric, 7, 2 * math.pi),
    "rff-3": (nanode.RandomFourier, 4, None),
}


def flow_of(name, **options):
    (flow,) = flows(create(name, preset="tiny", channels=1, **options)).values()
    return flow


@pytest.mark.parametrize("name", BASES)
def test_bases(name):
    kind, size, frequency = BASES[name]
    basis = flow_of(name).field.trajectory.basis
    assert (type(basis), basis.size, basis.interval) == (kind, size, (0.0, 1.0))
    if frequency is not None:
        assert basis.frequency == frequency


@pytest.mark.parametrize(
    ("name", "moves"), [("chebyshev-3", False), ("chebyshev-3-independent", True)]
)
def test_weights_start_constant_in_time_or_with_all_coefficients_drawn(name, moves):
    one, *others = flow_of(name).field.trajectory.coefficients.get_parameter("2.weight")
    assert one.std() > 0
    assert all(bool(other.std() > 0) is moves for other in others)


def test_solvers():
    made = {name: repr(make()) for name, (make, _) in SOLVERS.items()}
    assert made == {
        "euler": "Euler()",
        "midpoint": "Midpoint()",
        "heun": "Heun()",
        "rk4": "RK4()",
        "leapfrog": "Leapfrog()",
        "reversible-heun": "ReversibleHeun()",
        "coupled-euler": "Coupled(Euler(), coupling=None)",
        "coupled-midpoint": "Coupled(Midpoint(), coupling=None)",
        "coupled-rk4": "Coupled(RK4(), coupling=None)",
    }


@pytest.mark.parametrize(("solver", "scale"), [("euler", 4.0), ("heun", 2.0)])
def test_steps_of_residual_networks_are_whole(solver, scale):
    assert flow_of("con-resnet", steps=4, solver=solver).scale == scale


@pytest.mark.parametrize(
    ("preset", "steps", "stages"),
    [("paper", 10, 1), ("staged", 6, 3), ("tiny", 4, 1), ("tiny-staged", 2, 2)],
)
def test_evaluations_of_each_preset(preset, steps, stages):
    assert [flow.steps for flow in flows(create("auto", preset=preset)).values()] == [
        steps
    ] * stages


@pytest.mark.parametrize(("preset", "steps"), [("tiny", [4]), ("tiny-staged", [2, 2])])
def test_layer_by_layer(preset, steps):
    """Stem, convolutions after norm and ReLU, halved resolution between stages, head."""
    torch.manual_seed(0)
    model = create("auto", preset=preset, channels=1, classes=5).double()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    p, x = dict(model.named_parameters()), torch.randn(4, 1, 8, 8, dtype=torch.float64)

    def activated(h, name):
        scale, shift = p[f"{name}.weight"], p[f"{name}.bias"]
        return F.batch_norm(h, None, None, scale, shift, training=True).relu()

    h = F.conv2d(x, p["stem.weight"], padding=1)
    for s, count in enumerate(steps):
        if s:
            h = F.conv2d(h, p[f"stages.{s}.0.weight"], stride=2)
        own = f"stages.{s}.{min(s, 1)}.field.module"
        for _ in range(count):
            y = h
            for n in range(0, 9 if preset == "tiny" else 6, 3):
                w = p[f"{own}.{n + 2}.weight"]
                y = F.conv2d(activated(y, f"{own}.{n}"), w, padding=w.shape[-1] // 2)
            h = h + y / count
    pooled = activated(h, "head.0").mean((2, 3))
    expected = F.linear(pooled, p["head.4.weight"], p["head.4.bias"])
    assert torch.allclose(model(x), expected, rtol=1e-10)  # sums of some hundred terms
