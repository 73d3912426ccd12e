"""Checkpoints by ``torch.distributed.checkpoint``: each rank writes its shares; any number of ranks reads them."""

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver

from corerl_fsdp import lora, ranks

SCHEDULE = "schedule.json"


def save(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, schedule: Any) -> None:
    """Write into a folder that all ranks see; a collective, done on all ranks when it returns on one."""
    state_dict_saver.save(_state(model, optimizer), checkpoint_id=folder)
    state = schedule.state_dict()
    ranks.on_first_rank(lambda: _write(folder / SCHEDULE, json.dumps(state)))


def load(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, schedule: Any) -> None:
    """Read what :func:`save` wrote, with any number of ranks; a collective."""
    state_dict_loader.load(_state(model, optimizer), checkpoint_id=folder)
    schedule.load_state_dict(json.loads((folder / SCHEDULE).read_text()))
    for group, lr in zip(optimizer.param_groups, schedule.get_last_lr(), strict=True):
        group["lr"] = lr


def _write(path: Path, text: str) -> None:
    path.write_text(text)


def _state(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Trained weights and the optimizer's state by name, the tensors themselves: loading fills them in place."""
    state: dict[str, Any] = {}
    for name, parameter in lora.trained(model):
        state[f"model.{name}"] = parameter.detach()
        for key, value in _of_adamw(optimizer, parameter).items():
            state[f"optimizer.{name}.{key}"] = value
    return state


def _of_adamw(optimizer: torch.optim.Optimizer, parameter: Tensor) -> dict[str, Tensor]:
    """The state of one parameter; before the first step, that of no step."""
    state: dict[str, Tensor] = optimizer.state[parameter]
    if not state:
        state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
        state["exp_avg"] = torch.zeros_like(parameter.detach())
        state["exp_avg_sq"] = torch.zeros_like(parameter.detach())
    return state
