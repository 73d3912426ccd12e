"""Draws of one token a row, whatever the rows beside it."""

import pytest
import torch
from torch import Tensor

from corerl_sglang_engine.filtering import choose, draw, kept

ALL = 2**30
"""SGLang's top_k that keeps all"""

NO_LIMIT = (ALL, 1.0, 0.0)

BEST = torch.tensor([2, 0])


def probs(rows: int, vocabulary: int = 400) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    return (2 * torch.randn(rows, vocabulary, generator=generator)).softmax(dim=-1)


def numbers(seeds: Tensor, count: int = 400) -> Tensor:
    """(rows, count) uint32 by the seed of each row, as an engine has them."""
    drawn = [torch.randint(2**32, (count,), generator=torch.Generator().manual_seed(int(seed))) for seed in seeds]
    return torch.stack(drawn).to(torch.uint32)


def chosen(probs: Tensor, limits: list[tuple[int, float, float]], seeds: Tensor) -> list[int]:
    """With top_k, top_p and min_p of each row; a batch is filtered if one of its rows has a limit."""
    top_ks, top_ps, min_ps = (torch.tensor(each) for each in zip(*limits, strict=True))
    limited, best = set(limits) != {NO_LIMIT}, probs.argmax(dim=-1) if (top_ks == 1).any() else None
    before = probs.clone()
    tokens = choose(probs, (top_ks, top_ps, min_ps), numbers(seeds), limited=limited, best=best)
    assert tokens.dtype == torch.int32
    assert torch.equal(probs, before)  # log-probs are taken of them afterwards
    return tokens.tolist()


def test_a_row_gives_the_same_alone_and_among_rows_of_any_limits():
    limits = [NO_LIMIT, (5, 1.0, 0.0), (ALL, 0.3, 0.0), (1, 1.0, 0.0), (40, 0.8, 0.01), (ALL, 1.0, 0.2)] * 20
    rows, seeds = probs(len(limits)), torch.arange(len(limits)) * 2**40 + 7
    together = chosen(rows, limits, seeds)
    for number, each in enumerate(limits):
        row = slice(number, number + 1)
        assert chosen(rows[row], [each], seeds[row]) == [together[number]]
        if each[0] == 1:
            assert together[number] == rows[number].argmax()
    assert len(set(together)) > 40


def test_of_the_most_likely_tokens_a_greedy_row_takes_the_one_that_its_logits_say():
    """Which softmax may round to one and the same probability."""
    limits = torch.tensor([1, ALL]), torch.ones(2), torch.zeros(2)
    tokens = choose(torch.full((2, 4), 0.25), limits, numbers(torch.ones(2), 4), limited=True, best=BEST)
    assert tokens[0] == BEST[0]


def test_limits_keep_what_they_say():
    row = torch.tensor([[0.1, 0.4, 0.25, 0.25]])

    def of(top_k: int, top_p: float, min_p: float) -> list[int]:
        keep = kept(row, torch.tensor([top_k]), torch.tensor([top_p]), torch.tensor([min_p]))
        return keep[0].nonzero().flatten().tolist()

    assert of(ALL, 1.0, 0.0) == [0, 1, 2, 3]
    assert of(2, 1.0, 0.0) == [1, 2]  # of two that are as likely the first
    assert of(ALL, 0.4, 0.0) == [1]  # which reaches it
    assert of(ALL, 0.41, 0.0) == [1, 2]
    assert of(ALL, 1e-6, 0.0) == [1]
    assert of(2, 0.99, 0.0) == [1, 2]
    assert of(ALL, 1.0, 0.6) == [1, 2, 3]


def test_a_top_p_of_one_keeps_tokens_that_rounding_puts_beyond_it():
    tail = torch.full((1, 3000), 1e-9)
    row = torch.cat((torch.full((1, 1), 1.0 + 1e-6), tail), dim=-1)
    assert kept(row, torch.tensor([ALL]), torch.tensor([1.0]), torch.tensor([0.0])).all()
    assert kept(row, torch.tensor([ALL]), torch.tensor([0.999]), torch.tensor([0.0])).sum() == 1


def test_draws_follow_the_distribution():
    row = torch.tensor([0.5, 0.3, 0.15, 0.05, 0.0])
    count = 40_000
    uniform = torch.randint(2**32, (count, 5), generator=torch.Generator().manual_seed(1)).to(torch.uint32)
    given = draw(row.expand(count, -1), uniform).bincount(minlength=5) / count
    assert given[4] == 0
    torch.testing.assert_close(given, row, rtol=0, atol=5 * 0.5 / count**0.5)


def test_a_draw_is_the_gumbel_max_of_the_same_numbers_in_float64():
    rows = probs(200)
    uniform = numbers(torch.arange(200))
    exact = 1 - (uniform.to(torch.float64) + 0.5) / 2**32
    assert torch.equal(draw(rows, uniform), (rows.double().log() - (-exact.log()).log()).argmax(dim=-1))


@pytest.mark.parametrize("number", [0, 2**32 - 1])
def test_no_number_draws_a_token_for_its_own_sake(number: int):
    """The smallest one gives an unlikely token 22 more than its log-prob, not infinitely much."""
    given = torch.full((1, 3), 2**31)
    given[0, 1] = number
    for prob in (1e-18, 0.0):
        assert draw(torch.tensor([[1.0, prob, prob]]), given.to(torch.uint32)).tolist() == [0]
    assert draw(torch.tensor([[0.0, 1.0, 0.0]]), given.to(torch.uint32)).tolist() == [1]


def test_probabilities_are_replaced_by_those_over_the_kept_tokens():
    """SGLang takes log-probs of them. A greedy row, whose limit is one token, keeps its own."""
    limits = torch.tensor([2, ALL, ALL, 1]), torch.tensor([1.0, 0.6, 1.0, 1.0]), torch.tensor([0.0, 0.0, 0.0, 0.0])
    row = torch.tensor([0.1, 0.4, 0.3, 0.2])
    rows = row.repeat(4, 1)
    given = numbers(torch.arange(4), 4)
    best = torch.ones(4, dtype=torch.int64)
    same = choose(rows.clone(), limits, given, limited=True, best=best)
    assert torch.equal(choose(rows, limits, given, limited=True, best=best, replace=True), same)
    two = [0.0, 0.4 / 0.7, 0.3 / 0.7, 0.0]
    for own, expected in zip(rows.tolist(), (two, two, row.tolist(), row.tolist()), strict=True):
        assert own == pytest.approx(expected)
