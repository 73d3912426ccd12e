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
from corerl.errors import ModelError
from corerl.files import reading, reading_file
from corerl_fsdp.shard_files import ShardReader, fill
from corerl_torch import lora

PART_BYTES = 2**30
"""bytes of a sharded checkpoint that are read at a time"""

Named = Iterator[tuple[str, Tensor]]


def read_single(folder: Path, model: ModelConfig) -> Named:
    """The weights of a checkpoint of ``torch``."""
    return _merged(folder, model, _of_file(folder / "weights.safetensors"))


def read_sharded(folder: Path, model: ModelConfig) -> Named:
    """The weights of a checkpoint of ``fsdp``, from any number of ranks."""
    return _merged(folder, model, _of_shards(folder))


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


def _merged(folder: Path, model: ModelConfig, trained: Named) -> Named:
    """The trained weights, or the weights of ``model.path`` with the trained adapters merged."""
    facts = lora.read_note(folder)
    if facts is None:
        yield from trained
        return
    adapters, scale = dict(trained), lora.scale(facts)
    for name, base in _of_model(model):
        stem = name.removesuffix(".weight")
        left, right, magnitude = (
            adapters.pop(f"{stem}.lora_{part}.{lora.ADAPTER}.weight", None) for part in ("B", "A", "magnitude_vector")
        )
        if left is None:
            yield name, base
        elif right is None or not _fits(base, left, right, magnitude, is_dora=bool(facts.get("lora_dora"))):
            raise ModelError(f"{folder} has an adapter of '{stem}' that does not fit its weight in {model.path}")
        else:
            with reading(folder):
                yield name, lora.with_adapter(base, left, right, scale, magnitude)
    if adapters:
        raise ModelError(f"{folder} has the adapter '{next(iter(adapters))}', of no weight in {model.path}")


def _fits(base: Tensor, left: Tensor, right: Tensor, magnitude: Tensor | None, *, is_dora: bool) -> bool:
    if left.ndim != 2 or right.ndim != 2 or (left.shape[0], right.shape[1]) != base.shape:
        return False
    return (magnitude is not None) == is_dora and (magnitude is None or magnitude.shape == base.shape[:1])


def _of_model(model: ModelConfig) -> Named:
    files = sorted(Path(model.path).expanduser().glob("*.safetensors"))
    if not files:
        raise ModelError(f"adapters are merged into the weights of {model.path}, which has no *.safetensors")
    for file in files:
        yield from _of_file(file)
