import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from corerl.contracts.training_strategies import MicroBatching
from corerl_torch.micro_batches import lockstep_micro_batches, micro_batches

LENGTHS = st.lists(st.integers(1, 40), min_size=1, max_size=30).map(torch.tensor)


@given(LENGTHS, st.integers(1, 100))
def test_every_row_is_in_one_micro_batch_and_none_is_over_the_token_limit(lengths, max_tokens):
    cuts = micro_batches(lengths, MicroBatching(max_tokens=max_tokens))
    assert sorted(torch.cat(cuts).tolist()) == list(range(len(lengths)))
    for rows in cuts:
        padded = len(rows) * int(lengths[rows].max())
        assert padded <= max_tokens or len(rows) == 1


@given(LENGTHS, st.integers(1, 8))
def test_a_limit_in_sequences_is_kept(lengths, max_sequences):
    cuts = micro_batches(lengths, MicroBatching(max_sequences=max_sequences))
    assert sorted(torch.cat(cuts).tolist()) == list(range(len(lengths)))
    assert max(map(len, cuts)) <= max_sequences


def test_the_longest_rows_come_first():
    cuts = micro_batches(torch.tensor([3, 9, 5]), MicroBatching(max_sequences=2))
    assert [rows.tolist() for rows in cuts] == [[1, 2], [0]]


@given(LENGTHS, st.integers(1, 100), st.integers(1, 8))
def test_packed_micro_batches_hold_real_tokens_up_to_the_limit(lengths, max_tokens, at_least):
    limit = MicroBatching(max_tokens=max_tokens)
    fewest = len(micro_batches(lengths, limit, packed=True))
    cuts = micro_batches(lengths, limit, packed=True, at_least=at_least)
    assert sorted(torch.cat(cuts).tolist()) == list(range(len(lengths)))
    assert all(len(rows) == 1 or lengths[rows].sum() <= max_tokens for rows in cuts)
    assert fewest <= len(cuts) <= max(fewest, at_least)


@given(LENGTHS, st.integers(80, 200), st.integers(1, 4))
def test_packed_micro_batches_have_about_as_many_tokens_each(lengths, max_tokens, at_least):
    """They differ by a row at most, unless that would be more than the limit."""
    cuts = micro_batches(lengths, MicroBatching(max_tokens=max_tokens), packed=True, at_least=at_least)
    tokens = [int(lengths[rows].sum()) for rows in cuts]
    full = int(lengths.sum()) / len(cuts) > max_tokens - int(lengths.max())
    assert full or (max(tokens) - min(tokens) <= int(lengths.max()) and len(cuts) >= min(at_least, len(lengths)))


def test_packed_rows_go_to_the_micro_batch_with_the_fewest_tokens_or_to_the_first_with_room():
    lengths = torch.tensor([3, 9, 5, 4, 8, 1])
    balanced = micro_batches(lengths, MicroBatching(max_tokens=12), packed=True)
    assert [rows.tolist() for rows in balanced] == [[1, 5], [4, 0], [2, 3]]
    filled = micro_batches(torch.tensor([5, 4, 3, 3, 3]), MicroBatching(max_tokens=9), packed=True)
    assert [rows.tolist() for rows in filled] == [[0, 1], [2, 3, 4]]  # balanced: 8 and 10


@pytest.mark.parametrize("limit", [MicroBatching(max_tokens=5), MicroBatching(max_sequences=5)])
def test_an_empty_batch_has_no_micro_batches(limit):
    assert micro_batches(torch.zeros(0, dtype=torch.int64), limit) == []


@pytest.mark.parametrize(
    ("other", "multiple", "tokens"), [(1, 1, [10, 11, 9]), (5, 1, [9, 8, 5, 4, 4]), (4, 3, [9, 8, 5, 4, 3, 1])]
)
def test_ranks_make_as_many_micro_batches_as_the_one_with_most_of_them(other, multiple, tokens):
    lengths, limit = torch.tensor([3, 9, 5, 4, 8, 1]), MicroBatching(max_tokens=6)
    cuts = lockstep_micro_batches(lengths, limit, lambda own: [own, other], packed=True, sharing=2, multiple=multiple)
    assert [int(lengths[rows].sum()) for rows in cuts] == tokens


def test_a_rank_with_fewer_rows_than_another_has_micro_batches_has_empty_ones():
    cuts = lockstep_micro_batches(torch.tensor([2, 2]), MicroBatching(max_tokens=9), lambda own: [3, own], packed=True)
    assert [rows.tolist() for rows in cuts] == [[0], [1], []]


units = st.lists(st.lists(st.integers(1, 30), min_size=1, max_size=4), min_size=1, max_size=12)


@given(units, st.integers(1, 90), st.booleans(), st.integers(1, 4))
def test_rows_of_a_unit_are_in_one_micro_batch(lengths, max_tokens, packed, at_least):
    ids = torch.tensor([unit for unit, rows in enumerate(lengths) for _ in rows])
    flat = torch.tensor([length for rows in lengths for length in rows])
    limit = MicroBatching(max_tokens=max_tokens)
    cuts = micro_batches(flat, limit, packed=packed, at_least=at_least, unit_ids=ids)
    assert sorted(row for rows in cuts for row in rows.tolist()) == list(range(len(flat)))
    of_units = [set(ids[rows].tolist()) for rows in cuts]
    assert sum(map(len, of_units)) == len(lengths)
    for rows, held in zip(cuts, of_units, strict=True):
        tokens = int(flat[rows].sum()) if packed else len(rows) * int(flat[rows].max())
        assert len(held) == 1 or tokens <= max_tokens


@given(units, st.integers(1, 9))
def test_a_limit_in_sequences_is_kept_but_for_a_single_unit(lengths, max_sequences):
    ids = torch.tensor([unit for unit, rows in enumerate(lengths) for _ in rows])
    limit = MicroBatching(max_sequences=max_sequences)
    for rows in micro_batches(torch.ones(len(ids), dtype=torch.int64), limit, unit_ids=ids):
        assert len(rows) <= max_sequences or len(set(ids[rows].tolist())) == 1
