import itertools
import random

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from corerl.contracts.experience import collate
from corerl.contracts.training_strategies import MicroBatching
from corerl.errors import ConfigError
from corerl_testing.trees import tree_batch
from corerl_torch import tries
from corerl_torch.layout import packed
from corerl_torch.micro_batches import lockstep_micro_batches, micro_batches
from corerl_torch.packed_attention import packed_attention
from corerl_torch.tries import Trie, shared_prefixes

ROWS = st.lists(st.lists(st.integers(0, 2), min_size=2, max_size=9), min_size=1, max_size=12)


unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # a busy machine is no failure


def experience(rows):
    return collate([row[:1] for row in rows], [row[1:] for row in rows], [0] * len(rows))


def inputs_of(batch):
    """The input tokens of each row: all but its last."""
    pairs = zip(batch.input_ids.tolist(), batch.lengths.tolist(), strict=True)
    return [tuple(row[: length - 1]) for row, length in pairs]


def distinct_prefixes(rows):
    """How many nodes a trie of the rows has: the tokens that must be computed."""
    return len({row[:end] for row in rows for end in range(1, len(row) + 1)})


@given(ROWS)
@unhurried
def test_every_distinct_prefix_is_computed_once(rows):
    batch = experience(rows)
    inputs = shared_prefixes(batch).inputs
    assert inputs["input_ids"].shape[1] == Trie.of(batch).tokens() == distinct_prefixes(inputs_of(batch))


@given(ROWS)
@unhurried
def test_a_row_reads_the_keys_of_its_own_tokens_in_order(rows):
    batch = experience(rows)
    inputs, positions, real, numbers = shared_prefixes(batch)
    assert batch.input_ids.flatten()[numbers].equal(inputs["input_ids"][0])
    if "key_index" not in inputs:
        assert len({row[0] for row in rows}) == len(rows)
        return
    ids, places = inputs["input_ids"][0], inputs["position_ids"][0]
    paths = []
    bounds = (inputs["cu_seq_lens_q"].tolist(), inputs["cu_seq_lens_k"].tolist())
    for (start, end), (first, last) in zip(*map(itertools.pairwise, bounds), strict=True):
        path = inputs["key_index"][first:last]
        assert path[last - first - (end - start) :].tolist() == list(range(start, end))  # own tokens are the last
        assert places[path].tolist() == list(range(len(path)))
        paths.append(tuple(ids[path].tolist()))
    expected = inputs_of(batch)
    assert set(paths) <= set(expected) and distinct_prefixes(paths) == distinct_prefixes(expected)
    assert inputs["max_length_q"] == max(np.diff(bounds[0])) and inputs["max_length_k"] == max(np.diff(bounds[1]))
    followed = iter(positions.tolist())
    for row, length in zip(expected, batch.response_lengths.tolist(), strict=True):
        for step in range(length):
            position = next(followed)
            assert ids[position] == row[len(row) - length + step] and places[position] == len(row) - length + step
    assert next(followed, None) is None and int(real.sum()) == len(positions)


def test_rows_with_nothing_in_common_are_packed_as_always():
    batch = experience([[1, 2, 3], [2, 2], [0, 1, 1, 1]])
    shared, plain = shared_prefixes(batch), packed(batch)
    assert shared.inputs.keys() == plain.inputs.keys()
    assert torch.equal(shared.inputs["input_ids"], plain.inputs["input_ids"])


