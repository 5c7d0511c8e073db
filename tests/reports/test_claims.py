import pytest

from nanode.reports import Claim, Spread, judge
from nanode.reports.paper import CLAIMS, TABLE1, table1_accuracy

CLAIM = Claim("a beats b and c", better=("a",), worse=("b", "c"))


def single(**means):
    return {name: Spread(mean, None, 1) for name, mean in means.items()}


def test_held():
    found = judge(CLAIM, single(a=90.0, b=85.0, c=88.5))
    assert (found.held, found.margin) == (True, 1.5)  # over the better of the two
    assert str(found) == "held (+1.50, one seed)"


def test_all_of_the_better_ones_count():
    claim = Claim("a and b beat c", better=("a", "b"), worse=("c",))
    assert judge(claim, single(a=90.0, b=84.0, c=85.0)).margin == -1.0


def test_did_not_hold():
    found = judge(CLAIM, single(a=90.0, b=85.0, c=90.25))
    assert (found.held, found.margin) == (False, -0.25)
    assert str(found) == "**did not hold** (-0.25, one seed)"


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
    assert judge(no_gain, single(a=85.0, b=85.0)).held
    assert not judge(gain, single(a=85.0, b=85.0)).held


@pytest.mark.parametrize(("lead", "held"), [(0.9, True), (1.1, False)])
def test_a_gain_within_the_spread_is_none(lead, held):
    no_gain = Claim("b brings nothing", better=("a",), worse=("b",), ties=True)
    measured = {"a": Spread(85.0, 1.0, 3), "b": Spread(85.0 + lead, None, 1)}
    assert judge(no_gain, measured).held == held


def test_leads_smaller_than_the_spread_are_marked():
    claim = Claim("a beats b", ("a",), ("b",))
    # Deviations of 3 and 4 are 5 together.
    measured = {"a": Spread(90.0, 3.0, 3), "b": Spread(85.0, 4.0, 3)}
    assert str(judge(claim, measured)) == "undecided (+5.00, within the spread)"
    measured["a"] = Spread(80.0, 3.0, 3)
    assert str(judge(claim, measured)) == "undecided (-5.00, within the spread)"
    measured["a"] = Spread(90.01, 3.0, 3)
    assert str(judge(claim, measured)) == "held (+5.01)"
    measured["b"] = Spread(85.0, None, 1)
    assert str(judge(claim, measured)) == "held (+5.01, one seed)"


def test_the_paper_agrees_with_itself():
    """Its table supports what it says of it, on CIFAR-10 throughout."""
    verdicts = {claim.text: judge(claim, table1_accuracy("cifar10")).held for claim in CLAIMS}
    assert set(verdicts.values()) == {True, None}
    assert sum(held is None for held in verdicts.values()) == 3  # rows that its table hasn't
    assert table1_accuracy("digits")["auto"] is None


def test_the_paper_counts_weights():
    """The parameter memory of its rows is 4 bytes for each of 69,632·d weights, to two digits."""
    for model, d in (("auto", 1), ("uncon-resnet", 10), ("t-nanode-10", 20), ("b-nanode-100", 100)):
        assert f"{69_632 * d * 4 / 1e9:.1e}" == f"{TABLE1[model].parameters:.1e}"
