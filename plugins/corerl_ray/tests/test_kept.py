"""Tokens that stay in the object store."""

import pickle
from array import array
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from ray.exceptions import RayError

from corerl.contracts.experience import collate
from corerl.contracts.rollout_backends import Completion
from corerl.errors import WorkerDiedError
from corerl_ray import kept
from corerl_ray.relay import PackedShares
from corerl_ray.shares import split


@pytest.fixture
def completions():
    arrays = Completion(array("i", [1, 2, 3]), array("f", [-1.0, -2.0, -3.0]), "stop", 4, ((2, 5),))
    return [[arrays, Completion([4, 5], [-0.1, -0.2], "length", 4)], "another result", [Completion([], [], "abort", 4)]]


def test_the_tokens_of_many_responses_stay_and_read_as_before_in_any_process(monkeypatch, completions):
    monkeypatch.setattr(kept, "MANY", 5)
    before = [each for result in completions if isinstance(result, list) for each in result]
    arrays, values = kept.keep_tokens(completions)
    monkeypatch.setattr(kept, "ray", SimpleNamespace(get={"there": values}.get, exceptions=kept.ray.exceptions))
    arrays.reference = "there"
    assert completions[1] == "another result"
    after = [each for result in completions if isinstance(result, list) for each in result]
    sent = pickle.dumps(after)
    for each, expected in zip(pickle.loads(sent), before, strict=True):
        assert isinstance(each.token_ids, kept.Tokens) and len(each.token_ids) == len(expected.token_ids)
        assert [*each.token_ids] == [*expected.token_ids] and each.log_probs[:] == [*expected.log_probs]
        assert each.version_runs() == expected.version_runs()
        assert np.array_equal(np.asarray(each.token_ids, np.int64), [*expected.token_ids])
    assert arrays._values is None  # the sender has not read them


def test_few_tokens_travel_themselves(completions):
    first = completions[0][0]
    assert kept.keep_tokens(completions) == (None, None)
    assert completions[0][0] is first


def test_tokens_of_a_lost_machine_are_those_of_a_lost_worker(monkeypatch, completions):
    monkeypatch.setattr(kept, "MANY", 5)
    arrays, _ = kept.keep_tokens(completions)

    def get(reference):
        raise RayError("the object was on node 7\nmore")

    arrays.reference = "there"
    monkeypatch.setattr(kept, "ray", SimpleNamespace(get=get, exceptions=kept.ray.exceptions))
    with pytest.raises(WorkerDiedError, match="tokens of responses were on a machine that is lost: the object was on"):
        list(completions[0][0].token_ids)


@pytest.mark.parametrize("packed", [False, True], ids=["alone", "by a relay"])
@pytest.mark.parametrize("shards", [[[0, 1, 2, 3]], [[0, 1], [2, 3]], [[3, 1], [2], [0]]])
def test_rows_of_a_handle_have_their_loss_weights_on_every_rank(monkeypatch, packed, shards):
    """Those of the same rows of the Experience; a rank without rows has a filler that counts nowhere."""
    whole = collate([[1]] * 4, [[2] * length for length in (5, 1, 3, 2)], [0, 0, 1, 1])
    whole.response_mask[0, 2:] = False
    shards = [torch.tensor(own) for own in shards]
    stored = {f"shard {number}": whole.select(own) for number, own in enumerate(shards)}
    monkeypatch.setattr(kept, "ray", SimpleNamespace(get=lambda references: [*map(stored.get, references)]))
    rows, factors = torch.tensor([3, 0, 2]), torch.tensor([0.5, 0.25, 1 / 3], dtype=torch.float64)
    handle = kept.KeptRows.of([*stored], whole.numbers(), shards)
    handle, expected = (each.select(rows).weighed(factors) for each in (handle, whole))
    further = torch.tensor([2, 1])
    for given, own in ((handle, expected), (handle.select(further), expected.select(further))):
        for ranks in (1, 2, 4):
            parts = split(given, ranks).shares
            shares = [part.value for part in parts]
            for part, share in zip(parts, PackedShares.of(shares).shares() if packed else shares, strict=True):
                found = share.value()
                if not len(part.rows):
                    assert len(found) == 1 and not found.loss_weights.any() and not found.response_mask.any()
                    continue
                wanted = own.select(part.rows)
                for name, tensor in wanted.tensors().items():
                    assert torch.equal(getattr(found, name), tensor), (ranks, name)
