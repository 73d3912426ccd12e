"""AdamW and its learning-rate schedule."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from corerl.contracts.config import OptimConfig


def build_optimizer(model: nn.Module, config: OptimConfig) -> torch.optim.AdamW:
    """AdamW; weight decay on weights with two or more dimensions only (not on norms and biases)."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    beta1, beta2 = config.betas
    return torch.optim.AdamW(groups, lr=config.lr, betas=(beta1, beta2), eps=config.eps, fused=True)


def build_schedule(
    optimizer: torch.optim.Optimizer, config: OptimConfig, total_steps: int
) -> torch.optim.lr_scheduler.LambdaLR:
    """Linear warm-up to ``lr``, then constant, linear or cosine down to ``min_lr_ratio · lr`` at ``total_steps``."""

    def factor(step: int) -> float:
        if step < config.lr_warmup_steps:
            return (step + 1) / config.lr_warmup_steps
        if config.lr_scheduler_type == "constant":
            return 1.0
        progress = (step - config.lr_warmup_steps) / max(1, total_steps - config.lr_warmup_steps)
        progress = min(1.0, progress)
        shape = 1 - progress if config.lr_scheduler_type == "linear" else (1 + math.cos(math.pi * progress)) / 2
        return config.min_lr_ratio + (1 - config.min_lr_ratio) * shape

    return torch.optim.lr_scheduler.LambdaLR(optimizer, factor)


def restore_optimizer(optimizer: torch.optim.Optimizer, stored: Mapping[str, Any]) -> None:
    """Restore a state of ``optimizer.state_dict()``; torch itself accepts any shape, and fails in the next step.

    Raises:
        ValueError, TypeError, KeyError, AttributeError: the state belongs to other parameters, or is damaged.
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for number, values in stored["state"].items():
        shape = parameters[number].shape
        for name in ("exp_avg", "exp_avg_sq"):
            if values[name].shape != shape:
                raise ValueError(
                    f"{name} of parameter {number} has shape {list(values[name].shape)}, not {list(shape)}"
                )
        if not values["step"].ndim == 0 <= values["step"]:
            raise ValueError(f"step of parameter {number} is {values['step']!r:.100}")
    for group, present in zip(stored["param_groups"], optimizer.param_groups, strict=True):
        for name, value in present.items():
            if name != "params" and not _is_alike(group[name], value):
                raise TypeError(f"{name} is {group[name]!r:.100}")
    optimizer.load_state_dict(dict(stored))


def restore_schedule(schedule: torch.optim.lr_scheduler.LRScheduler, stored: Mapping[str, Any]) -> None:
    """Restore a state of ``schedule.state_dict()``; torch itself sets any given attribute.

    Raises:
        ValueError, TypeError, KeyError: the state belongs to another schedule, or is damaged.
    """
    present = schedule.state_dict()
    if not isinstance(stored, Mapping):
        raise TypeError(f"the schedule is {stored!r:.100}")
    for name in ("last_epoch", "base_lrs", "_last_lr"):
        if not _is_alike(stored[name], present[name]):
            raise TypeError(f"{name} is {stored[name]!r:.100}")
    schedule.load_state_dict(
        {name: stored[name] for name in present.keys() & stored.keys() if _is_alike(stored[name], present[name])}
    )


def _is_alike(value: Any, present: Any) -> bool:
    """Whether a stored value has the kind of the present one."""
    if isinstance(present, list | tuple):
        fits = isinstance(value, list | tuple) and len(value) == len(present)
        return fits and all(map(_is_alike, value, present))
    if isinstance(present, bool) or isinstance(value, bool) or present is None:
        return type(value) is type(present)
    if isinstance(present, int | float):
        return (
            isinstance(value, int if isinstance(present, int) else int | float) and math.isfinite(value) and value >= 0
        )
    return type(value) is type(present)
