"""The parts of a checkpoint that a model takes: its weights, the optimizer's state, and the schedule.

``model`` also has the average of the weights, ``extra`` the loss scale of float16. Nothing here imports torch.
"""

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from corerl import option
from corerl.checkpoint import manifest
from corerl.contracts.config import TrainConfig
from corerl.errors import ConfigError
from corerl.files import read_text, reading
from corerl.plugins import load_plugins
from corerl.registry.parts import Parts, resolve_parts
from corerl.terminal.notices import say

Content = Literal["model", "optimizer", "extra"]

MODEL, OPTIMIZER, EXTRA = "model", "optimizer", "extra"

SINGLE, SHARDED, MEGATRON = "optimizer.pt", "metadata.json", "note.json"
"""files of strategies ``torch``, ``fsdp`` and ``megatron`` that list the parts of a checkpoint"""


@dataclass(frozen=True)
class LoadsParts:
    """Options of every strategy that writes and loads parts of a checkpoint.

    Attributes:
        written_by: names of the strategies whose files it reads.
    """

    written_by: ClassVar[str]

    save_optimizer: bool = option(
        True,
        "checkpoints hold the optimizer's state; false: about a third of the size, and a resumed run begins with a new "
        "state",
    )
    load_contents: list[Content] | None = option(
        None,
        "parts that a resumed run takes from its checkpoint: model, optimizer, extra (the schedule); with "
        "initial_checkpoint, those of it alone; null: model from initial_checkpoint, and all when the run is resumed",
    )
    initial_checkpoint: str | None = option(
        None, "checkpoint of another run (global_step_N), whose model a new run begins with in place of model.path"
    )


def of_resumed(options: LoadsParts) -> Collection[str]:
    """The parts that a resumed run takes from its checkpoint."""
    if options.load_contents is not None and options.initial_checkpoint is None:
        return options.load_contents
    return (MODEL, OPTIMIZER, EXTRA) if options.save_optimizer else (MODEL, EXTRA)


def of_initial(options: LoadsParts) -> Collection[str]:
    """The parts that a run takes from ``initial_checkpoint`` before its first step."""
    return (MODEL,) if options.load_contents is None else options.load_contents


def of_roles(parts: Parts) -> Mapping[str, tuple[str, LoadsParts]]:
    """Folder of a trained model in a checkpoint -> (key, options) of its strategy, if that loads parts."""
    keys = {"actor": ("actor.strategy", parts.strategy), "critic": ("critic.strategy", parts.critic_strategy)}
    return {
        role: (key, part.options)
        for role, (key, part) in keys.items()
        if part is not None and isinstance(part.options, LoadsParts)
    }


def initial(options: LoadsParts, role: str) -> Path | None:
    """The folder of a model in ``initial_checkpoint``; None without one."""
    return None if options.initial_checkpoint is None else Path(options.initial_checkpoint).expanduser() / role


def role_of(head: str) -> str:
    """The folder of a model with this head in checkpoints."""
    return "critic" if head == "value" else "actor"


def check_options(key: str, options: LoadsParts) -> None:
    """
    Raises:
        ConfigError: ``load_contents`` is empty, or ``initial_checkpoint`` is no checkpoint.
    """
    if options.load_contents is not None and not options.load_contents:
        raise ConfigError(f"{key}.load_contents", "is empty: name model, optimizer or extra; a new run loads nothing")
    if options.initial_checkpoint is None:
        return
    path = Path(options.initial_checkpoint).expanduser()
    if not (path / manifest.NAME).is_file():
        newest = max(path.glob("checkpoints/global_step_*"), key=lambda each: each.stat().st_mtime, default=None)
        hint = "" if newest is None else f"; the newest of this run is {newest}"
        raise ConfigError(f"{key}.initial_checkpoint", f"{path} is no checkpoint (…/checkpoints/global_step_N){hint}")


def check_initial(key: str, options: LoadsParts, role: str) -> None:
    """
    Raises:
        ConfigError: ``initial_checkpoint`` is damaged, or has no such model or part.
    """
    folder = initial(options, role)
    if folder is None:
        return
    if why := manifest.damage(folder.parent):
        raise ConfigError(f"{key}.initial_checkpoint", f"{folder.parent} is damaged: {why}")
    require(key, folder, of_initial(options), options.written_by)


def check_resumed(key: str, options: LoadsParts, folder: Path) -> None:
    """
    Raises:
        ConfigError: the folder of a model, in a checkpoint, lacks a part that the resumed run takes.
    """
    wanted = of_resumed(options)
    require(key, folder, wanted, options.written_by)
    if left := [each for each in (MODEL, OPTIMIZER, EXTRA) if each not in wanted]:
        say(f"{folder}: {' and '.join(left)} not loaded ({key})")


def check_checkpoint(checkpoint: Path, config: TrainConfig) -> None:
    """
    Raises:
        ConfigError: the checkpoint lacks a part that the run of a config takes.
    """
    plugins = load_plugins(tuple(config.plugins.load), tuple(config.plugins.disable))
    for role, (key, options) in of_roles(resolve_parts(config, plugins.registries)).items():
        check_resumed(key, options, checkpoint / role)


def require(key: str, folder: Path, wanted: Collection[str], written_by: str) -> None:
    """
    Raises:
        ConfigError: ``folder`` has no model of these strategies, or lacks a part.
    """
    readable = (folder / MEGATRON).is_file() == (written_by == "megatron")
    with reading(folder):
        found = set(_parts(folder)) if readable else set()
    if not found:
        raise ConfigError(key, f"{folder} has no model that strategy {written_by} wrote")
    for part in wanted:
        if part not in found:
            own = " (it was written with save_optimizer=false)" if part == OPTIMIZER else ""
            others = ", ".join(each for each in (MODEL, OPTIMIZER, EXTRA) if each in found)
            raise ConfigError(
                f"{key}.load_contents", f"{folder} has no {part}{own}; it has {others}: load_contents=[{others}]"
            )


def _parts(folder: Path) -> Iterator[str]:
    """The parts of a folder; of large files the names alone are read."""
    if (folder / MEGATRON).is_file():
        yield from json.loads(read_text(folder / MEGATRON)).get("parts", (MODEL, OPTIMIZER, EXTRA))
    elif (folder / SHARDED).is_file():
        yield from {name.partition(".")[0] for name in json.loads(read_text(folder / SHARDED))["tensors"]}
        if (folder / "schedule.json").is_file():
            yield EXTRA
    elif (folder / SINGLE).is_file():
        import torch

        if (folder / "weights.safetensors").is_file():
            yield MODEL
        state: dict[str, Any] = torch.load(folder / SINGLE, map_location="meta", weights_only=True, mmap=True)
        if OPTIMIZER in state:
            yield OPTIMIZER
        if "schedule" in state:
            yield EXTRA
