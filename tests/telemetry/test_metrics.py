from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from corerl.contracts.experience import collate
from corerl.contracts.losses import Mean
from corerl.contracts.reward_managers import RewardResult
from corerl.contracts.throughput import ModelShape, mfu, training_flops
from corerl.contracts.token_outputs import TokenOutputs
from corerl.telemetry.metrics import (
    merge_means,
    performance_metrics,
    policy_metrics,
    score_metrics,
    sequence_length_metrics,
    step_metrics,
    time_metrics,
)
from corerl.trainer.workers import PolicyWorker

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
    """Two responses of 1 and 3 tokens to prompts of 2 and 1: rows of 3 and 4 tokens, 4 of them trained."""
    batch = experience()
    batch.values = torch.tensor([[0.5, 9.0, 9.0], [-0.5, -1.0, -1.5]])
    batch.rollout_log_probs = torch.log(torch.tensor([[0.5, 1.0, 1.0], [0.25, 0.5, 0.75]]))
    batch.old_log_probs = torch.log(torch.tensor([[0.4, 1.0, 1.0], [0.25, 0.2, 0.75]]))
    results = [RewardResult(1.0, {"format": 1.0}), RewardResult(0.5)]
    metrics = step_metrics(batch, results, [False, True], max_prompt_length=2, data_parallel_size=2)
    expected = {
        "critic/score": (0.75, 1.0, 0.5),
        "critic/rewards": (0.75, 1.0, 0.5),
        "critic/advantages": ((1 - 3) / 4, 1.0, -1.0),
        "critic/returns": ((1 - 3) / 4, 1.0, -1.0),
        "critic/values": ((0.5 - 0.5 - 1.0 - 1.5) / 4, 0.5, -1.5),
        "response_length": (2.0, 3.0, 1.0),
        "prompt_length": (1.5, 2.0, 1.0),
        "global_seqlen": (3.5, 4.0, 3.0),
    }
    spreads = {
        f"{name}/{each}": value
        for name, values in expected.items()
        for each, value in zip(("mean", "max", "min"), values, strict=True)
    }
    assert metrics == pytest.approx(
        spreads
        | {
            # errors 0.5, -0.5, 0, 0.5: variance 3 / 16 - 1 / 64; returns 1, -1, -1, -1: variance 1 - 1 / 4
            "critic/vf_explained_var": 1 - (3 / 16 - 1 / 64) / (3 / 4),
            "response_length/clip_ratio": 0.5,
            "prompt_length/clip_ratio": 0.5,
            "global_seqlen/balanced_max": 4.0,
            "global_seqlen/balanced_min": 3.0,
            "global_seqlen/minmax_diff": 1.0,
            "reward/format/mean": 1.0,
            "reward/error_ratio": 0.0,
            "reward/groups_without_spread": 0.0,
            "training/rollout_probs_diff_mean": (0.1 + 0.3) / 4,
            "training/rollout_probs_diff_max": 0.3,
        },
        abs=1e-6,
    )


def test_entropy_is_a_mean_over_trained_tokens():
    entropy = torch.tensor([[1.0, 7.0, 7.0], [2.0, 3.0, 4.0]])
    assert policy_metrics(TokenOutputs(entropy=entropy), experience()) == {"actor/entropy": 10 / 4}


@pytest.mark.parametrize(("ranks", "most", "fewest"), [(1, 20, 20), (2, 11, 9), (4, 9, 0)])
def test_balanced_lengths_are_of_the_shares_that_ranks_get(ranks, most, fewest):
    """Rows of 9, 5 and 6 tokens: two ranks get 9 and 5 + 6; four get a row each, and one has none."""
    metrics = sequence_length_metrics(torch.tensor([9, 5, 6]), ranks)
    names = [f"global_seqlen/{name}" for name in ("balanced_max", "balanced_min", "minmax_diff")]
    assert [metrics[name] for name in names] == [most, fewest, most - fewest]


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
    """Four response tokens, seven in all."""
    metrics = time_metrics({"step": 2.0, "wait": 0.1, "update_actor": 0.7}, {"gen": 0.4}, experience())
    assert metrics == pytest.approx(
        {
            "timing_s/step": 2.0,
            "timing_s/wait": 0.1,
            "timing_s/update_actor": 0.7,
            "timing_background_s/gen": 0.4,
            "timing_per_token_ms/wait": 100 / 7,
            "timing_per_token_ms/update_actor": 100.0,
            "timing_per_token_ms/gen": 100.0,
        }
    )


def test_performance_by_hand():
    """Rows of 3 and 4 tokens; twice through the batch in 0.5 s on four devices of 989 TFLOP/s."""
    shape = ModelShape(1000, 2, 8, "NVIDIA H200", workers=4)
    metrics = performance_metrics({"step": 2.0, "update_actor": 0.5}, experience(), shape, passes=2)
    flops = 2 * (6 * 1000 * 7 + 6 * 2 * 8 * (9 + 16))
    assert metrics["perf/mfu/actor"] == pytest.approx(flops / 0.5 / (4 * 989e12))
    assert metrics["perf/time_per_step"] == 2.0
    assert metrics["perf/total_num_tokens"] == 7.0
    assert metrics["perf/throughput"] == 3.5
    assert "perf/mfu/actor" not in performance_metrics({"step": 2.0, "update_actor": 0.5}, experience(), SHAPE)


def test_memory_of_the_process_is_what_the_kernel_says():
    metrics = performance_metrics({"step": 1.0}, experience(), SHAPE)
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    used, peak = (int(status[name].split()[0]) / 2**20 for name in ("VmRSS", "VmHWM"))  # KiB
    assert metrics["perf/cpu_memory_used_gb"] == pytest.approx(used, rel=0.05)
    assert metrics["perf/cpu_memory_peak_gb"] == pytest.approx(peak, rel=0.05)


def test_memory_of_the_device_is_in_gib(monkeypatch):
    worker = PolicyWorker.__new__(PolicyWorker)
    worker.strategy = object()
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    assert worker.measured() == {}
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: 3 * 2**30)
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda: 5 * 2**29)
    peak = {"perf/max_memory_allocated_gb": 3.0, "perf/max_memory_reserved_gb": 2.5}
    assert worker.measured() == peak
    worker.strategy = SimpleNamespace(measured=lambda: {"weights/update_lost_in_rounding": 0.5})
    assert worker.measured() == peak | {"weights/update_lost_in_rounding": 0.5}


def test_training_flops_and_utilisation_by_hand():
    flops = training_flops(SHAPE, [3, 4])
    assert flops == 6 * 1000 * 7 + 6 * 2 * 8 * (9 + 16)
    h200 = ModelShape(1000, 2, 8, "NVIDIA H200")
    assert mfu(h200, [3, 4], 1e-9) == pytest.approx(flops / 1e-9 / 989e12)
    assert mfu(SHAPE, [3, 4], 1.0) is None
