"""Reads the policy's weights from a checkpoint, without ranks and with one part in memory at a time.

:class:`corerl.contracts.training_strategies.CheckpointReader` of the strategies ``torch`` and ``fsdp``.
"""

from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from corerl.contracts.config import ModelConfig
from corerl.files import reading_file
from corerl_fsdp.shard_files import ShardReader, fill
from corerl_torch import lora

PART_BYTES = 2**30
"""bytes of a sharded checkpoint that are read at a time"""

Named = Iterator[tuple[str, Tensor]]


def read_single(folder: Path, model: ModelConfig) -> Named:
    """The weights of a checkpoint of ``torch``."""
    return lora.merged_files(folder, model, _of_file(folder / "weights.safetensors"))


def read_sharded(folder: Path, model: ModelConfig) -> Named:
    """The weights of a checkpoint of ``fsdp``, from any number of ranks."""
    return lora.merged_files(folder, model, _of_shards(folder))


def _of_file(path: Path) -> Named:
    with reading_file(path), safe_open(path, "pt") as file:
        for name in file.keys():  # noqa: SIM118
            yield name, file.get_tensor(name)


def _of_shards(folder: Path) -> Named:
    stored = ShardReader(folder).read_metadata().state_dict_metadata
    part: dict[str, Tensor] = {}
    size = 0
    for name, facts in stored.items():
        if not name.startswith("model.") or not isinstance(facts, TensorStorageMetadata):
            continue
        part[name] = torch.empty(facts.size, dtype=facts.properties.dtype)
        size += part[name].numel() * part[name].element_size()
        if size >= PART_BYTES:
            yield from _filled(folder, part)
            part, size = {}, 0
    yield from _filled(folder, part)


def _filled(folder: Path, part: dict[str, Tensor]) -> Named:
    fill(part, folder, no_dist=True)
    for name in list(part):
        yield name.removeprefix("model."), part.pop(name)
