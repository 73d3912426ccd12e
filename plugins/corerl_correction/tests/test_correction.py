"""Weights, rejection and mismatch, against plain Python loops in float64."""

import itertools
import json
import math
import re

import numpy as np
import pytest
import torch

from corerl.cli.common import load_train_config
from corerl.contracts.config import AlgorithmConfig, ModelConfig, RolloutCorrectionConfig, TrainConfig
from corerl.contracts.losses import Mean
from corerl.errors import ConfigError, RunError
from corerl.telemetry.metrics import merge_means
from corerl_correction.correction import check_agreement, correct, largest_difference, mismatch, resolve_level
from corerl_correction.rules import violations

LEVELS = ("token", "sequence", "geometric")
MODES = ("truncate", "mask", "clip")
STATISTICS = tuple(f"{by}_k{k}" for by in ("token", "seq_sum", "seq_mean", "seq_max") for k in (1, 2, 3))


def case(seed=0, rows=6, tokens=5):
    generator = np.random.default_rng(seed)
    old = torch.from_numpy(-generator.exponential(1.0, (rows, tokens)))
    rollout = old + torch.from_numpy(generator.normal(0.0, 0.6, (rows, tokens)))
    mask = torch.from_numpy(generator.random((rows, tokens)) < 0.7)
    mask[0] = False
    return old, rollout, mask


def log_ratios(old, rollout, mask, row):
    return {t: float(old[row, t] - rollout[row, t]) for t in range(mask.shape[1]) if mask[row, t]}


def weight(ratios, t, level):
    if level == "token":
        return math.exp(ratios[t])
    total = sum(ratios.values())
    return math.exp(total if level == "sequence" else total / len(ratios))


@pytest.mark.parametrize(("level", "mode"), list(itertools.product(LEVELS, MODES)))
def test_every_level_and_mode(level, mode):
    old, rollout, mask = case()
    config = RolloutCorrectionConfig(
        rollout_is=level, rollout_is_mode=mode, rollout_is_threshold=1.5, rollout_is_threshold_lower=0.7
    )
    weights, kept = correct(old, rollout, mask, config)
    seen = set()
    for row in range(len(mask)):
        ratios = log_ratios(old, rollout, mask, row)
        for t in range(mask.shape[1]):
            if t not in ratios:
                assert (weights[row, t], kept[row, t]) == (0, False)
                continue
            w = weight(ratios, t, level)
            inside = 0.7 <= w <= 1.5
            seen.add(inside)
            expected = {"truncate": min(w, 1.5), "clip": min(max(w, 0.7), 1.5), "mask": w if inside else 0.0}[mode]
            assert float(weights[row, t]) == pytest.approx(expected, rel=1e-12)
            assert bool(kept[row, t]) == (inside or mode != "mask")
    assert seen == {True, False}


def rejection_values(old, rollout, mask, statistic):
    """(row, t) -> the number that is compared with the threshold."""
    reduction, _, name = statistic.rpartition("_")
    values = {}
    for row in range(len(mask)):
        ratios = log_ratios(old, rollout, mask, row)
        k = {t: {"k1": -r, "k2": r * r / 2, "k3": math.exp(r) - 1 - r}[name] for t, r in ratios.items()}
        for t in k:
            values[row, t] = {
                "token": k[t],
                "seq_sum": sum(k.values()),
                "seq_mean": sum(k.values()) / len(k),
                "seq_max": max(k.values(), key=abs),
            }[reduction]
    return values


