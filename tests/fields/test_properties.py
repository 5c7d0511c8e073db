"""Random trees of modules, bases, orders and intervals."""

import copy

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

import nanode
from tests.trajectories.samples import step_stages, stirred

WIDTH = 4
# Seconds depend on the machine; what is drawn does not, so that a failure can be repeated.
RARELY = settings(
    max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)


class Branches(nn.Module):
    """A dict of branches, summed."""

    def __init__(self, branches):
        super().__init__()
        self.branches = nn.ModuleDict(branches)

    def forward(self, x):
        return sum(branch(x) for branch in self.branches.values())


class Residual(nn.Module):
    """A branch beside the identity, with a gain of its own."""

    def __init__(self, branch):
        super().__init__()
        self.branch, self.gain = branch, nn.Parameter(torch.tensor(0.7))

    def forward(self, x):
        return x + self.gain * self.branch(x)


LEAVES = {
    "linear": lambda: nn.Linear(WIDTH, WIDTH),
    "bare": lambda: nn.Linear(WIDTH, WIDTH, bias=False),
    "conv": lambda: nn.Conv1d(2, 2, 3, padding=1),
    "norm": lambda: nn.LayerNorm(WIDTH),
    "group": lambda: nn.GroupNorm(2, 2),
    "prelu": lambda: nn.PReLU(),
    "tanh": lambda: nn.Tanh(),
}

# A tree is a description, so that hypothesis can shrink it: a leaf's name, or (kind, children).
trees = st.recursive(
    st.sampled_from(sorted(LEAVES)),
    lambda inner: st.tuples(
        st.sampled_from(["chain", "branches", "residual", "shared"]),
        st.lists(inner, min_size=1, max_size=3),
    ),
    max_leaves=6,
)
ends = st.integers(-40, 40).map(lambda n: n / 8)
intervals = st.tuples(ends, ends).filter(lambda i: i[0] < i[1])
orders = st.integers(1, 5)
EXACT = {
    "constant": lambda n, interval: nanode.Constant(interval),
    "bucketed": lambda n, interval: nanode.Bucketed(n, interval),
    "monomial": lambda n, interval: nanode.Monomial(n, interval),
    "chebyshev": lambda n, interval: nanode.Chebyshev(n, interval),
    "legendre": lambda n, interval: nanode.Legendre(n, interval),
    "trigonometric": lambda n, interval: nanode.Trigonometric(n, interval=interval),
    "random": lambda n, interval: nanode.RandomFourier(n, seed=n, interval=interval),
}
ROUNDED = {
    "hats": lambda n, interval: nanode.PiecewiseLinear(n + 1, interval),
    "splines": lambda n, interval: nanode.BSpline(n + 1, degree=n, interval=interval),
}
bases = st.sampled_from(sorted(EXACT | ROUNDED))


def built(tree):
    if isinstance(tree, str):
        return LEAVES[tree]()
    kind, children = tree
    parts = [built(child) for child in children]
    if kind == "chain":
        return nn.Sequential(*parts)
    if kind == "branches":
        return Branches({f"b{n}": part for n, part in enumerate(parts)})
    if kind == "residual":
        return Residual(nn.Sequential(*parts))
    # The same modules twice, then a layer whose weight is tied to the first linear one, if any.
    chain = nn.Sequential(*parts, *parts)
    linear = next((m for m in chain.modules() if isinstance(m, nn.Linear)), None)
    if linear is not None:
        tied = nn.Linear(WIDTH, WIDTH)
        tied.weight = linear.weight
        chain.append(tied)
    return chain


def module_of(tree, seed):
    torch.manual_seed(seed)
    module = built(tree)
    if not [*module.parameters()]:
        module = nn.Sequential(module, nn.Linear(WIDTH, WIDTH))
    return module, torch.randn(3, 2, WIDTH)


def basis_of(name, order, interval):
    return (EXACT | ROUNDED)[name](order, interval)


def inside(interval, places):
    t0, t1 = interval
    return [t0 + (t1 - t0) * place / 16 for place in places]


@RARELY
@given(
    tree=trees,
    name=bases,
    order=orders,
    interval=intervals,
    places=st.lists(st.integers(0, 16), min_size=1, max_size=3),
    seed=st.integers(0, 99),
)
def test_starts_as_the_module(tree, name, order, interval, places, seed):
    module, x = module_of(tree, seed)
    alone = copy.deepcopy(module)
    expected = alone(x)
    field = nanode.TimeVarying(module, basis_of(name, order, interval))
    assert sorted(field.trajectory.shapes) == sorted(dict(alone.named_parameters()))
    for t in inside(interval, places):
        if name in EXACT:
            assert torch.equal(field(t, x), expected)
        else:
            # Weights within some ulps; a handful of layers and norms amplify it.
            torch.testing.assert_close(field(t, x), expected, rtol=1e-11, atol=1e-11)


@RARELY
@given(tree=trees, name=bases, order=orders, interval=intervals, seed=st.integers(0, 99))
def test_state_dicts_and_copies_round_trip(tree, name, order, interval, seed):
    module, x = module_of(tree, seed)
    twin = copy.deepcopy(module)
    field = stirred(nanode.TimeVarying(module, basis_of(name, order, interval)), seed=seed)
    other = nanode.TimeVarying(twin, basis_of(name, order, interval))
    other.load_state_dict(field.state_dict())
    t = inside(interval, [5])[0]
    expected = field(t, x)
    assert torch.equal(other(t, x), expected)
    assert torch.equal(copy.deepcopy(field)(t, x), expected)
    names = {n.removeprefix("trajectory.coefficients.") for n, _ in field.named_parameters()}
    assert names == set(field.trajectory.shapes)


@RARELY
@given(
    tree=trees,
    name=bases,
    order=orders,
    interval=intervals,
    steps=st.integers(1, 7),
    frozen=st.booleans(),
    seed=st.integers(0, 99),
)
def test_tables_are_stacked_single_times(tree, name, order, interval, steps, frozen, seed):
    module, x = module_of(tree, seed)
    first = next(iter(dict(module.named_parameters())))
    overrides = {first: None} if frozen and len([*module.parameters()]) > 1 else {}
    field = stirred(
        nanode.TimeVarying(module, basis_of(name, order, interval), overrides=overrides), seed=seed
    )
    stages = step_stages(steps, interval)
    weights = field.weights(stages)
    assert list(weights.constant) == [*overrides]
    for k, stage in enumerate(stages):
        single = field.weights_at(stage.time)
        row = weights.at(k)
        assert row.keys() == single.keys()
        for key, w in single.items():
            # The same sum in another order; monomials reach 5⁵ on these intervals.
            scale = 1e-13 * max(1.0, max(abs(end) for end in interval) ** order)
            torch.testing.assert_close(row[key], w, rtol=1e-13, atol=scale)
        assert torch.equal(field.evaluate(single, stage, x), field(stage.time, x))
