"""The models as the controller sees them, and the memory that log-probs of the whole vocabulary take."""

import pytest
import torch

from corerl.contracts.experience import collate
from corerl.contracts.throughput import ModelShape
from corerl.contracts.token_outputs import TokenOutputs
from corerl.errors import RunError
from corerl.trainer.models import Models

TOKENS = ["group_ids", "input_ids", "prompt_lengths", "response_lengths", "response_mask"]


class Model:
    """Log-probs of -1, over a vocabulary of three."""

    def __init__(self):
        self.asked = []

    def forward(self, batch, wanted):
        self.asked.append((sorted(batch.tensors()), wanted))
        log_probs = torch.full(batch.response_mask.shape, -1.0)
        return TokenOutputs(log_probs, vocabulary_log_probs=log_probs[:, :, None].expand(-1, -1, 3))


def models(actor="actor", critic=None, reference=None, vocabulary=3, most=4.0):
    return Models(actor, critic, reference, ModelShape(1, 1, 1, vocabulary=vocabulary), max_vocabulary_gb=most)


def test_models_that_the_algorithm_does_not_need_are_left_out():
    assert (models().all, models().trained) == (["actor"], {"actor": "actor"})
    assert models(critic="critic").all == ["actor", "critic"]
    assert models(critic="critic", reference="ref").all == ["actor", "critic", "ref"]
    assert models(critic="critic", reference="ref").trained == {"actor": "actor", "critic": "critic"}


def test_models_of_plugins_come_last_and_are_not_trained():
    made = Models("actor", None, "ref", ModelShape(1, 1, 1), 4.0, {"teacher": "t"})
    assert made.all == ["actor", "ref", "t"] and made.trained == {"actor": "actor"}


def test_the_policy_is_asked_for_log_probs_with_the_tokens_alone():
    batch, actor = collate([[1], [2]], [[4, 4], [5]], [0, 1], log_probs=[[0.0, 0.0], [0.0]]), Model()
    assert models(actor).present_log_probs(batch).tolist() == [[-1.0, -1.0]] * 2
    assert actor.asked == [(TOKENS, ["log_probs"])]


def test_log_probs_of_the_vocabulary_may_take_as_much_memory_as_is_allowed_and_no_more():
    """2 rows of 4 tokens over 2^26 in float32 are 2 GiB; the reference here has a vocabulary of three."""
    batch, reference = collate([[1], [2]], [[4, 4, 4, 4], [5]], [0, 1]), Model()
    allowed = models(reference=reference, vocabulary=2**26, most=2.0)
    assert allowed.ref_vocabulary_log_probs(batch).shape == (2, 4, 3)
    with pytest.raises(RunError) as error:
        models(reference=reference, vocabulary=2**26, most=1.99).ref_vocabulary_log_probs(batch)
    assert str(error.value).startswith(
        "log-probs of 2 × 4 tokens over a vocabulary of 67108864 take 2.0 GiB, more than "
        "ref.max_vocabulary_log_probs_gb = 1.99: use a smaller actor.ppo_mini_batch_size"
    )
    assert reference.asked == [(TOKENS, ["vocabulary_log_probs"])]
