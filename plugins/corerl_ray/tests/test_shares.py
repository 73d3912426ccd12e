"""Splitting by data-parallel rank and putting together again."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from corerl.contracts.experience import collate
from corerl.contracts.token_columns import TokenColumn, TokenValues
from corerl.contracts.token_outputs import TokenOutputs
from corerl.errors import NonFiniteError
from corerl_ray.shares import rows_from, split
from corerl_torch.balance import IMBALANCE, balance

sizes = st.lists(st.tuples(st.integers(1, 30), st.integers(1, 30)), min_size=1, max_size=40)


def experience(lengths):
    """Row i has the prompt i, i, … and a response of 100 + t."""
    batch = collate(
        [[row] * prompt for row, (prompt, _) in enumerate(lengths)],
        [[100 + step for step in range(response)] for _, response in lengths],
        list(range(len(lengths))),
    )
    batch.loss_weights = torch.where(batch.response_mask, 0.5, 0.0).double()
    return batch


def outputs(batch):
    """(b, t): 1000 · row + token, of what a share contains alone."""
    steps = torch.arange(batch.response_mask.shape[1])
    values = 1000.0 * batch.input_ids[:, :1] + 100 + steps
    return TokenOutputs(log_probs=torch.where(batch.response_mask, values, 0.0))


@given(sizes, st.integers(1, 6))
def test_every_row_is_in_one_share_and_comes_back_to_its_place(lengths, ranks):
    batch = experience(lengths)
    whole = split(batch, ranks)
    assert sorted(row for share in whole.shares for row in share.rows.tolist()) == list(range(len(lengths)))
    joined = whole.join([outputs(share.value) for share in whole.shares]).log_probs
    for row, (_, response) in enumerate(lengths):
        expected = [1000.0 * row + 100 + step for step in range(response)]
        assert joined[row, :response].tolist() == expected
        assert not joined[row, response:].any()
    assert joined.shape == batch.response_mask.shape


@given(sizes, st.integers(1, 6))
def test_the_loss_weights_of_all_shares_are_those_of_the_batch(lengths, ranks):
    batch = experience(lengths)
    parts = [share.value.loss_weights.sum() for share in split(batch, ranks).shares]
    assert float(torch.stack(parts).sum()) == float(batch.loss_weights.sum())


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=60), st.integers(1, 8))
def test_the_largest_share_is_at_most_one_row_above_the_mean(lengths, ranks):
    shares = balance(torch.tensor(lengths), ranks)
    tokens = [sum(lengths[row] for row in rows.tolist()) for rows in shares]
    mean = sum(lengths) / ranks
    assert max(tokens) <= max(mean + max(lengths), IMBALANCE * mean)
    assert all(rows.tolist() == sorted(rows.tolist()) for rows in shares)


def test_unequal_rows_are_dealt_out_longest_first():
    assert [rows.tolist() for rows in balance(torch.tensor([10, 1, 9, 2]), 2)] == [[0, 1], [2, 3]]
    assert [rows.tolist() for rows in balance(torch.tensor([100, 90, 10, 20]), 2)] == [[0, 2], [1, 3]]


def test_groups_stay_on_one_rank_if_that_is_balanced():
    groups = torch.tensor([0, 1, 2, 0, 1, 2, 3, 3])
    shares = balance(torch.tensor([30, 10, 20, 30, 11, 20, 35, 4]), 2, groups)
    assert [rows.tolist() for rows in shares] == [[0, 1, 3, 4], [2, 5, 6, 7]]
    scattered = balance(torch.tensor([50, 10, 5, 50, 11, 5, 5, 4]), 2, groups)
    assert sorted(row for rows in scattered for row in rows.tolist()) == list(range(8))
    assert all(0 in groups[rows] for rows in scattered)  # the group of two thirds of the tokens is divided


def test_a_large_batch_is_cut_without_copying():
    batch = experience([(5, 7)] * 64)
    first, second = split(batch, 2).shares
    assert first.rows.tolist() == list(range(32))
    assert first.value.input_ids.data_ptr() == batch.input_ids.data_ptr()
    assert second.value.input_ids.untyped_storage().data_ptr() == batch.input_ids.untyped_storage().data_ptr()


def test_one_rank_gets_the_batch_as_it_is():
    batch = experience([(3, 2), (1, 5)])
    (share,) = split(batch, 1).shares
    for name, tensor in batch.tensors().items():
        assert torch.equal(getattr(share.value, name), tensor)


def test_a_rank_without_rows_gets_one_that_counts_nowhere():
    batch = experience([(3, 2)])
    shares = split(batch, 3).shares
    fillers = [share for share in shares if len(share.rows) == 0]
    assert len(fillers) == 2
    for share in fillers:
        assert len(share.value) == 1
        assert not share.value.response_mask.any() and not share.value.loss_weights.any()
    assert batch.response_mask.all() and batch.loss_weights.any()


@given(st.lists(st.integers(), max_size=20), st.integers(1, 6))
def test_a_sequence_comes_back_in_its_order(elements, ranks):
    whole = split(elements, ranks)
    assert whole.join([[10 * element for element in share.value] for share in whole.shares]) == [
        10 * element for element in elements
    ]
    counts = [len(share.value) for share in whole.shares]
    assert max(counts) - min(counts) <= 1


def test_rows_that_are_not_finite_are_named_as_rows_of_the_whole():
    whole = split(experience([(9, 1), (1, 1), (8, 1), (1, 2), (2, 2)]), 2)
    for rank, share in enumerate(whole.shares):
        for position, row in enumerate(share.rows.tolist()):
            errors = [None, None]
            errors[rank] = NonFiniteError("loss nan", [position])
            assert whole.merge_nonfinite(errors).rows == (row,)
    both = [NonFiniteError("loss nan", [0]) for _ in whole.shares]
    assert whole.merge_nonfinite(both).rows == tuple(sorted(int(share.rows[0]) for share in whole.shares))


def test_a_filler_is_no_row_of_the_whole():
    whole = split(experience([(1, 1)]), 2)
    errors = [NonFiniteError("loss nan", [0]) for _ in whole.shares]
    assert whole.merge_nonfinite(errors).rows == (0,)


def test_all_kinds_of_outputs_are_joined():
    batch = experience([(2, 3), (2, 1), (2, 2)])
    whole = split(batch, 2)
    parts = [
        TokenOutputs(
            values=torch.ones(share.value.response_mask.shape),
            vocabulary_log_probs=torch.ones(*share.value.response_mask.shape, 4),
        )
        for share in whole.shares
    ]
    joined = whole.join(parts)
    assert joined.log_probs is None
    assert joined.values.shape == (3, 3) and joined.vocabulary_log_probs.shape == (3, 3, 4)


def test_what_cannot_be_split_or_joined_is_named():
    with pytest.raises(TypeError, match="not int"):
        split(3, 2)
    with pytest.raises(TypeError, match="results of type dict cannot be joined"):
        split([1, 2], 2).join([{}, {}])


@given(sizes, st.integers(1, 6))
def test_rows_of_a_unit_are_in_one_share(lengths, ranks):
    batch = experience(lengths)
    batch.unit_ids = torch.arange(len(lengths)) // 2
    shares = split(batch, ranks).shares
    assert sorted(row for share in shares for row in share.rows.tolist()) == list(range(len(lengths)))
    held = [set(batch.unit_ids[share.rows].tolist()) for share in shares]
    assert sum(map(len, held)) == len(set(batch.unit_ids.tolist()))


@pytest.mark.parametrize("recorded", [(0, 1, 2, 3, 4), (0, 3)], ids=["all", "some"])
def test_rows_of_several_experiences_have_their_columns(recorded):
    """A shard whose responses have no values lacks the column."""
    whole = collate([[1]] * 5, [[2] * length for length in (3, 1, 4, 2, 2)], [0, 0, 1, 1, 1])
    lengths = whole.lengths.tolist()
    values = [
        TokenValues(np.arange(row, row + tokens, dtype=np.float32), np.ones(tokens, np.int32))
        if row in recorded
        else None
        for row, tokens in enumerate(lengths)
    ]
    whole.columns["top"] = TokenColumn.collate(values, lengths)
    shards = [torch.tensor(own) for own in ([0, 3], [4, 1], [2])]
    parts = [whole.select(own) for own in shards]
    for own, part in zip(shards, parts, strict=True):
        if not {*own.tolist()} & {*recorded}:
            part.columns.clear()
    order = torch.tensor([2, 4, 0, 1, 3])
    places = torch.tensor([[*own].index(row) for row in order for own in shards if row in own])
    rows = [torch.tensor([place for place, row in enumerate(order) if row in own]) for own in shards]
    found, expected = rows_from(parts, rows, places), whole.select(order)
    for name, tensor in expected.tensors().items():
        assert torch.equal(getattr(found, name), tensor), name
    assert torch.equal(found.columns["top"].values, expected.columns["top"].values)
    assert torch.equal(found.columns["top"].counts, expected.columns["top"].counts)
