"""What rounding takes from training, against a float64 reference of every element."""

import pytest
import torch

from corerl.trainer.rounding import EVERY, RoundingLoss

SHAPES = {"embed": (64, 96), "layer.weight": (96, 96), "layer.norm": (96,)}


def weights(seed, rounded=False):
    generator = torch.Generator().manual_seed(seed)
    named = {name: torch.randn(shape, generator=generator) * 0.02 for name, shape in SHAPES.items()}
    return {name: each.bfloat16().float() if rounded else each for name, each in named.items()}


def stream(loss, named):
    assert loss.is_due()
    return dict(loss.rounded(named.items()))


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
        loss = RoundingLoss(torch.bfloat16)
        assert all(torch.equal(sent, first[name].bfloat16()) for name, sent in stream(loss, first).items())
        assert loss.value is None
        present = changed(first, 2e-5)
        assert all(torch.equal(sent, present[name].bfloat16()) for name, sent in stream(loss, present).items())
        assert loss.value == pytest.approx(lost(first, present), abs=0.05)


def test_a_change_of_rounded_weights_is_lost_and_one_of_others_arrives():
    values = {}
    for rounded in (False, True):
        loss, first = RoundingLoss(torch.bfloat16), weights(0, rounded)
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
    loss = RoundingLoss(torch.bfloat16)
    stream(loss, first)
    stream(loss, present)
    assert loss.value == pytest.approx(lost(first, present), rel=0.05)


def test_it_is_measured_at_the_first_two_streams_and_every_so_many():
    loss = RoundingLoss(torch.bfloat16)
    assert [number for number in range(1, 40) if loss.is_due()] == [1, 2, EVERY + 1, 2 * EVERY + 1]
    assert not any(RoundingLoss(torch.float32).is_due() for _ in range(40))


def test_weights_that_are_rounded_already_lose_nothing_and_other_tensors_pass():
    loss = RoundingLoss(torch.bfloat16)
    for number in range(2):
        sent = stream(loss, {"w": torch.full((4,), float(number)).bfloat16(), "steps": torch.tensor(number)})
        assert sent["steps"] == number and sent["w"].tolist() == [float(number)] * 4
    assert loss.value is None
