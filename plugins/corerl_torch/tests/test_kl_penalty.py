"""KL in the reward."""

import pytest
import torch

from corerl.contracts.experience import collate
from corerl.contracts.throughput import ModelShape
from corerl.contracts.token_outputs import TokenChunk, TokenOutputs
from corerl.trainer.models import Models
from corerl_torch.kl_penalty import KLPenalty
from corerl_torch.vocabulary import ReferenceLogProbs

NAN = float("nan")


def difference(log_probs, ref_log_probs):
    return log_probs - ref_log_probs


class Controller:
    """Doubles the coefficient and remembers what it was given."""

    def __init__(self):
        self.asked = []

    def __call__(self, coef, kl, count):
        self.asked.append((coef, pytest.approx(kl), count))
        return 2 * coef


def penalty(coef=0.2, kl_type=difference):
    return KLPenalty(kl_type, Controller(), coef, models=None, reference=None, mini_batch_size=1)


def experience(kl, masks, rewards):
    """Rows whose tokens have these differences of policy and reference."""
    batch = collate([[1]] * len(kl), [[5] * len(row) for row in kl], list(range(len(kl))), masks=masks)
    batch.ref_log_probs = torch.full(batch.response_mask.shape, -3.0)
    batch.old_log_probs = torch.tensor(kl) - 3.0
    batch.rewards = torch.tensor(rewards)
    return batch


def test_trained_tokens_alone_are_charged():
    """Row 0 has a tool's token in the middle; row 1 is a sample without a score, of which nothing is known."""
    batch = experience(
        [[0.5, 9.0, 0.25], [NAN, 7.0, 7.0]],
        [[True, False, True], [False, False, False]],
        [[0.0, 0.0, 1.0], [0.0, 0.0, 0.0]],
    )
    kl_penalty = penalty(0.2)
    metrics = kl_penalty.subtract(batch)
    assert batch.rewards.flatten().tolist() == pytest.approx([-0.1, 0.0, 0.95, 0.0, 0.0, 0.0])
    assert metrics == pytest.approx({"actor/reward_kl_penalty": (0.5 + 0.25) / 2, "actor/reward_kl_penalty_coeff": 0.2})
    assert kl_penalty.controller.asked == [(0.2, 0.375, 1)]
    assert kl_penalty.coef == 0.4


def test_the_mean_is_over_responses_and_the_step_is_charged_with_the_coefficient_before_it_moves():
    batch = experience([[0.5, 0.25], [2.0, 9.0]], [[True, True], [True, False]], [[0.0, 0.0], [0.0, 0.0]])
    kl_penalty = penalty(1.0)
    metrics = kl_penalty.subtract(batch)
    assert metrics["actor/reward_kl_penalty"] == pytest.approx((0.375 + 2.0) / 2)
    assert kl_penalty.controller.asked == [(1.0, 1.1875, 2)]
    kl_penalty.subtract(batch)
    assert batch.rewards.flatten().tolist() == pytest.approx([-0.5 * 3, -0.25 * 3, -2.0 * 3, 0.0])
    assert kl_penalty.coef == 4.0


def test_a_batch_without_a_trained_token_has_no_mean():
    batch = experience([[1.0]], [[False]], [[0.0]])
    kl_penalty = penalty(0.5)
    assert kl_penalty.subtract(batch) == {"actor/reward_kl_penalty_coeff": 0.5}
    assert kl_penalty.controller.asked == [(0.5, 0.0, 0)]


class Model:
    """Logits of a vocabulary of three that name the token: ``scale`` · (id, 0, 0)."""

    def __init__(self, scale):
        self.scale, self.asked = scale, []

    def forward(self, batch, wanted):
        self.asked.append((len(batch), sorted(batch.tensors())))
        ids = torch.zeros(batch.response_mask.shape)
        for row, (start, length) in enumerate(zip(batch.prompt_lengths, batch.response_lengths, strict=True)):
            ids[row, :length] = batch.input_ids[row, start : start + length].float()
        logits = self.scale * torch.stack([ids, 0 * ids, 0 * ids], dim=2)
        rows, steps = (torch.arange(ids.shape[1]) < batch.response_lengths[:, None]).nonzero(as_tuple=True)
        [function] = wanted
        given = function(logits[rows, steps], TokenChunk(batch, rows, steps, None))
        columns = {
            name: torch.zeros(*ids.shape, *each.shape[1:]).index_put((rows, steps), each)
            for name, each in given.items()
        }
        return TokenOutputs(of_logits=columns)


TOKENS = ["group_ids", "input_ids", "prompt_lengths", "response_lengths", "response_mask"]


def test_kl_over_the_vocabulary_is_asked_for_by_mini_batch_and_comes_back_to_its_rows():
    """Groups 0, 1, 0 of one prompt each: rows 0 and 2 are the first mini-batch, row 1, the longest, the second."""
    batch = collate([[1], [2], [3]], [[4], [5, 6, 7], [8, 9]], [0, 1, 0])
    batch.rewards = torch.zeros(3, 3)
    actor, reference = Model(1.0), Model(0.5)
    models = Models(actor, None, reference, ModelShape(1, 1, 1, vocabulary=3))
    kl_type = lambda policy, ref: (policy - ref)[..., 0] - (policy - ref)[..., 1]  # noqa: E731
    given = ReferenceLogProbs(reference, 3, temperature=1.0, most=4.0)
    kl_penalty = KLPenalty(kl_type, Controller(), 1.0, models, given, mini_batch_size=1)
    kl_penalty.subtract(batch)
    wanted = torch.tensor([[-2.0, 0.0, 0.0], [-2.5, -3.0, -3.5], [-4.0, -4.5, 0.0]])
    torch.testing.assert_close(batch.rewards, wanted)
    assert actor.asked == reference.asked == [(rows, TOKENS) for rows in (2, 1)]
    assert batch.columns == {}
