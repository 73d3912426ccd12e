"""Learning rates: linear warm-up, then a registered shape."""

import math
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


def restore_schedule(schedule: torch.optim.lr_scheduler.LRScheduler, stored: Mapping[str, Any]) -> None:
    """Restore a state of ``schedule.state_dict()``; torch itself sets any given attribute.

    Raises:
        ValueError, TypeError, KeyError: the state belongs to another schedule, or is damaged.
    """
    present = schedule.state_dict()
    if not isinstance(stored, Mapping):
        raise TypeError(f"the schedule is {stored!r:.100}")
    stored = {name: _of_groups(value, present.get(name)) for name, value in stored.items()}
    for name in ("last_epoch", "base_lrs", "_last_lr"):
        if not is_alike(stored[name], present[name]):
            raise TypeError(f"{name} is {stored[name]!r:.100}")
    schedule.load_state_dict(
        {name: stored[name] for name in present.keys() & stored.keys() if is_alike(stored[name], present[name])}
    )


def _of_groups(value: Any, present: Any) -> Any:
    """Values of parameter groups that are all equal, for another number of groups: meshes may have changed."""
    if not (isinstance(value, list) and isinstance(present, list) and len(value) != len(present)):
        return value
    return value[:1] * len(present) if value and value.count(value[0]) == len(value) > 1 else value


def is_alike(value: Any, present: Any) -> bool:
    """Whether a stored value has the kind of the present one."""
    if isinstance(present, list | tuple):
        fits = isinstance(value, list | tuple) and len(value) == len(present)
        return fits and all(map(is_alike, value, present))
    if isinstance(present, bool) or isinstance(value, bool) or present is None:
        return type(value) is type(present)
    if isinstance(present, int | float):
        return (
            isinstance(value, int if isinstance(present, int) else int | float) and math.isfinite(value) and value >= 0
        )
    return type(value) is type(present)
