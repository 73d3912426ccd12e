"""Rollout correction at its thresholds and at the ends of the range of log-ratios."""

import math

import pytest
import torch

from corerl.contracts.config import RolloutCorrectionConfig
from corerl_correction.correction import correct, mismatch

LOG_2 = math.log(2)


def corrected(log_ratios, **options):
    """Of one row: old log-probs are -1, and the engine's differ by the log-ratios."""
    ratios = torch.tensor([log_ratios], dtype=torch.float64)
    return correct(ratios * 0 - 1, -1 - ratios, torch.ones_like(ratios, dtype=torch.bool), config(**options))


def config(**options):
    return RolloutCorrectionConfig(**{"rollout_is": "none", **options})


def measured(log_ratios, **options):
    ratios = torch.tensor([log_ratios], dtype=torch.float64)
    means = mismatch(0 * ratios, -ratios, torch.ones_like(ratios, dtype=torch.bool), config(**options))
    return {name: mean.value for name, mean in means.items()}


AROUND = [LOG_2 - 1e-6, -LOG_2 + 1e-6, LOG_2 + 1e-6, -LOG_2 - 1e-6]


def test_the_lower_threshold_is_the_inverse_of_the_upper_unless_it_is_given():
    _, kept = corrected(AROUND, rollout_is="token", rollout_is_mode="mask")
    assert kept.tolist() == [[True, True, False, False]]
    _, kept = corrected(AROUND, rollout_is="token", rollout_is_mode="mask", rollout_is_threshold_lower=0.4)
    assert kept.tolist() == [[True, True, False, True]]
    _, kept = corrected(AROUND, rollout_rs="token_k1")
    assert kept.tolist() == [[True, True, False, False]]
    _, kept = corrected(AROUND, rollout_rs="token_k1", rollout_rs_threshold_lower=0.4)
    assert kept.tolist() == [[True, True, False, True]]


def test_a_ratio_of_1_is_within_thresholds_of_1():
    for options in ({"rollout_is": "token", "rollout_is_mode": "mask", "rollout_is_threshold": 1.0},):
        assert corrected([0.0], **options).response_mask.all()
    assert corrected([0.0], rollout_rs="token_k1", rollout_rs_threshold=1.0).response_mask.all()
    high_and_low = measured([0.0], rollout_is_threshold=1.0)
    assert high_and_low["rollout_is_ratio_fraction_high"] == high_and_low["rollout_is_ratio_fraction_low"] == 0.0


def test_k2_and_k3_may_reach_their_threshold():
    """lr = 2 has k2 = 2."""
    assert corrected([2.0, -2.0], rollout_rs="token_k2", rollout_rs_threshold=2.0).response_mask.all()
    assert not corrected([2.001, -2.001], rollout_rs="token_k2", rollout_rs_threshold=2.0).response_mask.any()


def test_shares_outside_of_the_thresholds_are_of_the_weights_at_their_level():
    values = measured([1.0, 1.0, -1.0, 0.0], rollout_is="token")
    assert values["rollout_is_ratio_fraction_high"] == 0.5
    assert values["rollout_is_ratio_fraction_low"] == 0.25
    assert measured([1.0, 1.0, -1.0, 0.0], rollout_is="sequence")["rollout_is_ratio_fraction_high"] == 1.0
    assert measured([1.0, 1.0, -1.0, 0.0], rollout_is="geometric")["rollout_is_ratio_fraction_high"] == 0.0


@pytest.mark.parametrize("level", [None, "none", "token"])
def test_without_weights_those_of_the_tokens_are_measured(level):
    mean = (math.e + 1) / 2
    assert measured([1.0, 0.0], rollout_is=level)["rollout_is_mean"] == pytest.approx(mean)


def test_log_ratios_end_at_20():
    options = {"rollout_is_mode": "truncate", "rollout_is_threshold": 1e30}
    weights, _ = corrected([30.0, -30.0, 15.0, 0.0], rollout_is="token", **options)
    assert weights.flatten().tolist() == pytest.approx([math.exp(20), math.exp(-20), math.exp(15), 1.0])
    weights, _ = corrected([15.0, 15.0], rollout_is="sequence", **options)
    assert weights.flatten().tolist() == pytest.approx([math.exp(20)] * 2)
    weights, _ = corrected([-15.0, -15.0], rollout_is="sequence", **options)
    assert weights.flatten().tolist() == pytest.approx([math.exp(-20)] * 2)
    assert measured([8.0, 8.0])["chi2_seq"] == pytest.approx(math.exp(20) - 1)


def test_perplexities_are_means_over_responses_and_end_at_the_exponential_of_20():
    """Rows of log-probs -1 and -3, and of -30 alone: mean 2 nats and 30 nats."""
    old = torch.tensor([[-1.0, -3.0], [-30.0, 7.0]], dtype=torch.float64)
    mask = torch.tensor([[True, True], [True, False]])
    values = mismatch(old, old, mask, config())
    assert values["training_ppl"].value == pytest.approx((math.exp(2) + math.exp(20)) / 2)
    assert values["rollout_ppl"].value == pytest.approx((math.exp(2) + math.exp(20)) / 2)
    assert values["ppl_ratio"].value == 1.0


def test_without_a_level_there_are_no_weights_and_a_normal_mean_is_of_kept_tokens():
    assert corrected([1.0], rollout_is="none").weights is None
    assert corrected([1.0], rollout_is=None).weights is None
    weights, kept = corrected(
        [0.0, 0.5, 5.0], rollout_is="token", rollout_is_mode="mask", rollout_is_batch_normalize=True
    )
    mean = (1 + math.exp(0.5)) / 2
    assert kept.tolist() == [[True, True, False]]
    assert weights.flatten().tolist() == pytest.approx([1 / mean, math.exp(0.5) / mean, 0.0])


def test_a_single_weight_is_its_own_mean():
    weights, _ = corrected([0.5], rollout_is="token", rollout_is_batch_normalize=True)
    assert weights.tolist() == [[1.0]]