def attended(batch, make, vectors, sliding_window, key_heads):
    """Attention of random vectors of each prefix, and the gradients by them; (row, step) → values."""
    inputs, *_ = make(batch)
    ids, places = inputs["input_ids"][0].tolist(), inputs["position_ids"][0].tolist()
    rows = inputs_of(batch)
    if "key_index" in inputs:
        index, bounds = inputs["key_index"].tolist(), inputs["cu_seq_lens_k"].tolist()
        paths = [index[start:end] for start, end in itertools.pairwise(bounds)]
    else:
        paths = [list(range(start, end)) for start, end in itertools.pairwise(inputs["cu_seq_lens_q"].tolist())]
    prefix = {}
    for path in paths:
        for end in range(1, len(path) + 1):
            prefix[path[end - 1]] = tuple(ids[token] for token in path[:end])
    assert [len(prefix[token]) - 1 for token in range(len(ids))] == places
    states = [
        torch.stack([vectors(which, prefix[token]) for token in range(len(ids))], dim=1)[None].requires_grad_()
        for which in range(3)
    ]
    query, key, value = states[0], states[1][:, :key_heads], states[2][:, :key_heads]
    result, _ = packed_attention(
        torch.nn.Identity(), query, key, value, None, **inputs, scaling=0.4, sliding_window=sliding_window
    )
    return result[0], states, [prefix[token] for token in range(len(ids))], rows


