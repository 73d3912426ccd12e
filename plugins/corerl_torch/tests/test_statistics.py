import math
from statistics import fmean, stdev

import pytest
import torch

from corerl_torch.statistics import (
    compact,
    discounted_sums,
    group_maxima,
    group_moments,
    group_sums,
    has_holes,
    spread,
    whiten,
    whiten_scores,
)

GROUPS = torch.tensor([1, 0, 1, 0, 1, 2])
MASKS = {
    "right-padded": "1110 1111 0000 1000",
    "with holes": "0101 1011 0000 1001",
    "late start": "0011 0111 0001 0000",
}


def loop(values, mask, discount):
    sums = [[0.0] * len(row) for row in values]
    for row, kept in enumerate(mask):
        carry = 0.0
        for t in reversed(range(len(kept))):
            if kept[t]:
                carry = values[row][t] + discount * carry
                sums[row][t] = carry
    return torch.tensor(sums, dtype=torch.float64)


def bool_mask(text):
    return torch.tensor([[c == "1" for c in row] for row in text.split()])


@pytest.mark.parametrize("discount", [0.0, 0.5, 0.95, 1.0])
@pytest.mark.parametrize("tokens", [1, 31, 32, 33, 200, 2048])
@pytest.mark.parametrize("holes", [False, True])
def test_discounted_sums_are_the_recursion_over_true_tokens(discount, tokens, holes):
    generator = torch.Generator().manual_seed(tokens)
    values = torch.randn(7, tokens, generator=generator, dtype=torch.float64)
    if holes:
        mask = torch.rand(7, tokens, generator=generator) < 0.6
    else:
        mask = torch.arange(tokens) < torch.randint(tokens + 1, (7, 1), generator=generator)
    expected = loop(values.tolist(), mask.tolist(), discount)
    result = discounted_sums(values, mask, discount)
    assert torch.allclose(result, expected, rtol=0, atol=1e-12)
    assert (result[~mask] == 0).all()
    single = discounted_sums(values.float(), mask, discount)
    assert single.dtype == torch.float32 and torch.allclose(single.double(), expected, atol=2e-4)


@pytest.mark.parametrize("text", MASKS.values(), ids=MASKS)
def test_discounted_sums_do_not_look_at_masked_values(text):
    mask = bool_mask(text)
    values = torch.arange(16, dtype=torch.float64).view(4, 4)
    expected = loop(values.tolist(), mask.tolist(), 0.5)
    assert torch.equal(discounted_sums(torch.where(mask, values, math.nan), mask, 0.5), expected)


def test_group_sums_are_at_every_row_of_the_group():
    assert group_sums(torch.arange(6.0), GROUPS).tolist() == [6, 4, 6, 4, 6, 5]
    assert group_sums(torch.arange(12.0).view(6, 2), GROUPS)[3].tolist() == [8, 10]


def test_group_moments_count_scored_rows_alone():
    scores = torch.tensor([1.0, 2.0, 4.0, 5.0, 9.0, 7.0], dtype=torch.float64)
    scored = torch.tensor([True, True, True, False, True, True])
    count, mean, std = group_moments(scores, scored, GROUPS)
    assert count.tolist() == [3, 1, 3, 1, 3, 1]
    assert mean.tolist() == pytest.approx([14 / 3, 2, 14 / 3, 2, 14 / 3, 7])
    assert std.tolist() == pytest.approx([stdev([1, 4, 9]), 0, stdev([1, 4, 9]), 0, stdev([1, 4, 9]), 0])


def test_group_moments_of_several_scores_are_those_of_each():
    scores = torch.rand(6, 2, generator=torch.Generator().manual_seed(0))
    scored = torch.ones(6, dtype=torch.bool)
    count, mean, std = group_moments(scores, scored, GROUPS)
    for column in range(2):
        alone = group_moments(scores[:, column], scored, GROUPS)
        assert all(torch.equal(a, b) for a, b in zip(alone, (count, mean[:, column], std[:, column]), strict=True))


def test_equal_float32_scores_have_no_deviation():
    _, mean, std = group_moments(torch.full((7,), 0.7), torch.ones(7, dtype=torch.bool), torch.zeros(7).long())
    assert torch.equal(mean, torch.full((7,), 0.7)) and not std.any()


def test_group_maxima_are_at_every_row_of_the_group():
    assert group_maxima(torch.tensor([1.0, -3.0, 2.0, -4.0, 0.0, -5.0]), GROUPS).tolist() == [2, -3, 2, -3, 2, -5]


@pytest.mark.parametrize("text", MASKS.values(), ids=MASKS)
def test_whiten_has_mean_0_and_variance_1_over_the_mask(text):
    mask = bool_mask(text)
    values = torch.rand(4, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    kept = values[mask].tolist()
    expected = (values - fmean(kept)) / math.sqrt(stdev(kept) ** 2 + 1e-8) * mask
    assert torch.allclose(whiten(values, mask), expected, atol=1e-12)
    assert torch.allclose(whiten(values.float() + 1000, mask), expected.float(), atol=1e-3)


def test_whiten_scores_is_whiten_of_the_scores_at_their_tokens():
    lengths = torch.tensor([3, 0, 4, 1])
    scores, mask = torch.tensor([0.5, 9.0, -1.0, 2.0], dtype=torch.float64), torch.arange(4) < lengths[:, None]
    over_tokens = whiten(scores[:, None].expand(4, 4), mask)
    assert whiten_scores(scores, lengths).tolist() == pytest.approx(over_tokens[:, 0].tolist(), abs=1e-12)
    assert whiten_scores(scores, lengths)[1] == 0


def test_nothing_to_compare_is_whitened_to_zero():
    mask = torch.tensor([[False, True], [False, False]])
    assert not whiten(torch.ones(2, 2), mask).any() and not whiten(torch.ones(2, 2), mask & False).any()
    assert not whiten_scores(torch.ones(2), torch.tensor([1, 0])).any()


@pytest.mark.parametrize("text", MASKS.values(), ids=MASKS)
def test_compact_moves_to_the_left_and_spread_puts_back(text):
    mask = bool_mask(text)
    values = torch.arange(1.0, 17.0).view(4, 4)
    left = compact(values, mask)
    kept = [
        [v for v, m in zip(row, own, strict=True) if m] for row, own in zip(values.tolist(), mask.tolist(), strict=True)
    ]
    width = max(map(len, kept))
    assert left.tolist() == [row + [0.0] * (width - len(row)) for row in kept]
    assert torch.equal(spread(left, mask), values * mask)
    assert compact(mask, mask).dtype == torch.bool and has_holes(mask) == (text != MASKS["right-padded"])
