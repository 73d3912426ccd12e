import pytest
import torch

from corerl.batch.experience import collate
from corerl.registry.losses import Mean
from corerl.registry.reward_managers import RewardResult
from corerl.telemetry.metrics import merge_means, performance_metrics, score_metrics, step_metrics
from corerl.telemetry.throughput import ModelShape, mfu, training_flops

SHAPE = ModelShape(parameters=1000, layers=2, hidden_size=8)


def experience():
    batch = collate([[1, 2], [3]], [[4], [5, 6, 7]], [0, 0], log_probs=[[-0.1], [-0.2, -0.3, -0.4]])
    batch.rewards = torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 0.5]])
    batch.advantages = batch.returns = torch.tensor([[1.0, 0.0, 0.0], [-1.0, -1.0, -1.0]])
    batch.old_log_probs = batch.rollout_log_probs.clone()
    return batch


def test_means_are_merged_by_their_counts_and_not_averaged():
    merged = merge_means([{"x": Mean(6.0, 3)}, {"x": Mean(1.0, 1)}], "actor")
    assert merged == {"actor/x": pytest.approx(7 / 4)}


def test_step_metrics_by_hand():
    results = [RewardResult(1.0, {"format": 1.0}), RewardResult(0.5)]
    metrics = step_metrics(experience(), results, [False, True], max_prompt_length=2)
    expected = {
        "critic/score/mean": 0.75,
        "critic/score/max": 1.0,
        "critic/rewards/min": 0.5,
        "critic/advantages/mean": (1 - 3) / 4,
        "response_length/mean": 2.0,
        "response_length/clip_ratio": 0.5,
        "prompt_length/max": 2.0,
        "prompt_length/clip_ratio": 0.5,
        "global_seqlen/mean": 3.5,
        "global_seqlen/balanced_max": 7.0,
        "global_seqlen/minmax_diff": 0.0,
        "reward/format/mean": 1.0,
        "reward/error_ratio": 0.0,
        "training/rollout_probs_diff_max": 0.0,
    }
    assert {name: metrics[name] for name in expected} == pytest.approx(expected)


def test_failed_samples_are_counted_by_kind():
    failures = [RewardResult(None, error="x", error_kind=kind) for kind in ("timeout", "crash", "timeout", None)]
    metrics = score_metrics([*failures, *[RewardResult(1.0)] * 4])
    assert {name: value for name, value in metrics.items() if "errors" in name} == {
        "reward/errors/crash/count": 1.0,
        "reward/errors/crash/rate": 0.125,
        "reward/errors/other/count": 1.0,
        "reward/errors/other/rate": 0.125,
        "reward/errors/timeout/count": 2.0,
        "reward/errors/timeout/rate": 0.25,
    }


def test_failed_samples_are_in_no_score_and_are_counted():
    metrics = step_metrics(experience(), [RewardResult(1.0), RewardResult(None, error="x")], [False, False], 9)
    assert (metrics["critic/score/mean"], metrics["reward/error_ratio"]) == (1.0, 0.5)


def test_timings_are_per_token_of_what_the_part_works_on():
    metrics = performance_metrics({"step": 2.0, "gen": 0.4, "update_actor": 0.7}, experience(), SHAPE)
    assert metrics["timing_per_token_ms/gen"] == pytest.approx(1000 * 0.4 / 4)  # four response tokens
    assert metrics["timing_per_token_ms/update_actor"] == pytest.approx(1000 * 0.7 / 7)  # seven in all
    assert metrics["perf/throughput"] == pytest.approx(7 / 2)
    assert "perf/mfu/actor" not in metrics


def test_training_flops_and_utilisation_by_hand():
    flops = training_flops(SHAPE, [3, 4])
    assert flops == 6 * 1000 * 7 + 6 * 2 * 8 * (9 + 16)
    h200 = ModelShape(1000, 2, 8, "NVIDIA H200")
    assert mfu(h200, [3, 4], 1e-9) == pytest.approx(flops / 1e-9 / 989e12)
    assert mfu(SHAPE, [3, 4], 1.0) is None
