"""Checkpoints of ``torch.distributed.checkpoint``: each rank writes its shares; any number of ranks can read them."""

import json
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint import state_dict_saver

from corerl.files import read_text, reading, reading_file
from corerl_fsdp.shard_files import FILE, ShardReader, ShardWriter, fill
from corerl_fsdp.token_model import stored
from corerl_torch import lora
from corerl_torch.average import PREFIX, Average, check_average
from corerl_torch.contents import EXTRA, MODEL, OPTIMIZER
from corerl_torch.optimizer import check_names, check_optimizer, initial_state, set_rates
from corerl_torch.optimizers.contract import StoresState
from corerl_torch.ranks import WritingGroups
from corerl_torch.schedules import restore_schedule

SCHEDULE = "schedule.json"


def save(
    folder: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None,
    schedule: Any,
    groups: WritingGroups,
    average: Average | None = None,
) -> Callable[[], None]:
    """Copy the state to the host; a collective.

    Args:
        optimizer: None: its state is not written.

    Returns:
        A function that writes this rank's share into a folder that all ranks see; the checkpoint is complete when all
        ranks' shares are written.
    """
    group = groups.take()
    copied = {name: tensor.to("cpu", copy=True) for name, tensor in _state(model, optimizer, average).items()}
    rates = json.dumps(schedule.state_dict())

    def write() -> None:
        with groups.used(group):
            state_dict_saver.save(copied, storage_writer=ShardWriter(folder), process_group=group)
        if dist.get_rank() == 0:
            (folder / SCHEDULE).write_text(rates)

    return write


def load(
    folder: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    schedule: Any,
    average: Average | None = None,
    *,
    parts: Collection[str] = (MODEL, OPTIMIZER, EXTRA),
) -> None:
    """Read parts of a checkpoint of :func:`save`, with any number of ranks; a collective.

    Raises:
        ModelError: a file is missing or damaged, or has no average or state of the optimizer, which is wanted.
    """
    stored = ShardReader(folder).read_metadata().state_dict_metadata
    if average is not None and MODEL in parts:
        check_average(folder, any(name.startswith(PREFIX) for name in stored))
    if OPTIMIZER in parts:
        check_optimizer(folder, {name.partition(".")[0]: True for name in stored})
    state = _state(model, optimizer if OPTIMIZER in parts else None, average)
    kept = (*((f"{MODEL}.", PREFIX) if MODEL in parts else ()), f"{OPTIMIZER}.")
    if OPTIMIZER in parts:
        with reading(folder / FILE):
            check_names(stored, [name for name in state if name.startswith(f"{OPTIMIZER}.")])
    fill({name: each for name, each in state.items() if name.startswith(kept)}, folder)
    if OPTIMIZER in parts and isinstance(optimizer, StoresState):
        for weight, parameter in lora.trained(model):
            prefix = f"{OPTIMIZER}.{weight}."
            own = {name.removeprefix(prefix): each for name, each in state.items() if name.startswith(prefix)}
            optimizer.take(parameter, own)
    if EXTRA in parts:
        with reading_file(folder / SCHEDULE) as file:
            restore_schedule(schedule, json.loads(read_text(file)))
    set_rates(optimizer, schedule)


def _state(model: nn.Module, optimizer: torch.optim.Optimizer | None, average: Average | None) -> dict[str, Any]:
    """Trained weights, the optimizer's state and the average by name: the tensors themselves, which loading fills, and
    for :class:`StoresState` copies.
    """
    state: dict[str, Any] = {}
    for name, tensor in stored(model):
        state[f"model.{name}"] = tensor.detach()
        if optimizer is not None and isinstance(tensor, nn.Parameter):
            for key, value in _of_optimizer(optimizer, tensor).items():
                state[f"optimizer.{name}.{key}"] = value
    if average is not None:
        state |= {f"{PREFIX}{name}": value for name, value in average.values.items()}
    return state


def _of_optimizer(optimizer: torch.optim.Optimizer, parameter: Tensor) -> dict[str, Tensor]:
    """The optimizer state of one parameter; before the first step, an initial state."""
    if isinstance(optimizer, StoresState):
        return optimizer.stored(parameter)
    state: dict[str, Tensor] = optimizer.state[parameter]
    if not state:
        state.update(initial_state(optimizer, parameter))
    return state
