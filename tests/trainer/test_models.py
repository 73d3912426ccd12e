"""The models as the controller sees them."""

import torch

from corerl.contracts.experience import collate
from corerl.contracts.throughput import ModelShape
from corerl.contracts.token_outputs import TokenOutputs
from corerl.trainer.models import Models

TOKENS = ["group_ids", "input_ids", "prompt_lengths", "response_lengths", "response_mask"]


class Model:
    """Log-probs of -1."""

    def __init__(self):
        self.asked = []

    def forward(self, batch, wanted):
        self.asked.append((sorted(batch.tensors()), wanted))
        return TokenOutputs(torch.full(batch.response_mask.shape, -1.0))


def models(actor="actor", critic=None, reference=None):
    return Models(actor, critic, reference, ModelShape(1, 1, 1))


def test_models_that_the_algorithm_does_not_need_are_left_out():
    assert (models().all, models().trained) == (["actor"], {"actor": "actor"})
    assert models(critic="critic").all == ["actor", "critic"]
    assert models(critic="critic", reference="ref").all == ["actor", "critic", "ref"]
    assert models(critic="critic", reference="ref").trained == {"actor": "actor", "critic": "critic"}


def test_models_of_plugins_come_last_and_are_not_trained():
    made = Models("actor", None, "ref", ModelShape(1, 1, 1), {"teacher": "t"})
    assert made.all == ["actor", "ref", "t"] and made.trained == {"actor": "actor"}


def test_the_policy_is_asked_for_log_probs_with_the_tokens_alone():
    batch, actor = collate([[1], [2]], [[4, 4], [5]], [0, 1], log_probs=[[0.0, 0.0], [0.0]]), Model()
    assert models(actor).present_log_probs(batch).tolist() == [[-1.0, -1.0]] * 2
    assert actor.asked == [(TOKENS, ["log_probs"])]
