import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from corerl.batch.micro_batches import micro_batches, mini_batches
from corerl.registry.training_strategies import MicroBatching

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


def test_mini_batches_hold_whole_groups_in_the_order_of_their_ids():
    groups = torch.tensor([2, 0, 1, 0, 2, 1])
    assert [rows.tolist() for rows in mini_batches(groups, 2)] == [[1, 2, 3, 5], [0, 4]]


@pytest.mark.parametrize("max_tokens", [1, 9, 12, 17, 1000])
def test_packed_micro_batches_hold_real_tokens_up_to_the_limit(max_tokens):
    lengths = torch.tensor([3, 9, 5, 4, 8, 1])
    cuts = micro_batches(lengths, MicroBatching(max_tokens=max_tokens), packed=True)
    assert sorted(torch.cat(cuts).tolist()) == list(range(6))
    assert all(len(rows) == 1 or lengths[rows].sum() <= max_tokens for rows in cuts)


def test_packed_rows_fill_the_first_micro_batch_with_room():
    cuts = micro_batches(torch.tensor([3, 9, 5, 4, 8, 1]), MicroBatching(max_tokens=12), packed=True)
    assert [rows.tolist() for rows in cuts] == [[1, 0], [4, 3], [2, 5]]


@pytest.mark.parametrize("limit", [MicroBatching(max_tokens=5), MicroBatching(max_sequences=5)])
def test_an_empty_batch_has_no_micro_batches(limit):
    assert micro_batches(torch.zeros(0, dtype=torch.int64), limit) == []
