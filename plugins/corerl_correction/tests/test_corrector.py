"""Rollout correction in a step: what a batch and a mini-batch become, and the gradient that follows, in float64."""

import math

import pytest
import torch

from corerl.contracts.config import RolloutCorrectionConfig
from corerl.contracts.experience import Experience
from corerl.contracts.losses import LossOutput
from corerl.contracts.token_outputs import TokenOutputs
from corerl.errors import RunError
from corerl.objective import loss_weights
from corerl.objective.objectives import PolicyObjective
from corerl_correction.corrector import ImportanceCorrector

ROWS, TOKENS = 5, 4


def experience(seed: int = 0) -> Experience:
    random = torch.Generator().manual_seed(seed)
    lengths = torch.tensor([4, 3, 2, 4, 1])
    mask = torch.arange(TOKENS) < lengths[:, None]
    rollout = torch.where(mask, -torch.rand(ROWS, TOKENS, generator=random, dtype=torch.float64) - 0.5, 0.0)
    noise = torch.randn(ROWS, TOKENS, generator=random, dtype=torch.float64)
    old = torch.where(mask, rollout + 0.3 * noise, 0.0)
    batch = Experience(
        torch.zeros(ROWS, 1 + TOKENS, dtype=torch.int64), torch.ones(ROWS, dtype=torch.int64), lengths, mask, lengths
    )
    batch.rollout_log_probs, batch.old_log_probs = rollout, old
    batch.advantages = torch.where(mask, torch.randn(ROWS, 1, generator=random, dtype=torch.float64), 0.0)
    return batch


def clipped(inputs):
    """PPO's clip at 0.2, whose ratio must not be counted a second time."""
    ratio = (inputs.log_probs - inputs.old_log_probs).exp()
    a = inputs.advantages
    return LossOutput(torch.maximum(-a * ratio, -a * ratio.clamp(0.8, 1.2)))


def gradient(mini_batch: Experience, present: torch.Tensor) -> torch.Tensor:
    """By the log-probs, of the objective that the trainer's update has."""
    log_probs = present.clone().requires_grad_()
    mini_batch.loss_weights = loss_weights(mini_batch.response_mask, "token-mean", TOKENS)
    objective = PolicyObjective(clipped)
    objective(TokenOutputs(log_probs=log_probs), mini_batch).loss.backward()
    assert log_probs.grad is not None
    return log_probs.grad


def test_a_batch_is_weighted_and_masked_and_measured():
    batch = experience()
    config = RolloutCorrectionConfig(rollout_is="token", rollout_is_threshold=1.1, rollout_rs={"seq_max_k2": 0.1})
    corrector = ImportanceCorrector(config)
    correction, means = corrector.of_batch(batch, staleness=0)
    weights = corrector.weights(correction)
    kept = 0
    for row in range(ROWS):
        ratios = [float(batch.old_log_probs[row, t] - batch.rollout_log_probs[row, t]) for t in range(TOKENS)]
        ratios = ratios[: int(batch.response_lengths[row])]
        rejected = max(ratio**2 / 2 for ratio in ratios) > 0.1
        kept += 0 if rejected else len(ratios)
        expected = [0.0 if rejected else min(math.exp(ratio), 1.1) for ratio in ratios]
        assert weights[row, : len(ratios)].tolist() == pytest.approx(expected, rel=1e-12)
    assert 0 < kept < 14 and means["rejected_fraction"].value == pytest.approx(1 - kept / 14)
    assert not corrector.acts_on_mini_batches


def test_rejection_alone_gives_weights_of_one_and_zero():
    batch = experience()
    corrector = ImportanceCorrector(RolloutCorrectionConfig(rollout_is="none", rollout_rs={"token_k2": 0.02}))
    correction, _ = corrector.of_batch(batch, staleness=0)
    assert correction.weights is None
    assert torch.equal(corrector.weights(correction), correction.response_mask.float())
    assert 0 < int(correction.response_mask.sum()) < 14


def test_without_a_rule_nothing_is_weighted_but_a_disagreement_stops():
    corrector = ImportanceCorrector(RolloutCorrectionConfig(rollout_is="none"), most=0.01)
    correction, means = corrector.of_batch(experience(), staleness=0)
    with pytest.raises(RunError, match=r"max_log_prob_diff=0\.01 is the most"):
        corrector.check(means, staleness=0)
    corrector.check(means, staleness=1)
    assert corrector.weights(correction) is None and "rejected_fraction" not in means


def test_in_bypass_mode_the_batch_is_left_alone():
    corrector = ImportanceCorrector(RolloutCorrectionConfig(rollout_is="token", bypass_mode=True))
    assert corrector.of_batch(experience(), staleness=0) == (None, {})
    assert corrector.weights(None) is None and corrector.acts_on_mini_batches


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_weights_in_bypass_mode_are_the_whole_ratio_once(level):
    """The gradient is that of -w A log pi, with w between the policy just before the update and the engine."""
    batch = experience(1)
    present = batch.old_log_probs.clone()
    batch.old_log_probs = batch.rollout_log_probs.clone()  # as in bypass mode
    config = RolloutCorrectionConfig(rollout_is=level, rollout_is_threshold=1.5, bypass_mode=True)
    means = ImportanceCorrector(config).of_mini_batch(batch, present)
    expected = torch.zeros(ROWS, TOKENS, dtype=torch.float64)
    for row in range(ROWS):
        length = int(batch.response_lengths[row])
        ratios = [float(present[row, t] - batch.rollout_log_probs[row, t]) for t in range(length)]
        for t in range(length):
            w = min(math.exp(ratios[t] if level == "token" else sum(ratios)), 1.5)
            expected[row, t] = -w * float(batch.advantages[row, t]) / 14
    assert torch.allclose(gradient(batch, present), expected, rtol=1e-12, atol=1e-14)
    assert means["rejected_fraction"].value == 0 and means["log_prob_abs_diff"].value > 0


def test_rejection_in_bypass_mode_looks_at_the_present_policy_and_leaves_the_ratio_to_the_loss():
    """Kept tokens alone are in numerator and denominator, and the clip acts against the engine."""
    batch = experience(2)
    present = batch.old_log_probs.clone()
    batch.old_log_probs = batch.rollout_log_probs.clone()
    config = RolloutCorrectionConfig(
        rollout_is="none", rollout_rs={"token_k1": [0.7, 1.6], "seq_sum_k2": 0.2}, bypass_mode=True
    )
    ImportanceCorrector(config).of_mini_batch(batch, present)
    kept, expected = {}, torch.zeros(ROWS, TOKENS, dtype=torch.float64)
    for row in range(ROWS):
        length = int(batch.response_lengths[row])
        ratios = [float(present[row, t] - batch.rollout_log_probs[row, t]) for t in range(length)]
        for t in range(length):
            if 0.7 <= math.exp(ratios[t]) <= 1.6 and sum(ratio**2 / 2 for ratio in ratios) <= 0.2:
                kept[row, t] = math.exp(ratios[t])
    assert {tuple(place) for place in batch.response_mask.nonzero().tolist()} == set(kept)
    assert 2 < len(kept) < 14
    for (row, t), ratio in kept.items():
        a = float(batch.advantages[row, t])
        stopped = ratio > 1.2 if a > 0 else ratio < 0.8
        expected[row, t] = 0.0 if stopped else -a * ratio / len(kept)
    assert torch.allclose(gradient(batch, present), expected, rtol=1e-12, atol=1e-14)
