"""What orthogonal weights refuse, and how they say so."""

from functools import partial

import pytest
import torch
from torch import nn

import nanode
from tests.trajectories.orthogonal_samples import path


def start_of_zeros(parameters, basis):
    return {name: torch.zeros(basis.size, *w.shape) for name, w in parameters.items()}


def test_refuses_a_start_with_a_zero_vector():
    with pytest.raises(ValueError, match=r"'w' at t = 0\.0: reflection vector 0 is zero"):
        path(nanode.Householder(), given={"w": torch.randn(3, 3)}, start=start_of_zeros)


def rows_times(*factors):
    """Coefficients that are multiples of the weight."""
    return lambda parameters, basis: {
        name: torch.stack([factor * w for factor in factors]) for name, w in parameters.items()
    }


@pytest.mark.parametrize(
    ("basis", "start", "when"),
    [
        (nanode.Bucketed(2), rows_times(1, 0), "0.5"),
        (nanode.Bucketed(100), rows_times(*[1] * 99, 0), "0.99"),
        (nanode.PiecewiseLinear(3), rows_times(1, 0, 1), "0.5"),
        (nanode.Monomial(1), rows_times(1, -2), "0.5"),  # u(t) = (1 − 2t) u
        (nanode.Monomial(1), rows_times(1, -1), "1.0"),
        (nanode.Bucketed(2), rows_times(1, 1e-200), "0.5"),  # its square is zero
    ],
)
def test_refuses_vectors_that_vanish_later(basis, start, when):
    given = {"v": torch.randn(4, 4), "w": torch.randn(3, 3)}
    forms = {"v": nanode.Cayley(), "w": nanode.Householder()}
    with pytest.raises(ValueError, match=rf"'w' at t = {when}: .*vector 0 is zero.*cancel"):
        path(forms, basis, given, start)


def test_other_forms_may_vanish():
    moving = path(nanode.Cayley(), nanode.Bucketed(2), {"w": torch.randn(3, 3)}, rows_times(1, 0))
    assert moving(0.75)["w"].isfinite().all()


def test_a_vector_that_vanishes_elsewhere_is_found_by_its_time():
    """u(t) = (1 − 4t) u. On either side of 1/4 W is the same, and at it a reflection is lost."""
    given = {"w": torch.eye(3)}
    moving = path(nanode.Householder(), nanode.Monomial(1), given, rows_times(1, -4))
    near = [moving(t)["w"].detach() for t in (0.0, 0.25 - 1e-9, 0.25 + 1e-9, 1.0)]
    for w in near[1:]:
        torch.testing.assert_close(w, near[0], rtol=0, atol=1e-12)
    dets = [float(torch.linalg.det(w)) for w in (near[0], moving(0.25)["w"].detach())]
    assert dets == pytest.approx([1, -1])
    moving.check([k / 10 for k in range(11)])
    with pytest.raises(ValueError, match=r"'w' at t = 0\.25: reflection vector 0 is zero"):
        moving.check([k / 20 for k in range(21)])


@pytest.mark.parametrize(
    ("form", "given", "message"),
    [
        (
            nanode.Skew(),
            torch.randn(3, 4),
            r"'w' of shape \(3, 4\) can't be started: .*square",
        ),
        (
            nanode.Householder(4),
            torch.randn(3, 5),
            r"'w' of shape \(3, 5\) can't .*: 4 reflections",
        ),
        (nanode.Householder(), torch.zeros(3, 3), r"'w' .*can't be started: its rank is 0 of 3"),
        (nanode.Householder(), torch.randn(3), r"'w' can't be kept orthogonal.*\(3,\)"),
        (nanode.Cayley(), torch.randn(0, 3), r"'w' can't be kept orthogonal.*\(0, 3\)"),
        (nanode.Cayley(), torch.randn(2, 2, dtype=torch.complex128), "complex128"),
        ({"v": nanode.Cayley()}, torch.randn(2, 2), r"one for each of \['w'\], got {'v': Cayley"),
        ("cayley", torch.randn(2, 2), "form must be one such as.*got 'cayley'"),
    ],
)
def test_refuses(form, given, message):
    with pytest.raises(ValueError, match=message):
        path(form, given={"w": given})


def test_refuses_nothing():
    with pytest.raises(ValueError, match="at least one weight, got none"):
        nanode.Orthogonal({}, partial(nanode.Expansion, basis=nanode.Constant()), nanode.Cayley())


@pytest.mark.parametrize(
    ("orthogonal", "message"),
    [
        ("householder", "orthogonal must be a form such as"),
        (True, "orthogonal must be a form such as"),
        ({"0.weight": "householder"}, "the form for '0.weight' must be one such as"),
        (
            {"0.wieght": nanode.Householder()},
            r"'0\.wieght' names no parameter; there are: 0\.weight",
        ),
        ({"0.bias": nanode.Householder()}, r"names no matrix or kernel that moves, only 0\.bias"),
        ({"1": nanode.Householder()}, r"names no matrix or kernel that moves.*nanode\.Constant"),
        (nanode.Skew(), r"'0\.weight' .*can't be started: .*square"),
    ],
)
def test_field_refuses(orthogonal, message):
    module = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 3))
    with pytest.raises(ValueError, match=message):
        nanode.TimeVarying(module, nanode.Legendre(2), overrides={"1": None}, orthogonal=orthogonal)


def test_untied_refuses_fewer_reflections():
    with pytest.raises(ValueError, match=r"shape \(4, 4\), expected \(4, 2\)"):
        nanode.TimeVarying(
            nn.Linear(4, 4, bias=False),
            nanode.Bucketed(2),
            start="untied",
            orthogonal=nanode.Householder(2),
        )
