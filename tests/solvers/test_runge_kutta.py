from fractions import Fraction

import pytest
import torch
import torchdiffeq

import nanode
from nanode.solvers import RungeKutta, Tableau
from tests.solvers.problems import DOUBLE, KNOWN

METHODS = [nanode.Euler, nanode.Midpoint, nanode.Heun, nanode.RK4, nanode.ThreeEighths]


def residuals(tableau):
    """The order conditions of a tableau by order, each left side minus right side (Butcher)."""
    s = range(len(tableau.b))
    a = [[*row, *[Fraction(0)] * (len(s) - len(row))] for row in tableau.a]
    b, c = tableau.b, tableau.c

    def through(v):
        return [sum((a[i][j] * v[j] for j in s), Fraction(0)) for i in s]

    def total(v):
        return sum((b[i] * v[i] for i in s), Fraction(0))

    def times(*vs):
        out = [Fraction(1) for _ in s]
        for v in vs:
            out = [p * q for p, q in zip(out, v, strict=True)]
        return out

    ac, acc = through(c), through(times(c, c))
    return {
        1: [total(times()) - 1],
        2: [total(c) - Fraction(1, 2)],
        3: [total(times(c, c)) - Fraction(1, 3), total(ac) - Fraction(1, 6)],
        4: [
            total(times(c, c, c)) - Fraction(1, 4),
            total(times(c, ac)) - Fraction(1, 8),
            total(acc) - Fraction(1, 12),
            total(through(ac)) - Fraction(1, 24),
        ],
        5: [total(times(c, c, c, c)) - Fraction(1, 5)],
    }


@pytest.mark.parametrize("method", METHODS)
def test_order_conditions_hold_exactly_and_no_further(method):
    tableau = method().tableau
    conditions = residuals(tableau)
    for order in range(1, tableau.order + 1):
        assert conditions[order] == [0] * len(conditions[order]), order
    assert any(conditions[tableau.order + 1])


@pytest.mark.parametrize("method", METHODS)
def test_nodes_are_row_sums_in_exact_fractions(method):
    stepper = method()
    tableau = stepper.tableau
    assert all(isinstance(entry, Fraction) for row in (*tableau.a, tableau.b) for entry in row)
    assert tableau.c == tuple(sum(row, Fraction(0)) for row in tableau.a) == stepper.fractions
    assert [len(row) for row in tableau.a] == list(range(len(tableau.b)))


def test_rows_of_the_wrong_length_are_refused():
    with pytest.raises(ValueError, match=r"rows of 0, 1, … 1 coefficients, got \[0, 2\]"):
        Tableau.of(2, [[], ["1/2", "1/2"]], ["0", "1"])
    with pytest.raises(ValueError, match="explicit tableau of 0 stages"):
        Tableau.of(1, [], [])


def test_weights_that_do_not_add_up_are_refused():
    with pytest.raises(ValueError, match="must add up to 1, got 2"):
        Tableau.of(1, [[], ["1"]], ["1", "1"])
    with pytest.raises(ValueError, match=r"must add up to 1, got 0\.99"):
        Tableau(1, ((), (1.0,)), (0.3333, 0.6666))
    assert Tableau(1, ((), (0.5,)), (0.1, 0.9)).order == 1


def test_it_says_which_it_is():
    ralston = RungeKutta(Tableau.of(2, [[], ["2/3"]], ["1/4", "3/4"]))
    assert "Fraction(2, 3)" in repr(ralston)
    assert repr(nanode.Heun()) == "Heun()"


def test_a_tableau_of_ones_own():
    ralston = RungeKutta(Tableau.of(2, [[], ["2/3"]], ["1/4", "3/4"]))
    h, x = 0.1, torch.ones(1, dtype=DOUBLE)
    got = nanode.odeint(lambda t, x: -x, x, steps=10, solver=ralston)
    # On dx/dt = -x every two-stage method of order 2 multiplies by 1 - h + h²/2.
    assert abs(float(got) - (1 - h + h * h / 2) ** 10) < 1e-14


# ---- torchdiffeq's own problems, its own fixed-grid methods


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reversed"])
@pytest.mark.parametrize("problem", KNOWN)
@pytest.mark.parametrize(
    ("name", "method"),
    [
        ("euler", nanode.Euler),
        ("midpoint", nanode.Midpoint),
        ("heun2", nanode.Heun),
        ("rk4", nanode.ThreeEighths),  # torchdiffeq's rk4 is the 3/8 rule
    ],
)
def test_agrees_with_torchdiffeq(name, method, problem, reverse):
    f = KNOWN[problem]
    t = torch.linspace(1, 8, 141, dtype=DOUBLE)
    t = t.flip(0) if reverse else t
    x = f.exact(t)[0]
    theirs = torchdiffeq.odeint(f, x, t, method=name)
    ours = nanode.odeint(f, x, at=t, solver=method())
    # The same arithmetic in another order: 140 steps of a few roundings.
    assert (ours - theirs).abs().max() <= 1e-10 * theirs.abs().max()
    if method is nanode.ThreeEighths:
        # And both solve the problem: h⁴ = 6e-6 times derivatives of size one, relative.
        exact = f.exact(t)
        assert (ours - exact).abs().max() <= 1e-5 * exact.abs().max()


def test_classical_rk4_is_not_torchdiffeqs():
    t = torch.linspace(1, 8, 29, dtype=DOUBLE)
    f = KNOWN["sine"]
    x = f.exact(t)[0]
    theirs = torchdiffeq.odeint(f, x, t, method="rk4")
    ours = nanode.odeint(f, x, at=t, solver=nanode.RK4())
    assert (ours - theirs).abs().max() > 1e-7 * theirs.abs().max()


def test_a_name_is_no_tableau():
    with pytest.raises(ValueError, match="tableau must be a Tableau, got 'rk4'"):
        RungeKutta("rk4")