@pytest.mark.parametrize("statistic", STATISTICS)
def test_every_rejection(statistic):
    old, rollout, mask = case(1)
    values = rejection_values(old, rollout, mask, statistic)
    middle = sorted(map(abs, values.values()))[len(values) // 2] * 1.001
    ratios = statistic.endswith("k1")
    threshold = math.exp(middle) if ratios else middle
    config = RolloutCorrectionConfig(rollout_rs=statistic, rollout_rs_threshold=threshold)
    weights, kept = correct(old, rollout, mask, config)
    assert weights is None
    expected = {place for place, value in values.items() if (abs(value) if ratios else value) <= middle}
    assert {tuple(place) for place in kept.nonzero().tolist()} == expected
    assert 0 < len(expected) < len(values)


def test_normalised_weights_have_a_mean_of_one_over_the_kept_tokens():
    old, rollout, mask = case(2)
    config = RolloutCorrectionConfig(rollout_is="token", rollout_is_mode="mask", rollout_is_batch_normalize=True)
    weights, kept = correct(old, rollout, mask, config)
    assert float(weights[kept].mean()) == pytest.approx(1.0, rel=1e-12)


@pytest.mark.parametrize("level", ["sequence", "geometric"])
def test_normalised_weights_of_responses_have_a_mean_of_one_over_responses(level):
    old, rollout, mask = case(2)
    config = RolloutCorrectionConfig(rollout_is=level, rollout_is_threshold=1.5, rollout_is_batch_normalize=True)
    weights, kept = correct(old, rollout, mask, config)
    before = {}
    for row in range(len(mask)):
        ratios = log_ratios(old, rollout, mask, row)
        if ratios:
            before[row] = min(weight(ratios, next(iter(ratios)), level), 1.5)
    lengths = mask.sum(1)
    assert len({int(lengths[row]) for row in before}) > 1, "responses of one length show no difference"
    mean = sum(before.values()) / len(before)
    assert torch.equal(kept, mask)
    for row, value in before.items():
        assert weights[row][mask[row]].tolist() == pytest.approx([value / mean] * int(lengths[row]), rel=1e-12)


def test_a_rejected_response_has_no_part_in_the_mean_of_the_weights():
    old = torch.zeros(3, 2, dtype=torch.float64)
    rollout = torch.tensor([[-0.1, -0.1], [0.2, 0.0], [9.0, 0.0]], dtype=torch.float64)
    mask = torch.ones(3, 2, dtype=torch.bool)
    config = RolloutCorrectionConfig(rollout_is="sequence", rollout_rs="seq_max_k3", rollout_is_batch_normalize=True)
    weights, kept = correct(old, rollout, mask, config)
    first, second = math.exp(0.2), math.exp(-0.2)
    assert kept.tolist() == [[True, True], [True, True], [False, False]]
    mean = (first + second) / 2
    assert weights[:, 0].tolist() == pytest.approx([first / mean, second / mean, 0.0], rel=1e-12)


def test_a_token_is_kept_where_every_rule_keeps_it():
    old, rollout, mask = case(5, rows=12, tokens=7)
    rules = {"token_k1": [0.6, 2.5], "seq_mean_k2": 0.2, "seq_max_k3": 0.8}
    _, kept = correct(old, rollout, mask, RolloutCorrectionConfig(rollout_rs=rules))
    values = {name: rejection_values(old, rollout, mask, name) for name in rules}
    each = {
        "token_k1": {place for place, value in values["token_k1"].items() if 0.6 <= math.exp(-value) <= 2.5},
        "seq_mean_k2": {place for place, value in values["seq_mean_k2"].items() if value <= 0.2},
        "seq_max_k3": {place for place, value in values["seq_max_k3"].items() if value <= 0.8},
    }
    expected = set.intersection(*each.values())
    assert {tuple(place) for place in kept.nonzero().tolist()} == expected
    assert 0 < len(expected) < min(map(len, each.values())), "no rule does the work of all"


def test_a_list_of_rules_shares_the_threshold():
    old, rollout, mask = case(6)
    shared = RolloutCorrectionConfig(rollout_rs=["token_k1", "token_k2"], rollout_rs_threshold=1.3)
    own = RolloutCorrectionConfig(rollout_rs={"token_k1": [1 / 1.3, 1.3], "token_k2": 1.3})
    kept = [correct(old, rollout, mask, config).response_mask for config in (shared, own)]
    assert torch.equal(*kept) and 0 < int(kept[0].sum()) < int(mask.sum())


def test_one_token_below_the_lower_ratio_rejects_its_response_by_seq_max_k1():
    rollout = torch.tensor([[0.0, 3.0, -8.0], [0.0, 0.5, -8.0]], dtype=torch.float64)
    mask = torch.tensor([[True, True, True], [True, True, False]])
    config = RolloutCorrectionConfig(rollout_rs={"seq_max_k1": [0.1, 1e9]})
    _, kept = correct(torch.zeros_like(rollout), rollout, mask, config)
    assert kept.tolist() == [[False, False, False], [True, True, False]]


def test_binary_kl_is_the_larger_of_both_directions():
    p, q = [0.9, 0.5, 0.02, 0.3], [0.6, 0.52, 0.4, 0.3]

    def divergence(a, b):
        return a * math.log(a / b) + (1 - a) * math.log((1 - a) / (1 - b))

    larger = [max(divergence(a, b), divergence(b, a)) for a, b in zip(p, q, strict=True)]
    old, rollout = (torch.tensor([values], dtype=torch.float64).log() for values in (p, q))
    mask = torch.ones(1, 4, dtype=torch.bool)
    for threshold in (larger[0] * 0.999, larger[0] * 1.001, larger[2] * 1.001):
        config = RolloutCorrectionConfig(rollout_rs="token_binary_kl", rollout_rs_threshold=threshold)
        kept = correct(old, rollout, mask, config).response_mask
        assert kept.tolist() == [[value <= threshold for value in larger]]
    certain = RolloutCorrectionConfig(rollout_rs="token_binary_kl", rollout_rs_threshold=100.0)
    zero = torch.zeros(1, 4, dtype=torch.float64)
    assert correct(zero, zero - 500, mask, certain).response_mask.all(), "probabilities of 0 and 1 give no NaN"


@pytest.mark.parametrize(
    ("rollout_rs", "message"),
    [
        ("token_k4", "must name rules among token_k1, .*, not 'token_k4'"),
        ({"token_k2": [0.5, 2]}, r"token_k2: has one bound, an upper one; only k1 has \[lower, upper\]"),
        ({"token_k1": [2, 0.5]}, "keeps ratios from 2 to 0.5, which is none"),
        ({"token_k1": -1}, r"token_k1: must be a number above 0, or \[lower, upper\], not -1"),
        ({"token_k1": "0.5_2"}, "must be a number above 0"),
        (["token_k1", 3], "must be a rule, a list of rules or a mapping of rules to thresholds"),
    ],
)
def test_a_wrong_rule_is_an_error_of_one_sentence(rollout_rs, message):
    correction = RolloutCorrectionConfig(rollout_rs=rollout_rs)
    config = TrainConfig(ModelConfig("acme"), algorithm=AlgorithmConfig(rollout_correction=correction))
    [error] = violations(config)
    assert re.search(message, str(error))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            {"rollout_is_threshold_lower": 3.0},
            "rollout_is_threshold_lower: is 3.0, which is more than rollout_is_thresho",
        ),
        (
            {"rollout_rs": {"token_k2": 0.1}, "rollout_rs_threshold": 3.0},
            "rollout_rs_threshold: has no effect: every rule of rollout_rs has a threshold",
        ),
    ],
)
def test_keys_that_do_not_fit_together_end_a_command(keys, message):
    for name in ("corerl_fsdp", "corerl_grpo", "corerl_hf", "corerl_rewards"):
        pytest.importorskip(name)
    written = ["model.path=m", "data.train_files=[t.parquet]", f"algorithm.rollout_correction={json.dumps(keys)}"]
    with pytest.raises(ConfigError, match=f"^algorithm.rollout_correction.{message}"):
        load_train_config(None, written)


