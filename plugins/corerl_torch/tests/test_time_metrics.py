from pathlib import Path

import pytest
import torch

from corerl.contracts.experience import collate
from corerl.contracts.throughput import ModelShape
from corerl_torch.throughput import mfu, training_flops
from corerl_torch.time_metrics import performance_metrics, time_metrics

SHAPE = ModelShape(parameters=1000, layers=2, hidden_size=8)


def experience():
    batch = collate([[1, 2], [3]], [[4], [5, 6, 7]], [0, 0], log_probs=[[-0.1], [-0.2, -0.3, -0.4]])
    batch.rewards = torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 0.5]])
    batch.advantages = batch.returns = torch.tensor([[1.0, 0.0, 0.0], [-1.0, -1.0, -1.0]])
    batch.old_log_probs = batch.rollout_log_probs.clone()
    return batch


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
    metrics = performance_metrics({"step": 3.0, "save": 1.0, "update_actor": 0.5}, experience(), shape, passes=2)
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


def test_training_flops_and_utilisation_by_hand():
    flops = training_flops(SHAPE, [3, 4])
    assert flops == 6 * 1000 * 7 + 6 * 2 * 8 * (9 + 16)
    h200 = ModelShape(1000, 2, 8, "NVIDIA H200")
    assert mfu(h200, [3, 4], 1e-9) == pytest.approx(flops / 1e-9 / 989e12)
    assert mfu(SHAPE, [3, 4], 1.0) is None
