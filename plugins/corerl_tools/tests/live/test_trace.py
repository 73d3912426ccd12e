from corerl_tools.live.sparkline import sparkline
from corerl_tools.live.trace import Trace


def test_a_long_curve_keeps_its_shape_in_bounded_memory():
    trace = Trace(most=8)
    for value in range(1, 1025):
        trace.add(value)
    # 1024 values in pieces of 256, whose means are 128.5 and so on
    assert trace.values() == [128.5, 384.5, 640.5, 896.5]
    assert trace.last == 1024


def test_values_of_an_open_piece_count():
    trace = Trace(most=2)
    for value in (1.0, 3.0, 5.0):
        trace.add(value)
    assert trace.values() == [2.0, 5.0]


def test_a_sparkline_scales_from_least_to_largest_and_leaves_out_what_is_not_finite():
    assert sparkline([0.0, float("nan"), 1.0, 0.5]) == "▁ █▅"
    assert sparkline([3.0, 3.0]) == "▁▁"
    assert sparkline([]) == ""
