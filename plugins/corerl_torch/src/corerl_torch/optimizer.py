"""The optimizer of a model, its gradients' norm, its stored state."""

import dataclasses
import math
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from corerl.contracts.config import OptimConfig
from corerl.errors import ConfigError, ModelError
from corerl.plugins import load_plugins
from corerl.registry import Registry, Selected
from corerl_torch.host_memory import moved
from corerl_torch.optimizers.adamw import adamw
from corerl_torch.optimizers.contract import KEY, OptimizerFactory, StartsState
from corerl_torch.optimizers.partly_on_cpu import PartlyOnCpu
from corerl_torch.optimizers.shares import local


def build_optimizer(model: nn.Module, config: OptimConfig) -> torch.optim.Optimizer:
    """The optimizer that ``config.optimizer`` selects; weight decay on weights with two or more dimensions only (not on
    norms and biases).

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
    factory = adamw if config.optimizer == "adamw" else selected(config.optimizer).load()
    optimizer = factory(model, groups, config)
    if any(isinstance(each, DTensor) for each in parameters) and not _is_known(optimizer):
        raise ConfigError(
            KEY, f"{type(optimizer).__name__} has no method initial_state, which checkpoints of sharded weights ask for"
        )
    return optimizer


def selected(value: Any, key: str = KEY) -> Selected[OptimizerFactory]:
    """The optimizer of a config: of an installed plugin, or ``./file.py:function``.

    Raises:
        ConfigError, UnknownNameError: as for :meth:`corerl.registry.Registry.select`.
    """
    registry: Registry[OptimizerFactory] = load_plugins().registries.optimizers
    return registry.select(value, key)


def by_mesh(tensors: Iterable[Tensor]) -> list[list[Tensor]]:
    """The tensors, apart by device mesh, that of the first one first: torch mixes no meshes in one operation."""
    found: dict[Any, list[Tensor]] = {}
    for tensor in tensors:
        found.setdefault(tensor.device_mesh if isinstance(tensor, DTensor) else None, []).append(tensor)
    return list(found.values())


def gradient_norm(parameters: Iterable[Tensor]) -> Tensor:
    """L2 norm of the gradients of the parameters, of all ranks' shares; a collective for sharded ones."""
    gradients = [each.grad for each in parameters if each.grad is not None]
    if not any(isinstance(each, DTensor) for each in gradients):
        return torch.nn.utils.get_total_norm(gradients)
    by_copies: dict[int, list[Tensor]] = {}
    for each in gradients:
        by_copies.setdefault(_copies(each), []).append(local(each))
    squares = sum(torch.nn.utils.get_total_norm(own) ** 2 / copies for copies, own in by_copies.items())
    assert isinstance(squares, Tensor)
    squares = squares.to(_device(gradients))  # gradients may be on the CPU
    dist.all_reduce(squares)  # one sum, which is the same on all ranks
    return squares.sqrt()


def _copies(gradient: Tensor) -> int:
    """The ranks, of all, that hold the same part of a gradient."""
    if not isinstance(gradient, DTensor):
        return dist.get_world_size()
    placed = zip(gradient.device_mesh.shape, gradient.placements, strict=True)
    parts: int = math.prod(size for size, each in placed if not each.is_replicate())
    return dist.get_world_size() // parts


def _device(gradients: Iterable[Tensor]) -> str:
    """Of the ranks' collectives."""
    return next(each.device_mesh.device_type for each in gradients if isinstance(each, DTensor))


def clip_gradients(parameters: Iterable[Tensor], limit: float, norm: Tensor) -> None:
    """Scale the gradients so that ``norm``, theirs, is at most ``limit``."""
    gradients = [local(each.grad) for each in parameters if each.grad is not None]
    if gradients:
        scale = (limit / (norm + 1e-6)).clamp(max=1.0)
        torch._foreach_mul_(gradients, scale.to(gradients[0].device))


def exceeds(norm: float, limit: float) -> bool:
    """Whether :func:`clip_gradients` would change a gradient: otherwise it would multiply all of them by 1."""
    return bool(limit / (torch.tensor(norm, dtype=torch.float32) + 1e-6) < 1)