def test_equal_policies_are_left_alone():
    old, _, mask = case(3)
    weights, kept = correct(old, old, mask, RolloutCorrectionConfig(rollout_is="sequence", rollout_rs="seq_max_k3"))
    assert torch.equal(kept, mask) and torch.equal(weights, mask.double())
    metrics = {name: mean.value for name, mean in mismatch(old, old, mask, RolloutCorrectionConfig()).items()}
    assert metrics["kl"] == metrics["k3_kl"] == metrics["chi2_token"] == metrics["chi2_seq"] == 0
    assert metrics["ppl_ratio"] == metrics["rollout_is_eff_sample_size"] == metrics["rollout_is_mean"] == 1


def test_mismatch_metrics_by_hand():
    old, rollout, mask = case(4)
    config = RolloutCorrectionConfig(rollout_is="sequence", rollout_is_threshold=1.2)
    metrics = {name: mean.value for name, mean in mismatch(old, rollout, mask, config).items()}
    rows = [log_ratios(old, rollout, mask, row) for row in range(1, len(mask))]
    tokens = [ratio for row in rows for ratio in row.values()]
    weights = np.array([math.exp(sum(row.values())) for row in rows])
    expected = {
        "kl": -np.mean(tokens),
        "log_prob_abs_diff": np.mean(np.abs(tokens)),
        "k3_kl": np.mean([math.exp(r) - 1 - r for r in tokens]),
        "training_ppl": np.mean([math.exp(-float(old[i][mask[i]].mean())) for i in range(1, len(mask))]),
        "rollout_ppl": np.mean([math.exp(-float(rollout[i][mask[i]].mean())) for i in range(1, len(mask))]),
        "ppl_ratio": np.mean([math.exp(-np.mean(list(row.values()))) for row in rows]),
        "chi2_token": np.mean([math.exp(r) ** 2 for r in tokens]) - 1,
        "chi2_seq": np.mean(weights**2) - 1,
        "rollout_is_mean": weights.mean(),
        "rollout_is_eff_sample_size": 1 / np.mean((weights / weights.mean()) ** 2),
        "rollout_is_ratio_fraction_high": np.mean(weights > 1.2),
        "rollout_is_ratio_fraction_low": np.mean(weights < 1 / 1.2),
    }
    assert metrics == pytest.approx(expected, rel=1e-6)


