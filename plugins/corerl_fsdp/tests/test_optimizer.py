import math

import pytest
import torch

from corerl.contracts.config import OptimConfig
from corerl_torch.optimizer import build_optimizer
from corerl_torch.schedules import build_schedule


def rates(config, total_steps, count):
    optimizer = build_optimizer(torch.nn.Linear(2, 2), config)
    schedule = build_schedule(optimizer, config, total_steps)
    seen = []
    for _ in range(count):
        seen.append(schedule.get_last_lr()[0])
        optimizer.step()
        schedule.step()
    return seen


def test_warm_up_is_linear_and_never_zero():
    assert rates(OptimConfig(lr=1.0, lr_warmup_steps=4), 10, 6) == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0, 1.0])


def test_linear_ends_at_the_ratio():
    config = OptimConfig(lr=1.0, lr_scheduler_type="linear", min_lr_ratio=0.2)
    assert rates(config, 4, 6) == pytest.approx([1.0, 0.8, 0.6, 0.4, 0.2, 0.2])


def test_cosine_after_warm_up():
    config = OptimConfig(lr=2.0, lr_scheduler_type="cosine", lr_warmup_steps=1)
    expected = [2.0, *(1 + math.cos(math.pi * k / 4) for k in range(4)), 0.0]
    assert rates(config, 5, 6) == pytest.approx(expected, abs=1e-12)


def test_weight_decay_is_on_matrices_only():
    groups = build_optimizer(torch.nn.Linear(2, 2), OptimConfig(weight_decay=0.3)).param_groups
    assert [(group["params"][0].dim(), group["weight_decay"]) for group in groups] == [(2, 0.3), (1, 0.0)]
