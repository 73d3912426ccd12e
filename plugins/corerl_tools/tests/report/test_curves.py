import math

import numpy as np
import pytest

from corerl_tools.report.curves import MOST_POINTS, curves, parts, rounded


def test_a_short_curve_is_kept_as_it_is():
    records = [{"step": 1, "a": 0.5}, {"step": 2, "a": 1 / 3, "b": 2.0}]
    found = curves(records)
    grids, metrics = found["grids"], found["metrics"]
    assert grids[metrics["a"]["grid"]]["step"] == [1, 2]
    assert metrics["a"]["mean"] == [0.5, 0.33333]
    assert grids[metrics["b"]["grid"]]["step"] == [2]
    assert "min" not in metrics["a"]


def test_metrics_of_the_same_steps_share_a_grid():
    records = [{"step": step, "a": 1.0, "b": 2.0, **({"c": 3.0} if step % 2 else {})} for step in range(10)]
    assert len(curves(records)["grids"]) == 2


def test_time_and_tokens_add_up_over_all_steps():
    records = [
        {"step": 0, "val": 1.0, "timing_s/testing": 1800.0},
        {"step": 1, "timing_s/step": 3600.0, "perf/total_num_tokens": 10.0},
        {"step": 2, "val": 2.0, "timing_s/step": 3600.0, "timing_s/testing": 1800.0, "perf/total_num_tokens": 30.0},
    ]
    found = curves(records)
    grid = found["grids"][found["metrics"]["val"]["grid"]]
    assert (grid["hours"], grid["tokens"]) == ([0.5, 3.0], [0, 40])


def test_a_long_curve_keeps_mean_least_and_largest_of_each_part():
    values = np.sin(np.arange(4321.0)) + (np.arange(4321) == 2000) * 50
    mean, least, largest = parts(values)
    bounds = [number * 4321 // MOST_POINTS for number in range(MOST_POINTS)] + [4321]
    for number in range(MOST_POINTS):
        piece = values[bounds[number] : bounds[number + 1]].tolist()
        assert mean[number] == pytest.approx(math.fsum(piece) / len(piece))
        assert (least[number], largest[number]) == (min(piece), max(piece))
    assert largest.max() > 49
    found = curves([{"step": step, "a": value} for step, value in enumerate(values.tolist())])["metrics"]["a"]
    assert len(found["mean"]) == len(found["min"]) == len(found["max"]) == MOST_POINTS


def test_what_is_not_finite_is_null_and_spoils_no_part():
    assert rounded(np.array([1.0, np.nan, np.inf])) == [1, None, None]
    values = np.array([1.0, np.nan, 3.0, np.inf, np.nan, np.nan])
    mean, least, largest = (rounded(each) for each in parts(values, most=3))
    assert (mean, least, largest) == ([1, 3, None], [1, 3, None], [1, 3, None])