def initial_state(optimizer: torch.optim.Optimizer, parameter: Tensor) -> dict[str, Tensor]:
    """The state of a weight before its first update: AdamW's, or what the optimizer says."""
    if isinstance(optimizer, StartsState):
        return optimizer.initial_state(parameter)
    step, moment = torch.zeros((), dtype=torch.float32, device=parameter.device), parameter.detach()
    return {"step": step, "exp_avg": torch.zeros_like(moment), "exp_avg_sq": torch.zeros_like(moment)}


def _is_known(optimizer: torch.optim.Optimizer) -> bool:
    """Whether :func:`initial_state` knows its state."""
    return isinstance(optimizer, torch.optim.AdamW | StartsState)


def move_state(optimizer: torch.optim.Optimizer, device: str) -> None:
    """Move the state to a device; the part that the optimizer itself keeps on the CPU stays there."""
    apart = optimizer.apart if isinstance(optimizer, PartlyOnCpu) else ()
    for parameter, state in optimizer.state.items():
        for name, value in state.items():
            if isinstance(value, Tensor) and id(parameter) not in apart:
                state[name] = moved(value, device)


def check_optimizer(folder: Path, stored: Mapping[str, Any]) -> Mapping[str, Any]:
    """``stored``, the content of a checkpoint by name, if it has the optimizer's state.

    Raises:
        ModelError: it has none.
    """
    if "optimizer" not in stored:
        raise ModelError(f"{folder}: holds no state of the optimizer; the option save_optimizer=false begins a new one")
    return stored


def set_rates(optimizer: torch.optim.Optimizer, schedule: Any) -> None:
    """Give the optimizer the learning rates of a restored schedule."""
    for group, rate in zip(optimizer.param_groups, schedule.get_last_lr(), strict=True):
        group["lr"] = rate


def restore_optimizer(optimizer: torch.optim.Optimizer, stored: Mapping[str, Any], config: OptimConfig) -> None:
    """Restore a state of ``optimizer.state_dict()``; torch itself accepts any shape, and fails in the next step.

    Hyperparameters, such as betas, are those of the present config.

    Raises:
        ValueError, TypeError, KeyError, AttributeError: the state is of other parameters or another optimizer, or is
            damaged.
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for number, values in stored["state"].items():
        starts = initial_state(optimizer, parameters[number]) if _is_known(optimizer) else {}
        check_names(values, starts)
        for name, start in starts.items():
            if values[name].shape != start.shape:
                raise ValueError(
                    f"{name} of parameter {number} has shape {list(values[name].shape)}, not {list(start.shape)}"
                )
        if "step" in values and not values["step"].ndim == 0 <= values["step"]:
            raise ValueError(f"step of parameter {number} is {values['step']!r:.100}")
    present, own = optimizer.state_dict()["param_groups"], _hyperparameters(config)
    groups = []
    for before, now in zip(stored["param_groups"], present, strict=True):
        if before["params"] != now["params"]:
            raise ValueError("a group has other parameters")
        groups.append({name: value if name in own else before.get(name, value) for name, value in now.items()})
    optimizer.load_state_dict({**stored, "param_groups": groups})


def check_names(stored: Collection[str], wanted: Collection[str]) -> None:
    """
    Raises:
        ValueError: a weight's stored values lack one of the present optimizer.
    """
    if lacking := [name for name in wanted if name not in stored]:
        raise ValueError(
            f"{lacking[0]} is missing, as in the state of another optimizer: the strategy's option "
            "load_contents=[model, extra] begins a new state"
        )


def _hyperparameters(config: OptimConfig) -> set[str]:
    """The values of a parameter group that follow from the config; others are state that the optimizer keeps there."""
    options = None if config.optimizer == "adamw" else selected(config.optimizer).options
    named = dataclasses.fields(options) if dataclasses.is_dataclass(options) else ()
    return {"params", "lr", "initial_lr", "betas", "eps", "weight_decay", *(each.name for each in named)}
