"""The parts of packed rows that context-parallel ranks have, without other ranks: attention beside a dense mask."""

import itertools
import random

import pytest
import torch
from torch import Tensor

from corerl_testing.training_reference import batch
from corerl_testing.trees import tree_batch
from corerl_torch.context_parallel import ContextGroup, RowGroup
from corerl_torch.layout import Layout, packed
from corerl_torch.packed_attention import packed_attention
from corerl_torch.sequence_parallel import SequenceGroup
from corerl_torch.tries import shared_prefixes

HEADS, SIZE = 2, 4


def rows_of(lengths: list[int]) -> Layout:
    """Packed rows whose input ids are 1, 2, …, and which predict every third token."""
    bounds = torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32)
    total = sum(lengths)
    inputs = {
        "input_ids": torch.arange(1, total + 1)[None],
        "position_ids": torch.cat([torch.arange(each) for each in lengths])[None],
        "cu_seq_lens_q": bounds,
        "cu_seq_lens_k": bounds,
        "max_length_q": max(lengths),
        "max_length_k": max(lengths),
    }
    return Layout(inputs, torch.arange(0, total, 3), torch.ones(1, 1, dtype=torch.bool), torch.arange(total))


def dense(states: list[Tensor], lengths: list[int], window: int | None, sinks: Tensor | None) -> Tensor:
    """(tokens, heads, size) by a mask over all tokens, in float64."""
    row = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    token = torch.arange(len(row))
    ages = token[:, None] - token
    seen = (row[:, None] == row) & (ages >= 0) & (ages < (window or len(row)))
    query, key, value = (each.double().transpose(0, 1) for each in states)
    scores = (query @ key.transpose(1, 2) / SIZE**0.5).masked_fill(~seen, float("-inf"))
    if sinks is not None:
        scores = torch.cat([scores, sinks.double()[:, None, None].expand(-1, len(row), 1)], dim=2)
    return (scores.softmax(dim=2)[..., : len(row)] @ value).transpose(0, 1)


def parts(layout: Layout, size: int, multiple: int = 1) -> list[Layout]:
    return [ContextGroup(size, rank, None, multiple).slice(layout).layout for rank in range(size)]


@pytest.mark.parametrize("window", [None, 1, 3])
@pytest.mark.parametrize("with_sinks", [False, True])
def test_the_ranks_together_attend_as_one_rank_does(window: int | None, with_sinks: bool) -> None:
    drawn = random.Random(window or 0)
    for size, lengths in (
        (2, [1]),
        (4, [3, 1]),
        (4, [2, 30, 1, 1, 4]),
        (3, [40]),
        *((drawn.randint(2, 5), [drawn.randint(1, 12) for _ in range(drawn.randint(1, 8))]) for _ in range(12)),
    ):
        torch.manual_seed(sum(lengths))
        states = [torch.randn(sum(lengths), HEADS, SIZE, dtype=torch.float64) for _ in range(3)]
        sinks = torch.randn(HEADS, dtype=torch.float64) if with_sinks else None
        true = dense(states, lengths, window, sinks)
        found = torch.full_like(true, float("nan"))
        ranks = parts(rows_of(lengths), size)
        padded = [torch.cat([each, each.new_zeros(1, HEADS, SIZE)]) for each in states]  # -1 is a filler token
        gathered = torch.cat([rank.tokens for rank in ranks])
        for inputs, _, _, tokens in ranks:
            query, keys, values = padded[0][tokens], *(each[gathered][inputs["key_index"]] for each in padded[1:])
            bounds = {name: inputs[name] for name in inputs if name.startswith(("cu_seq", "max_length"))}
            given = (each.transpose(0, 1)[None] for each in (query, keys, values))
            attended, _ = packed_attention(
                torch.nn.Module(), *given, None, sliding_window=window, s_aux=sinks, scaling=SIZE**-0.5, **bounds
            )
            found[tokens[tokens >= 0]] = attended[0, tokens >= 0]
        torch.testing.assert_close(found, true, rtol=0, atol=1e-12)


