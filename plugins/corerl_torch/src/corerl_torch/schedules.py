"""Learning rates: linear warm-up, then a registered shape."""

from collections.abc import Mapping
from typing import Any

import torch

from corerl.contracts.config import OptimConfig
from corerl.plugins import load_plugins
from corerl.registry import Registry, Selected
from corerl_torch.schedule_shapes import KEY, Shape


def build_schedule(
    optimizer: torch.optim.Optimizer, config: OptimConfig, total_steps: int
) -> torch.optim.lr_scheduler.LambdaLR:
    """Linear warm-up to ``lr``, then ``config.lr_scheduler_type`` down to ``min_lr_ratio · lr`` at ``total_steps``."""
    shape = selected_shape(config.lr_scheduler_type).load()
    warmup = config.lr_warmup_steps or round(config.lr_warmup_steps_ratio * total_steps)

    def factor(step: int) -> float:
        if step < warmup:
            return (step + 1) / warmup
        progress = min(1.0, (step - warmup) / max(1, total_steps - warmup))
        return config.min_lr_ratio + (1 - config.min_lr_ratio) * shape(progress)

    return torch.optim.lr_scheduler.LambdaLR(optimizer, factor)


def selected_shape(value: Any, key: str = KEY) -> Selected[Shape]:
    """The schedule of a config: of an installed plugin, or ``./file.py:function``.

    Raises:
        ConfigError, UnknownNameError: as for :meth:`corerl.registry.Registry.select`.
    """
    registry: Registry[Shape] = load_plugins().registries.schedules
    return registry.select(value, key)


def restore_schedule(schedule: torch.optim.lr_scheduler.LambdaLR, stored: Mapping[str, Any]) -> None:
    """Continue after the optimizer steps of a state of ``schedule.state_dict()``, at the rate of the present config.

    Raises:
        TypeError, KeyError, OverflowError: the state is damaged.
    """
    taken = stored["last_epoch"]
    if type(taken) is not int or taken < 0:
        raise TypeError(f"last_epoch is {taken!r:.100}")
    schedule.last_epoch, schedule._step_count = taken, taken + 1
    factors = zip(schedule.base_lrs, schedule.lr_lambdas, strict=True)
    schedule._last_lr = [rate * factor(taken) for rate, factor in factors]
