from types import SimpleNamespace

import pytest
import torch

from corerl.contracts.losses import Mean
from corerl.telemetry.metrics import merge_means
from corerl.trainer.workers import PolicyWorker


def test_means_are_merged_by_their_counts_and_not_averaged():
    merged = merge_means([{"x": Mean(6.0, 3)}, {"x": Mean(1.0, 1)}], "actor")
    assert merged == {"actor/x": pytest.approx(7 / 4)}


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
