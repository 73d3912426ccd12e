from types import SimpleNamespace

import pytest
import torch

from corerl.contracts.experience import collate
from corerl.contracts.losses import Mean
from corerl.contracts.token_outputs import TokenOutputs
from corerl.telemetry.metrics import (
    merge_means,
    policy_metrics,
)
from corerl.trainer.workers import PolicyWorker


def experience():
    batch = collate([[1, 2], [3]], [[4], [5, 6, 7]], [0, 0], log_probs=[[-0.1], [-0.2, -0.3, -0.4]])
    batch.rewards = torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 0.5]])
    batch.advantages = batch.returns = torch.tensor([[1.0, 0.0, 0.0], [-1.0, -1.0, -1.0]])
    batch.old_log_probs = batch.rollout_log_probs.clone()
    return batch


def test_means_are_merged_by_their_counts_and_not_averaged():
    merged = merge_means([{"x": Mean(6.0, 3)}, {"x": Mean(1.0, 1)}], "actor")
    assert merged == {"actor/x": pytest.approx(7 / 4)}


def test_entropy_is_a_mean_over_trained_tokens():
    entropy = torch.tensor([[1.0, 7.0, 7.0], [2.0, 3.0, 4.0]])
    assert policy_metrics(TokenOutputs(entropy=entropy), experience()) == {"actor/entropy": 10 / 4}


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
