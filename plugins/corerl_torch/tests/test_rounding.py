"""What rounding takes from training, against a float64 reference of every element."""

import pytest
import torch

from corerl_torch.rounding import EVERY, RoundingLoss

SHAPES = {"embed": (64, 96), "layer.weight": (96, 96), "layer.norm": (96,)}


def weights(seed, rounded=False):
    generator = torch.Generator().manual_seed(seed)
    named = {name: torch.randn(shape, generator=generator) * 0.02 for name, shape in SHAPES.items()}
    return {name: each.bfloat16().float() if rounded else each for name, each in named.items()}


def stream(loss, named, dtype=torch.bfloat16):
    """What arrives of weights, which are asked for as they are if they are measured."""
    asked = []

    def weights(dtype):
        asked.append(dtype)
        return ((name, each if dtype is None else each.to(dtype)) for name, each in named.items())

    sent = dict(loss.stream(weights, dtype))
    [loss.asked] = asked
    return sent


def changed(named, size):
    generator = torch.Generator().manual_seed(9)
    return {name: each + size * torch.randn(each.shape, generator=generator) for name, each in named.items()}


def lost(first, present):
    """1 - <s, d>/<d, d> of all elements."""
    kept = whole = 0.0
    for name, each in present.items():
        change = each.double() - first[name].double()
        arrived = each.bfloat16().double() - first[name].bfloat16().double()
        kept += float((arrived * change).sum())
        whole += float(change.square().sum())
    return 1 - kept / whole


def test_it_is_the_part_of_the_change_that_rounded_weights_do_not_have():
    for first in (weights(0), weights(0, rounded=True)):
        loss = RoundingLoss()
        assert all(torch.equal(sent, first[name].bfloat16()) for name, sent in stream(loss, first).items())
        assert loss.value is None
        present = changed(first, 2e-5)
        assert all(torch.equal(sent, present[name].bfloat16()) for name, sent in stream(loss, present).items())
        assert loss.value == pytest.approx(lost(first, present), abs=0.05)


def test_a_change_of_rounded_weights_is_lost_and_one_of_others_arrives():
    values = {}
    for rounded in (False, True):
        loss, first = RoundingLoss(), weights(0, rounded)
        stream(loss, first)
        stream(loss, changed(first, 4e-6))
        values[rounded] = loss.value
    assert abs(values[False]) < 0.2
    assert values[True] > 0.8


def test_large_tensors_are_sampled_over_all_their_rows_and_columns():
    first = {"w": torch.zeros(1024, 1024)}
    present = {"w": torch.zeros(1024, 1024)}
    present["w"][:, :512] = 1.0  # arrives
    present["w"][:, 512:] = 1 + 2**-9  # of which the second addend is lost
    loss = RoundingLoss()
    stream(loss, first)
    stream(loss, present)
    assert loss.value == pytest.approx(lost(first, present), rel=0.05)


def test_it_is_measured_at_the_first_three_streams_and_every_so_many():
    def measured(dtype):
        loss, numbers = RoundingLoss(), []
        for number in range(1, 40):
            sent = stream(loss, {"w": torch.ones(2)}, dtype)
            assert sent["w"].dtype == dtype
            numbers += [number] if loss.asked is None else []
        return numbers

    assert measured(torch.bfloat16) == [1, 2, 3, EVERY + 1, 2 * EVERY + 1]
    assert measured(torch.float32) == []


def test_a_stream_of_weights_as_they_are_counts_as_none():
    loss = RoundingLoss()
    for _ in range(3):
        assert stream(loss, {"w": torch.ones(2)}, None)["w"].dtype == torch.float32
    for asked in (None, None, None, torch.bfloat16):
        stream(loss, {"w": torch.ones(2)})
        assert loss.asked == asked


def test_the_value_is_a_metric_from_the_second_stream_on():
    loss = RoundingLoss()
    stream(loss, {"w": torch.ones(2)})
    assert loss.metrics() == {"weights/engine_drift": 0.0}
    stream(loss, {"w": torch.ones(2) + 1e-4})  # less than bfloat16 can show beside 1
    assert loss.metrics() == {
        "weights/update_lost_in_rounding": 1.0,
        "weights/engine_drift": pytest.approx(1e-4, rel=1e-3),
    }


def test_the_drift_is_the_distance_of_rounded_weights_from_those_of_the_trainer():
    """Of float32 weights it is 2^-8 / sqrt(3) / 1.47, if mantissas are spread evenly in their logarithm: 0.0015."""
    loss, named = RoundingLoss(), weights(0)
    stream(loss, named)
    error, norm = (
        sum(float((each(weight.double()) ** 2).sum()) for weight in named.values())
        for each in (lambda w: w.float().bfloat16().double() - w, lambda w: w)
    )
    assert loss.drift == pytest.approx((error / norm) ** 0.5, rel=0.02)
    assert loss.drift == pytest.approx(0.0015, rel=0.15)


def test_pretrained_weights_of_16_bits_see_a_small_rate_only_after_many_updates():
    """At a rate of 1e-6 weights near 0.02, whose spacing is 2^-13, arrive after 61 updates in one direction."""
    loss, first = RoundingLoss(), {"w": torch.full((64,), 0.02).bfloat16().float()}
    stream(loss, first)
    stream(loss, {"w": first["w"] + 60e-6})
    assert loss.metrics() == {
        "weights/update_lost_in_rounding": 1.0,
        "weights/engine_drift": pytest.approx(0.003, rel=0.01),
    }
    stream(loss, {"w": first["w"] + 62e-6})
    assert loss.value < 0


def test_weights_that_are_rounded_already_lose_nothing_and_other_tensors_pass():
    loss = RoundingLoss()
    for number in range(2):
        sent = stream(loss, {"w": torch.full((4,), float(number)).bfloat16(), "steps": torch.tensor(number)})
        assert sent["steps"] == number and sent["w"].tolist() == [float(number)] * 4
    assert loss.value is None
