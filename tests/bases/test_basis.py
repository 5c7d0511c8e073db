from fractions import Fraction

import numpy as np
import pytest
import torch

import nanode.bases
from nanode.bases import Basis, BSpline, Monomial
from nanode.bases.basis import even
from nanode.bases.differences import differences
from nanode.bases.quadrature import gauss
from nanode.stages import Stage, Stages


class Step(Basis):
    """A jump at ½, as a user might write it: the default ``on`` must honour sides."""

    size = 1
    breakpoints = (0.5,)

    def __init__(self):
        super().__init__()
        self.calls = 0

    def values(self, t, side):
        self.calls += 1
        up = t >= 0.5 if side == "right" else t > 0.5
        return up.to(t.dtype)[..., None]

    def gram(self, m=0):
        return torch.full((1, 1), 0.5, dtype=torch.float64)

    def unit(self):
        pytest.fail("a step spans no constants, and its values don't need them")


def stages(*sides):
    half = Fraction(1, 2)
    return Stages(tuple(Stage(i, i, 0.5, half, side) for i, side in enumerate(sides)))


def test_on_honours_the_side_of_each_stage():
    assert Step().on(stages("left", "right", "left")).flatten().tolist() == [0.0, 1.0, 0.0]
    assert Step().on(stages("left")).flatten().tolist() == [0.0]


def test_on_asks_once_per_side():
    for sides, calls in {("right",) * 9: 1, ("left",) * 9: 1, ("left", "right") * 4: 2}.items():
        basis = Step()
        basis.on(stages(*sides))
        assert basis.calls == calls


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_whole_times_take_the_default_dtype(dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        assert Monomial(2)(torch.tensor([0, 1])).dtype == dtype
    finally:
        torch.set_default_dtype(before)


def test_the_exported_names_are_the_bases():
    exported = {getattr(nanode.bases, name) for name in nanode.bases.__all__}
    assert all(issubclass(cls, Basis) for cls in exported)
    assert len(exported) == 10


def test_number_times_compile_without_a_break():
    basis = Monomial(2)
    torch._dynamo.reset()
    compiled = torch.compile(lambda x, t: x * basis(t)[1], backend="eager", fullgraph=True)
    for t in (0.25, 0.5, 0.75):
        assert float(compiled(torch.ones(()), t)) == t


def test_even_ends_are_the_nearest_floats():
    assert even((0.0, 1.0), 10) == tuple(k / 10 for k in range(11))
    assert even((0.1, 0.7), 3)[-1] == 0.7
    assert even((0.0, 3.0), 10) == tuple(3 * k / 10 for k in range(11))


@pytest.mark.parametrize("count", [1, 2, 5, 30])
def test_gauss_is_exact_to_its_degree(count):
    t, w = gauss([-1.0, 0.25, 2.0], count)
    for n in range(2 * count):
        exact = (2.0 ** (n + 1) - (-1.0) ** (n + 1)) / (n + 1)
        assert abs(float(w @ t**n) - exact) <= 1e-13 * max(1.0, exact)


def test_uneven_differences_are_exact_for_lines():
    # Piece values of a line at the middles have its slope as quotients, and no second difference.
    edges = np.array([0.0, 0.1, 0.5, 0.7, 2.0])
    middles = torch.from_numpy((edges[1:] + edges[:-1]) / 2)
    quotients, widths = differences(edges, 1)
    assert torch.allclose(quotients @ (3 * middles), torch.full((3,), 3.0, dtype=torch.float64))
    assert abs(float(widths.sum()) - float(middles[-1] - middles[0])) < 1e-15
    assert (differences(edges, 2)[0] @ middles).abs().max() < 1e-13


def test_splines_are_evaluated_without_a_loop_over_times():
    basis = BSpline(5)
    with torch.profiler.profile() as few:
        basis(torch.rand(2))
    with torch.profiler.profile() as many:
        basis(torch.rand(2000))
    assert len(few.events()) == len(many.events())
