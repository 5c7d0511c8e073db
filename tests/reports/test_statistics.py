import numpy as np
import pytest

from nanode.reports import Spread, spread


def test_mean_and_sample_deviation():
    values = [84.1, 85.3, 83.9, 86.0]
    found = spread(values)
    assert found.mean == pytest.approx(np.mean(values), rel=1e-12)
    assert found.deviation == pytest.approx(np.std(values, ddof=1), rel=1e-12)
    assert found.count == 4


def test_by_hand():
    # Mean 85, squared distances 4 + 0 + 4 over n − 1 = 2.
    assert spread([83.0, 85.0, 87.0]) == Spread(85.0, 2.0, 3)
    assert str(Spread(85.0, 2.0, 3)) == "85.00 ± 2.00"


def test_one_value_has_no_spread_and_none_no_mean():
    assert spread([85.125]) == Spread(85.125, None, 1)
    assert str(Spread(85.126, None, 1)) == "85.13"
    assert spread([]) is None


def test_what_is_no_number_is_refused():
    with pytest.raises(ValueError, match="finite"):
        spread([1.0, float("nan")])
