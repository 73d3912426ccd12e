import numpy as np
import pytest

from corerl_tools.report.distributions import MOST_COLUMNS, RANGES, distribution


def test_few_values_have_a_row_each_with_its_share():
    found = distribution([1, 2], [np.array([0.0, 0.0, 1.0, 0.5]), np.array([1.0, 1.0, np.nan])])
    assert (found["rows"], found["edges"]) == ([0, 0.5, 1], False)
    assert found["columns"] == [[1, 1], [2, 2]]
    assert found["shares"] == [[500, 250, 250], [0, 0, 1000]]
    assert found["p50"] == [0.25, 1]


def test_many_values_are_counted_in_equal_ranges_the_largest_in_the_last():
    values = np.arange(0.0, 37.0)
    found = distribution([7], [values])
    assert found["edges"] and len(found["rows"]) == RANGES + 1
    # 36 ranges from 0 to 36, each one wide: a value in each, and 36 too in the last
    assert found["shares"] == [[27] * 35 + [54]]
    assert (found["p10"], found["p50"], found["p90"]) == ([pytest.approx(3.6)], [18], [pytest.approx(32.4)])


def test_many_steps_share_columns():
    steps = list(range(1, 1001))
    found = distribution(steps, [np.array([0.0, step]) for step in steps])
    assert len(found["columns"]) == MOST_COLUMNS
    assert (found["columns"][0][0], found["columns"][-1][1]) == (1, 1000)


def test_without_a_score_there_is_no_distribution():
    assert distribution([1], [np.array([np.nan])]) is None
    assert distribution([], []) is None