def test_far_policies_stay_finite_and_an_empty_batch_has_no_metrics():
    old, rollout = torch.tensor([[-500.0, 0.0]]), torch.tensor([[0.0, -500.0]])
    mask = torch.ones(1, 2, dtype=torch.bool)
    for level in LEVELS:
        config = RolloutCorrectionConfig(rollout_is=level, rollout_is_mode="mask", rollout_rs="seq_sum_k3")
        assert torch.isfinite(correct(old, rollout, mask, config).weights).all()
        assert all(math.isfinite(mean.value) for mean in mismatch(old, rollout, mask, config).values())
    assert mismatch(old, rollout, ~mask, RolloutCorrectionConfig()) == {}


def test_stale_responses_are_weighted_unless_the_config_says_otherwise():
    levels = {
        (level, staleness): resolve_level(RolloutCorrectionConfig(rollout_is=level), staleness).rollout_is
        for level in (None, "none", "sequence")
        for staleness in (0, 2)
    }
    assert levels == {
        (None, 0): "none",
        (None, 2): "token",
        ("none", 0): "none",
        ("none", 2): "none",
        ("sequence", 0): "sequence",
        ("sequence", 2): "sequence",
    }
    assert resolve_level(RolloutCorrectionConfig(bypass_mode=True), 2).rollout_is == "none"


def test_the_largest_difference_follows_dtype_layers_and_temperature():
    assert largest_difference(torch.bfloat16, 28, 1.0) == pytest.approx(8 * 0.0205, rel=0.02)
    assert largest_difference(torch.bfloat16, 4, 1.0) == pytest.approx(0.062)
    assert largest_difference(torch.float32, 4, 2.0) == pytest.approx(0.002)
    assert largest_difference(torch.float32, 4, 0.1) == pytest.approx(0.02)
    assert largest_difference(torch.float16, 28, 1.0) == pytest.approx(0.0205, rel=0.02)
    assert largest_difference(torch.bfloat16, 28, 0.5, quantized=True) == 2.0


def test_policies_of_different_versions_may_differ():
    means = {"log_prob_abs_diff": Mean(3.0, 10)}
    check_agreement(means, staleness=1, most=0.1)
    check_agreement(means, staleness=0, most=0.4)
    with pytest.raises(RunError, match=r"differ by 0\.3 a token on average, and .*max_log_prob_diff=0\.1 is the most"):
        check_agreement(means, staleness=0, most=0.1)
    with pytest.raises(RunError, match="differ by nan"):
        check_agreement({"log_prob_abs_diff": Mean(float("nan"), 10)}, staleness=0, most=0.1)


@pytest.mark.parametrize("level", ["none", "sequence", "geometric"])
def test_measures_do_not_depend_on_the_blocks_in_which_they_are_summed(monkeypatch, level):
    generator = torch.Generator().manual_seed(3)
    old, rollout = -torch.rand(19, 11, generator=generator), -torch.rand(19, 11, generator=generator)
    mask = torch.rand(19, 11, generator=generator) < 0.6
    mask[5:9] = False
    whole = mismatch(old, rollout, mask, RolloutCorrectionConfig(rollout_is=level))
    monkeypatch.setattr("corerl_torch.blocks.ELEMENTS", 25)
    cut = mismatch(old, rollout, mask, RolloutCorrectionConfig(rollout_is=level))
    assert {name: float(mean.count) for name, mean in cut.items()} == {
        name: float(mean.count) for name, mean in whole.items()
    }
    of_parts = [
        mismatch(old[rows], rollout[rows], mask[rows], RolloutCorrectionConfig(rollout_is=level))
        for rows in (slice(0, 4), slice(4, 9), slice(9, 19))
    ]
    assert merge_means(of_parts) == pytest.approx(merge_means([whole]), rel=1e-5, abs=1e-7)
    assert {name: mean.value for name, mean in cut.items()} == pytest.approx(
        {name: mean.value for name, mean in whole.items()}, rel=1e-5, abs=1e-7
    )