@pytest.mark.parametrize("sliding_window", [None, 3])
@pytest.mark.parametrize("key_heads", [4, 2])
@pytest.mark.parametrize("seed", range(3))
def test_the_attention_and_its_gradient_are_those_of_whole_rows(seed, key_heads, sliding_window):
    batch = tree_batch(seed, 10, vocabulary=30)

    def vectors(which, prefix):
        generator = torch.Generator().manual_seed(hash((which, prefix)) % 2**31)
        return torch.randn(4, 8, generator=generator, dtype=torch.float64)

    found = []
    for make in (packed, shared_prefixes):
        result, states, prefixes, rows = attended(batch, make, vectors, sliding_window, key_heads)
        counts = {prefix: sum(row[: len(prefix)] == prefix for row in rows) for prefix in prefixes}
        if make is packed:
            counts = dict.fromkeys(counts, 1)
        weights = torch.stack([counts[each] * vectors(3, each) for each in prefixes])
        (result * weights).sum().backward()
        of_prefix = {}
        for token, prefix in enumerate(prefixes):
            gradients = torch.stack([state.grad[0, :, token] for state in states])
            output, before = of_prefix.get(prefix, (result[token], torch.zeros_like(gradients)))
            of_prefix[prefix] = (output, before + gradients)
        found.append(of_prefix)
    assert found[0].keys() == found[1].keys()
    for prefix, (output, gradients) in found[0].items():
        torch.testing.assert_close(found[1][prefix][0], output, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(found[1][prefix][1], gradients, rtol=1e-10, atol=1e-12)


@given(ROWS, st.integers(1, 60), st.integers(1, 5))
@unhurried
def test_micro_batches_hold_distinct_tokens_up_to_the_limit(rows, max_tokens, at_least):
    batch = experience(rows)
    limit, trie = MicroBatching(max_tokens=max_tokens), Trie.of(batch)
    cuts = micro_batches(batch.lengths, limit, packed=True, at_least=at_least, trie=trie)
    assert sorted(torch.cat(cuts).tolist()) == list(range(len(rows)))
    for cut in cuts:
        assert len(cut) == 1 or Trie.of(batch.select(cut)).tokens() <= max_tokens
    fewest = micro_batches(batch.lengths, limit, packed=True, trie=trie)
    assert len(cuts) <= max(len(fewest), at_least)


def test_a_group_is_divided_only_if_it_does_not_fit():
    """Groups of 100 + 4 · 10 tokens behind a common system prompt of 5; 145 tokens each."""
    generator = random.Random(0)
    system = [1, 2, 3, 4, 5]
    groups = [[generator.randrange(9, 99) for _ in range(100)] for _ in range(6)]
    rows = [[*system, *group, *(generator.randrange(9, 99) for _ in range(11))] for group in groups for _ in range(4)]
    generator.shuffle(rows)
    batch = experience(rows)

    def cut(max_tokens):
        cuts = micro_batches(batch.lengths, MicroBatching(max_tokens=max_tokens), packed=True, trie=Trie.of(batch))
        together = [{tuple(rows[row][5:105]) for row in each.tolist()} for each in cuts]
        return [Trie.of(batch.select(each)).tokens() for each in cuts], [len(each) for each in together]

    assert cut(10000) == ([5 + 6 * 140], [6])
    assert cut(300) == ([285, 285, 285], [2, 2, 2])
    assert cut(460) == ([425, 425], [3, 3])
    tokens, groups_each = cut(130)
    assert max(tokens) <= 130 and groups_each == [1] * 12


def test_micro_batches_by_sequences_hold_neighbours():
    batch = experience([[7, 1, 2], [3, 1, 2], [7, 1, 3], [3, 1, 4]])
    cuts = micro_batches(batch.lengths, MicroBatching(max_sequences=2), packed=True, trie=Trie.of(batch))
    assert [sorted(cut.tolist()) for cut in cuts] == [[1, 3], [0, 2]]


def test_a_micro_batch_gathers_a_limited_number_of_keys(monkeypatch):
    """The keys of a long prompt are gathered for each of its responses."""
    rows = [[*range(50), 60 + row, 0] for row in range(40)]
    batch, limit = experience(rows), MicroBatching(max_tokens=100)
    assert len(micro_batches(batch.lengths, limit, packed=True, trie=Trie.of(batch))) == 2
    monkeypatch.setattr(tries, "KEYS", 4)
    cuts = micro_batches(batch.lengths, limit, packed=True, trie=Trie.of(batch))
    assert all(int((batch.lengths[cut] - 1).sum()) <= 400 for cut in cuts)


def test_deep_chains_of_rows_are_divided():
    rows = [list(range(2, 4 + length)) for length in range(1100)]
    batch = experience(rows)
    cuts = micro_batches(batch.lengths, MicroBatching(max_tokens=400), packed=True, trie=Trie.of(batch))
    assert sum(map(len, cuts)) == 1100


def test_ranks_with_fewer_micro_batches_get_empty_ones():
    batch = experience([[7, 1, 2], [7, 1, 2], [7, 1, 3]])
    cuts = lockstep_micro_batches(
        batch.lengths, MicroBatching(max_tokens=10), lambda own: [own, 4], packed=True, trie=Trie.of(batch)
    )
    assert len(cuts) == 4 and sorted(torch.cat(cuts).tolist()) == [0, 1, 2]
    none = batch.select(torch.zeros(0, dtype=torch.int64))
    cuts = lockstep_micro_batches(
        none.lengths, MicroBatching(max_tokens=10), lambda own: [own, 2], packed=True, trie=Trie.of(none)
    )
    assert [len(cut) for cut in cuts] == [0, 0]


class Model:
    def __init__(self, stateful=False, types=None):
        self._is_stateful, self.config, self.layer_types = stateful, self, types

    def get_text_config(self):
        return self


@pytest.mark.parametrize(
    ("model", "attention", "packs", "ranks", "reason"),
    [
        (Model(), "sdpa", False, 1, "among padded rows (use_remove_padding=false)"),
        (Model(), "sdpa", True, 2, "if 2 ranks share the tokens of a row (ulysses_sequence_parallel_size)"),
        (Model(), "flash_attention_2", True, 1, "with model.attn_implementation=flash_attention_2, but with sdpa"),
        (Model(stateful=True), "sdpa", True, 1, "by Model, whose layers carry a state from token to token"),
        (Model(types=["full_attention", "conv"]), "sdpa", True, 1, "by Model, which has layers of type conv"),
    ],
)
def test_what_cannot_share_prefixes_is_refused_if_sharing_is_asked_for(model, attention, packs, ranks, reason):
    assert tries.shares(None, model, attention, packs=packs, ranks=ranks) is False
    with pytest.raises(ConfigError) as caught:
        tries.shares(True, model, attention, packs=packs, ranks=ranks)
    assert str(caught.value) == (
        f"actor.strategy.share_prefixes: prefixes cannot be shared {reason}: set it to null or false"
    )


@pytest.mark.parametrize("types", [None, ["full_attention", "sliding_attention"]])
def test_layers_that_read_other_tokens_by_attention_share_prefixes(types):
    assert tries.shares(None, Model(types=types), "sdpa", packs=True, ranks=1)
    assert not tries.shares(False, Model(types=types), "sdpa", packs=True, ranks=1)
