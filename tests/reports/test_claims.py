import math

import numpy as np
import pytest

from nanode.reports import Claim, Spread, judge, spread
from nanode.reports.paper import CLAIMS, TABLE1, table1_accuracy
from nanode.reports.statistics import student

CLAIM = Claim("a beats b and c", better=("a",), worse=("b", "c"))


def single(**means):
    return {name: Spread(mean, None, 1) for name, mean in means.items()}


def thrice(**means):
    """Three seeds each, which deviate by 0.1."""
    return {name: Spread(mean, 0.1, 3) for name, mean in means.items()}


def test_held():
    found = judge(CLAIM, thrice(a=90.0, b=85.0, c=88.5))
    assert (found.held, found.margin) == (True, 1.5)  # over the better of the two
    assert str(found) == "held (+1.50)"


def test_all_of_the_better_ones_count():
    claim = Claim("a and b beat c", better=("a", "b"), worse=("c",))
    assert judge(claim, single(a=90.0, b=84.0, c=85.0)).margin == -1.0


def test_did_not_hold():
    found = judge(CLAIM, thrice(a=90.0, b=85.0, c=90.25))
    assert (found.held, found.margin) == (False, -0.25)
    assert str(found) == "**did not hold** (-0.25)"


@pytest.mark.parametrize(("a", "words"), [(90.0, "for it (+1.50"), (88.0, "against it (-0.50")])
@pytest.mark.parametrize("ties", [True, False])
def test_single_seeds_decide_nothing(a, words, ties):
    claim = Claim("a beats b", better=("a",), worse=("b",), ties=ties)
    found = judge(claim, single(a=a, b=88.5))
    assert found.held is None
    assert str(found) == f"{words}, one seed)"


@pytest.mark.parametrize("missing", ["a", "b", "c"])
def test_not_measured(missing):
    measured = single(a=90.0, b=85.0, c=88.0)
    assert str(judge(CLAIM, measured | {missing: None})) == "not measured"
    del measured[missing]
    found = judge(CLAIM, measured)
    assert (found.held, found.margin) == (None, None)


def test_equals():
    no_gain = Claim("b brings nothing", better=("a",), worse=("b",), ties=True)
    gain = Claim("a beats b", better=("a",), worse=("b",))
    assert judge(no_gain, thrice(a=85.0, b=85.0)).held
    assert judge(gain, thrice(a=85.0, b=85.0)).held is None
    assert str(judge(gain, single(a=85.0, b=85.0))) == "undecided (+0.00, one seed)"


@pytest.mark.parametrize(("lead", "held"), [(4.9, True), (5.0, False)])
def test_a_gain_within_the_spread_is_none(lead, held):
    """t = 4.303 for 2 degrees, times √(1/3 + 1): 4.97."""
    no_gain = Claim("b brings nothing", better=("a",), worse=("b",), ties=True)
    measured = {"a": Spread(85.0, 1.0, 3), "b": Spread(85.0 + lead, None, 1)}
    assert judge(no_gain, measured).held == held
    word = "no lead found" if held else "**did not hold**"
    assert str(judge(no_gain, measured)).startswith(f"{word} (-{lead:.2f}")


def test_leads_smaller_than_the_spread_are_marked():
    claim = Claim("a beats b", ("a",), ("b",))
    # Deviations of 3 and 4 are √12.5 together; t = 2.776 for 4 degrees; times √(2/3): 8.01.
    measured = {"a": Spread(93.0, 3.0, 3), "b": Spread(85.0, 4.0, 3)}
    assert str(judge(claim, measured)) == "undecided (+8.00, within the spread)"
    measured["a"] = Spread(77.0, 3.0, 3)
    assert str(judge(claim, measured)) == "undecided (-8.00, within the spread)"
    measured["a"] = Spread(93.03, 3.0, 3)
    assert str(judge(claim, measured)) == "held (+8.03)"
    # Others of the kind tell more of the spread.
    measured["a"] = Spread(92.0, 3.0, 3)
    measured["c"] = Spread(10.0, 0.5, 31)
    assert str(judge(claim, measured)) == "held (+7.00)"


def test_every_pair_is_judged_by_its_own_seeds():
    """Up to 0.227 apart decides nothing of three seeds each, and 0.321 of three and one."""
    measured = {"a": Spread(85.0, 0.1, 3), "b": Spread(84.7, 0.1, 3), "c": Spread(84.68, None, 1)}
    assert str(judge(CLAIM, measured)) == "undecided (+0.32, within the spread, one seed)"
    measured |= {"b": Spread(85.3, 0.1, 3), "c": Spread(85.31, None, 1)}
    assert str(judge(CLAIM, measured)) == "**did not hold** (-0.30)"


def test_equal_seeds_are_chance_too():
    """On 360 images one is 0.28 points, and seeds often agree to the image."""
    measured = {"a": Spread(97.22, 0.0, 2), "b": Spread(96.94, 0.0, 2), "c": Spread(90.0, 0.4, 2)}
    claim = Claim("a beats b", ("a",), ("b",))
    assert str(judge(claim, measured)) == "undecided (+0.28, within the spread)"
    del measured["c"]
    assert str(judge(claim, measured)) == "for it (+0.28)"


@pytest.mark.parametrize("images", [None, 360])
def test_equal_models_are_seldom_told_apart(images):
    """In 5 % of cases, as said: three seeds of six rows each, all drawn alike."""
    draws = np.random.default_rng(0).normal(80, 0.5, (2000, 6, 3))
    if images:
        draws = np.round(draws * images / 100) * 100 / images
    claim = Claim("a beats b", ("0",), ("1",))
    found = [
        judge(claim, {str(n): spread(list(row)) for n, row in enumerate(rows)}) for rows in draws
    ]
    share = np.mean([verdict.held is not None for verdict in found])
    assert 0.035 < share < 0.065


@pytest.mark.parametrize("freedom", [1, 2, 3, 7, 10, 11, 12, 40, 1000])
def test_students_quantile(freedom):
    """2.5 % of the density is beyond it, integrated along x = √ν tan u."""
    u = np.linspace(math.atan(student(freedom) / math.sqrt(freedom)), math.pi / 2, 200_001)
    scale = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(math.pi)
    assert np.trapezoid(scale * np.cos(u) ** (freedom - 1), u) == pytest.approx(0.025, abs=5e-5)


def test_the_paper_agrees_with_itself():
    """Its table supports what it says of it, on CIFAR-10 throughout."""
    margins = [judge(claim, table1_accuracy("cifar10")).margin for claim in CLAIMS]
    assert all(margin > 0 for margin in margins if margin is not None)
    assert margins.count(None) == 5  # about rows that its table hasn't
    assert table1_accuracy("digits")["auto"] is None


def test_the_paper_counts_weights():
    """The parameter memory of its rows is 4 bytes for each of 69,632·d weights, to two digits."""
    for model, d in (("auto", 1), ("uncon-resnet", 10), ("t-nanode-10", 20), ("b-nanode-100", 100)):
        assert f"{69_632 * d * 4 / 1e9:.1e}" == f"{TABLE1[model].parameters:.1e}"
