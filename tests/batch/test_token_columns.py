"""Columns of tokens: from requests to rows, from rows to batches."""

import asyncio
import random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from corerl.contracts.agents import AgentResult
from corerl.contracts.experience import collate
from corerl.contracts.rollout_backends import Completion, SamplingParams
from corerl.contracts.token_columns import TokenColumn, TokenValues
from corerl.data.prompts import Prompt
from corerl.rollout.groups import Group
from corerl.rollout.recorder import Recorder
from corerl.rollout.rows import rollouts_of


def values_of(ids, counts=None):
    """Each token's id, as often as its count."""
    counts = np.ones(len(ids), np.int32) if counts is None else np.asarray(counts, np.int32)
    return TokenValues(np.repeat(np.asarray(ids, np.int32), counts), counts)


class Letters:
    stop_token_ids = (0,)

    def opening(self, token_ids):
        return ""

    def decode(self, rows):
        return ["".join(chr(97 + token % 26) for token in row) for row in rows]


class RecordingPolicy:
    """``read``: at each token that the model has read; ``kept``: at each sampled token, twice."""

    def __init__(self, draw):
        self.draw = draw

    async def complete(self, request, on_sent=lambda: None):
        on_sent()
        ids = [self.draw.randrange(100, 10**6) for _ in range(self.draw.randrange(1, 4))]
        seen = [*request.prompt_ids, *ids[:-1], 0]
        read = values_of(seen, [1] * (len(seen) - 1) + [0])
        kept = values_of(ids, [2] * len(ids))
        return [Completion(ids, [-1.0] * len(ids), "stop", 0, (), {"read": read, "kept": kept})]


@pytest.mark.parametrize("seed", range(20))
def test_each_token_of_a_row_keeps_its_values_whatever_the_tree(seed):
    draw = random.Random(seed)
    prompt = Prompt(0, (1, 2, 3), [{"role": "user", "content": "Go."}], "acme", "42", {})
    group = Group(prompt, 11, SamplingParams(200), "train-0", "train", 0)
    model = Recorder(RecordingPolicy(draw), Letters(), group, 0, 10)

    async def play():
        paths = [[1, 2, 3]]
        for _ in range(8):
            path = draw.choice(paths)
            read = [draw.randrange(10, 99) for _ in range(draw.randrange(3))] if len(path) > 3 else []
            sampled = await model.generate([*path, *read])
            paths.append([*path, *read, *sampled.token_ids])

    asyncio.run(play())
    rollouts = rollouts_of(model, AgentResult(1.0))
    experience = rollouts.experience()
    sampled = {token for node in model.nodes for token in node.turn.token_ids}
    for number, row in enumerate(rollouts.rows()):
        ids = [*row.prompt_ids, *row.completion.token_ids]
        of_row = {name: column.select(torch.tensor([number]), 500) for name, column in experience.columns.items()}
        assert of_row["read"].values.tolist() == ids[:-1]
        counts = of_row["kept"].counts[0, : len(ids)].tolist()
        assert counts == [2 * (token in sampled) for token in ids]
        assert of_row["kept"].values.tolist() == [token for token in ids for _ in range(2 * (token in sampled))]


@given(
    st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=6), min_size=1, max_size=5),
    st.data(),
)
def test_rows_of_a_column_are_those_of_the_batch(counts, data):
    rows = [values_of(range(10 * row, 10 * row + len(each)), each) for row, each in enumerate(counts)]
    lengths = [len(each) + data.draw(st.integers(0, 2)) for each in counts]
    column = TokenColumn.collate(rows, lengths)
    chosen = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=6))
    picked = column.select(torch.tensor(chosen, dtype=torch.int64), max(lengths))
    assert picked.values.tolist() == [value for row in chosen for value in rows[row].values.tolist()]
    for place, row in enumerate(chosen):
        assert picked.counts[place, lengths[row] - len(counts[row]) : lengths[row]].tolist() == counts[row]
    assert int(picked.counts.sum()) == len(picked.values)


def test_a_batch_keeps_its_columns_in_every_copy():
    batch = collate([[1, 2], [3]], [[4], [5, 6]], [0, 1])
    batch.columns["read"] = TokenColumn.collate([values_of([1, 2, 4]), values_of([3, 5, 6])], [3, 3])
    for copy in (batch.tokens(), batch.to("cpu"), batch.map(lambda _, tensor: tensor.clone()), batch.range(0, 1)):
        assert copy.columns["read"].values.tolist() == [1, 2, 4, 3, 5, 6]
    assert batch.range(1, 1).columns["read"].values.tolist() == [3, 5, 6]
    assert batch.select(torch.tensor([1, 0])).columns["read"].values.tolist() == [3, 5, 6, 1, 2, 4]


def test_rows_without_a_column_have_no_values():
    column = TokenColumn.collate([None, values_of([7])], [2, 3])
    assert column.counts.tolist() == [[0, 0, 0], [0, 0, 1]] and column.values.tolist() == [7]


def test_counts_that_do_not_fit_the_values_are_an_error():
    with pytest.raises(ValueError, match="3 values for tokens with 2"):
        TokenValues(np.zeros(3, np.int32), np.array([1, 1], np.int32))
    with pytest.raises(ValueError, match="values for tokens"):
        TokenValues(np.zeros(1, np.int32), np.array([2, -1], np.int32))
