"""Reads the policy's weights from a checkpoint: :class:`corerl.contracts.training_strategies.CheckpointReader`.

megatron-core's checkpoints, written on CUDA, are torch's distributed checkpoints: one file for each writing rank, and
tensors of the whole model. A weight of all layers is one tensor, likewise a weight of all experts of all layers.
"""

import dataclasses
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Size, Tensor
from torch.distributed.checkpoint import state_dict_loader
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, Metadata, MetadataIndex
from torch.distributed.checkpoint.planner import LoadPlan
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

from corerl.contracts.config import ModelConfig
from corerl.errors import ModelError
from corerl.files import reading_file
from corerl_megatron.arithmetic import ModelFacts
from corerl_megatron.conversion import Geometry, unshard
from corerl_megatron.families import FAMILIES
from corerl_megatron.pickled_files import read_metadata
from corerl_megatron.stored import check_tensor, facts_of, reason_of, sizes_of
from corerl_megatron.table import EXPERT, LAYER, Weight, experts_together, mapped
from corerl_torch import lora
from corerl_torch.loading import load_model

FILE, PREFIX = "state.safetensors", "model."
PART_BYTES = 2**30
"""bytes of megatron-core's checkpoint that are read at a time"""

Slice = tuple[str, tuple[int, ...]]
"""the name of a stored tensor, and the first indices into it"""


def read(folder: Path, model: ModelConfig) -> Iterator[tuple[str, Tensor]]:
    """The weights of a checkpoint of ``megatron``, from a CPU or from CUDA, with adapters merged.

    Raises:
        ModelError: the checkpoint is of another model than ``model.path``.
    """
    own = _of_file(folder / FILE) if os.path.lexists(folder / FILE) else _of_shards(folder, model)
    return lora.merged_files(folder, model, own)


def _of_file(path: Path) -> Iterator[tuple[str, Tensor]]:
    with reading_file(path), safe_open(path, "pt") as file:
        for name in file.keys():  # noqa: SIM118
            if name.startswith(PREFIX):
                yield name.removeprefix(PREFIX), file.get_tensor(name)


def _of_shards(folder: Path, model: ModelConfig) -> Iterator[tuple[str, Tensor]]:
    meta = load_model(model, "lm", device="meta", dtype=torch.float32)
    facts = ModelFacts.read("model.path", meta.config.to_dict())
    named = _of_weights(folder, model, mapped(facts, meta, "lm"))
    return experts_together(named, facts.experts) if FAMILIES[facts.model_type].stacked else named


def _of_weights(
    folder: Path, model: ModelConfig, table: tuple[list[Weight], dict[str, Size], Geometry]
) -> Iterator[tuple[str, Tensor]]:
    weights, shapes, geometry = table
    metadata = read_metadata(folder)
    stored, sizes = facts_of(folder, metadata), sizes_of(folder, metadata)
    part: list[tuple[Weight, Slice, Tensor]] = []
    size = 0
    for number, weight in enumerate(weights, 1):
        key, index = place = _place(weight, stored, folder)
        check_tensor(folder, metadata, key, sizes)
        own = torch.empty(stored[key].size[len(index) :], dtype=stored[key].properties.dtype)
        part.append((weight, place, own))
        size += own.nbytes
        if size < PART_BYTES and number < len(weights):
            continue
        tensors = {each.names[0]: tensor for each, _, tensor in part}
        slices = {each.names[0]: place for each, place, _ in part}
        try:
            state_dict_loader.load(tensors, storage_reader=_Reader(folder), planner=Slices(slices), no_dist=True)
        except CheckpointException as error:
            raise ModelError(f"{folder} is damaged: {reason_of(error)}") from error
        for each, _, tensor in part:
            for name, whole in zip(each.parts, unshard(each.kind, [tensor], geometry), strict=True):
                if whole.shape != shapes[name]:
                    given, wanted = list(whole.shape), list(shapes[name])
                    raise ModelError(f"{folder}: '{name}' has shape {given}, that of {model.path} has {wanted}")
                yield name, whole
        part, size = [], 0


def _place(weight: Weight, stored: Mapping[str, Any], folder: Path) -> Slice:
    """The position of a weight: a tensor of its own, or a slice of the tensor of all experts, of all layers or both."""
    for name in weight.names:
        places: list[Slice] = [(name, ())]
        if found := EXPERT.fullmatch(name):
            stem = found[1].removesuffix("local_experts.")
            places.append((f"{stem}experts{found[3]}", (int(found[2]),)))
        for key, index in tuple(places):
            if found := LAYER.fullmatch(key):
                places.append((f"decoder.layers{found[3]}", (int(found[2]), *index)))
        for place in reversed(places):
            if place[0] in stored:
                return place
    raise ModelError(f"{folder} has no '{weight.names[0]}': it is a checkpoint of another model")


class _Reader(FileSystemReader):
    """Reads the metadata with :func:`read_metadata`."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        return read_metadata(Path(self.path))


class Slices(DefaultLoadPlanner):
    """Fills tensors with slices of stored tensors."""

    def __init__(self, slices: Mapping[str, Slice]) -> None:
        super().__init__(flatten_state_dict=False)
        self.slices = slices

    def create_local_plan(self) -> LoadPlan:
        assert self.metadata is not None
        items = []
        for name, tensor in self.state_dict.items():
            key, index = self.slices[name]
            offsets, sizes = (*index, *(0 for _ in tensor.shape)), (*(1 for _ in index), *tensor.shape)
            chunk = ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes))
            stored: Any = self.metadata.state_dict_metadata[key]
            for item in create_read_items_for_chunk_list(key, stored, [chunk]):
                items.append(dataclasses.replace(item, dest_index=MetadataIndex(name)))
        return LoadPlan(items)

    def lookup_tensor(self, index: MetadataIndex) -> Tensor:
        own: Tensor = self.state_dict[index.fqn]
        return own[(None,) * len(self.slices[index.fqn][1])]