@pytest.mark.parametrize("lengths", [[1], [5, 1, 1], [64], [7, 9, 2, 30]])
@pytest.mark.parametrize(("size", "multiple"), [(2, 1), (4, 1), (2, 2), (2, 4), (3, 3)])
def test_each_token_and_output_has_one_rank(lengths: list[int], size: int, multiple: int) -> None:
    layout = rows_of(lengths)
    found = [ContextGroup(size, rank, None, multiple).slice(layout) for rank in range(size)]
    ids = torch.cat([each.layout.inputs["input_ids"][0] for each in found])
    assert sorted(ids[ids > 0].tolist()) == list(range(1, sum(lengths) + 1))
    assert len({each.layout.inputs["input_ids"].shape for each in found}) == 1
    assert len(ids) // size % multiple == 0 and len(ids) - sum(lengths) < 2 * size * multiple
    values = torch.cat([each.layout.inputs["input_ids"][0, each.layout.positions] for each in found])
    for each in found:
        assert [len(other.layout.positions) for other in found] == each.counts
        assert torch.equal(values[each.order], layout.positions + 1)  # the input ids are the positions and 1
        assert torch.equal(layout.positions[each.own] + 1, each.layout.inputs["input_ids"][0, each.layout.positions])
        numbers, own = each.layout.tokens, each.layout.inputs["input_ids"][0]
        assert torch.equal(numbers[numbers >= 0] + 1, own[numbers >= 0]) and not own[numbers < 0].any()


def pairs(layout: Layout) -> int:
    """Pairs of a query and a key that it reads."""
    queries, keys = (layout.inputs[f"cu_seq_lens_{each}"].diff().long() for each in "qk")
    return int((queries * keys - queries * (queries - 1) // 2).sum())


def test_a_long_row_is_divided_into_equal_work() -> None:
    ranks = parts(rows_of([800]), 4)
    assert len({pairs(each) for each in ranks}) == 1
    assert sum(map(pairs, ranks)) == 800 * 801 // 2
    assert ranks[1].tokens.tolist() == [*range(100, 200), *range(600, 700)]  # chunks 1 and 8 - 1 - 1


def test_the_lightest_chunk_goes_with_the_heaviest() -> None:
    ranks = parts(rows_of([*[1] * 200, 400, *[1] * 200]), 2)  # chunks of 200, with 200, 20,100, 60,100 and 200 pairs
    assert [pairs(each) for each in ranks] == [60_300, 20_300]  # the outer and the inner ones: 400 and 80,200


def test_rows_that_share_prefixes_keep_their_paths() -> None:
    for seed in range(4):
        layout = shared_prefixes(tree_batch(seed, vocabulary=50))
        whole, ranks = layout.inputs, parts(layout, 3)
        gathered = torch.cat([each.tokens for each in ranks])
        bounds = [whole[f"cu_seq_lens_{each}"].tolist() for each in "qk"]
        read = {}  # token -> the tokens whose keys it reads
        for (start, end), (first, last) in zip(*(itertools.pairwise(each) for each in bounds), strict=True):
            for token in range(start, end):
                keys = whole["key_index"][first : last - (end - 1 - token)]
                read[int(layout.tokens[token])] = layout.tokens[keys].tolist()
        for each in ranks:
            own = [each.inputs[f"cu_seq_lens_{name}"].tolist() for name in "qk"]
            for (start, end), (first, last) in zip(*(itertools.pairwise(bound) for bound in own), strict=True):
                for place in range(start, end):
                    if (token := int(each.tokens[place])) >= 0:
                        keys = each.inputs["key_index"][first : last - (end - 1 - place)]
                        assert gathered[keys].tolist() == read.pop(token)
        assert not read


def test_ulysses_divides_the_part_of_a_context_rank() -> None:
    layout = packed(batch(0, "token-mean", rows=5))
    tokens, own = [], []
    for context, heads in itertools.product(range(2), range(4)):
        group = RowGroup(ContextGroup(2, context, None, 4), SequenceGroup(4, heads, None))
        assert (group.size, group.name, group.key) == (8, "2x4", "actor.strategy.context_parallel_size")
        share = group.slice(layout)
        tokens += share.layout.tokens.tolist()
        own += share.own.tolist()
        assert torch.equal(share.layout.tokens[share.layout.positions], layout.tokens[layout.positions[share.own]])
    assert sorted(each for each in tokens if each >= 0) == sorted(layout.tokens.tolist())
    assert sorted(own) == list(range(len(layout.positions)))


def test_positions_of_three_dimensions_are_divided_as_tokens_are() -> None:
    layout = rows_of([9, 4])
    threefold = layout._replace(inputs=layout.inputs | {"position_ids": layout.inputs["position_ids"].expand(3, 1, -1)})
    for group in (ContextGroup(2, 1, None), SequenceGroup(2, 1, None)):
        one, three = (group.slice(each).layout.inputs["position_ids"] for each in (layout, threefold))
        assert torch.equal(three, one.expand(3, 1, -1))
