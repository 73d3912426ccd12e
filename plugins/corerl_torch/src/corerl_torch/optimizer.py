"""AdamW and its learning-rate schedule."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from corerl.contracts.config import OptimConfig


def build_optimizer(model: nn.Module, config: OptimConfig) -> torch.optim.AdamW:
    """AdamW; weight decay on weights with two or more dimensions only (not on norms and biases).

    Weights of further device meshes (experts that ranks divide) have groups of their own behind these two.
    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups: list[dict[str, Any]] = []
    for alike in by_mesh(parameters) or [[]]:
        groups += [
            {"params": [p for p in alike if p.dim() >= 2], "weight_decay": config.weight_decay},
            {"params": [p for p in alike if p.dim() < 2], "weight_decay": 0.0},
        ]
    groups = groups[:2] + [group for group in groups[2:] if group["params"]]
    beta1, beta2 = config.betas
    return torch.optim.AdamW(groups, lr=config.lr, betas=(beta1, beta2), eps=config.eps, fused=True)


def by_mesh(tensors: Iterable[Tensor]) -> list[list[Tensor]]:
    """The tensors, apart by device mesh, that of the first one first: torch mixes no meshes in one operation."""
    found: dict[Any, list[Tensor]] = {}
    for tensor in tensors:
        found.setdefault(tensor.device_mesh if isinstance(tensor, DTensor) else None, []).append(tensor)
    return list(found.values())


def gradient_norm(parameters: Iterable[Tensor]) -> Tensor:
    """L2 norm of the gradients of the parameters, of all ranks' shares; those of two dimensions are on all ranks."""
    norms = [_norm(alike) for alike in by_mesh(each.grad for each in parameters if each.grad is not None)]
    return norms[0] if len(norms) == 1 else torch.stack([torch.zeros(()).to(norms[0]), *norms]).norm()


def _norm(gradients: list[Tensor]) -> Tensor:
    first = gradients[0]
    if isinstance(first, DTensor) and first.device_mesh.ndim > 1:  # in one sum, which is the same on all ranks
        squares = torch.nn.utils.get_total_norm([each.to_local() for each in gradients]) ** 2  # type: ignore[attr-defined]
        dist.all_reduce(squares)
        placed = zip(first.device_mesh.shape, first.placements, strict=True)
        return (squares / math.prod(size for size, each in placed if each.is_replicate())).sqrt()
    norm = torch.nn.utils.get_total_norm(gradients)
    return norm.full_tensor() if isinstance(norm, DTensor) else norm


def clip_gradients(parameters: Iterable[Tensor], limit: float, norm: Tensor) -> None:
    """Scale the gradients so that ``norm``, theirs, is at most ``limit``."""
    for alike in by_mesh(parameters):
        torch.nn.utils.clip_grads_with_norm_(alike, limit, norm)


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
    stored = {name: _of_groups(value, present.get(name)) for name, value in stored.items()}
    for name in ("last_epoch", "base_lrs", "_last_lr"):
        if not _is_alike(stored[name], present[name]):
            raise TypeError(f"{name} is {stored[name]!r:.100}")
    schedule.load_state_dict(
        {name: stored[name] for name in present.keys() & stored.keys() if _is_alike(stored[name], present[name])}
    )


def _of_groups(value: Any, present: Any) -> Any:
    """Values of parameter groups that are all equal, for another number of groups: meshes may have changed."""
    if not (isinstance(value, list) and isinstance(present, list) and len(value) != len(present)):
        return value
    return value[:1] * len(present) if value and value.count(value[0]) == len(value) > 1 else value


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
