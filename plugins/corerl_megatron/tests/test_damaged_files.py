"""Checkpoints of megatron-core that are damaged, or that somebody made; written here as CUDA does, without ranks."""

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint import state_dict_saver
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.metadata import BytesStorageMetadata

from corerl.contracts.config import ModelConfig
from corerl.errors import CoreRLError
from corerl_megatron.arithmetic import ModelFacts
from corerl_megatron.conversion import shard
from corerl_megatron.reading import read
from corerl_megatron.table import mapped
from corerl_torch.loading import load_model
from families import write_config

SHARD = "__0_0.distcp"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ModelConfig:
    folder = write_config(tmp_path_factory.mktemp("model"), "qwen2", tie_word_embeddings=False)
    return ModelConfig(str(folder), load_format="dummy", dtype="fp32")


@pytest.fixture
def checkpoint(model: ModelConfig, tmp_path: Path) -> Path:
    loaded = load_model(model, "lm", device="cpu", dtype=torch.float32)
    weights, _, geometry = mapped(ModelFacts.read("model.path", loaded.config.to_dict()), loaded, "lm")
    true = dict(loaded.named_parameters())
    state = {
        each.names[0]: shard(each.kind, [true[name].data for name in each.parts], 0, 1, geometry) for each in weights
    }
    state_dict_saver.save(state, storage_writer=FileSystemWriter(tmp_path / "saved"), no_dist=True)
    return tmp_path / "saved"


def change(checkpoint: Path, edit: Callable[[Any], None]) -> None:
    """Edit the metadata, of the embedding for instance."""
    metadata = pickle.loads((checkpoint / ".metadata").read_bytes())
    edit(metadata)
    (checkpoint / ".metadata").write_bytes(pickle.dumps(metadata))


EMBEDDING = "embedding.word_embeddings.weight"


def beyond(metadata: Any) -> None:
    metadata.state_dict_metadata[EMBEDDING].size = torch.Size([10**12, 32])


def beyond_with_chunk(metadata: Any) -> None:
    beyond(metadata)
    metadata.state_dict_metadata[EMBEDDING].chunks[0].sizes = torch.Size([10**12, 32])


def an_object(metadata: Any) -> None:
    metadata.state_dict_metadata[EMBEDDING] = BytesStorageMetadata()


def no_places(metadata: Any) -> None:
    metadata.storage_data = {}


def no_chunks(metadata: Any) -> None:
    metadata.state_dict_metadata[EMBEDDING].chunks = []


def far_places(metadata: Any) -> None:
    for index, place in metadata.storage_data.items():
        metadata.storage_data[index] = type(place)(place.relative_path, 2**60, 2**60)


def other_folder(metadata: Any) -> None:
    for index, place in metadata.storage_data.items():
        metadata.storage_data[index] = type(place)("../theirs", place.offset, place.length)


def of_integers(metadata: Any) -> None:
    metadata.state_dict_metadata[EMBEDDING].properties.dtype = torch.int64


def no_tensors(metadata: Any) -> None:
    metadata.state_dict_metadata = 3


def test_whole_files_are_read(checkpoint: Path, model: ModelConfig) -> None:
    true = dict(load_model(model, "lm", device="cpu", dtype=torch.float32).named_parameters())
    read_ = dict(read(checkpoint, model))
    assert read_.keys() == true.keys() and all(torch.equal(read_[name], true[name]) for name in true)


@pytest.mark.parametrize(
    "edit",
    [beyond, beyond_with_chunk, an_object, no_places, no_chunks, far_places, other_folder, of_integers, no_tensors],
)
def test_metadata_that_does_not_fit_is_one_error(
    checkpoint: Path, model: ModelConfig, edit: Callable[[Any], None]
) -> None:
    (checkpoint.parent / "theirs").write_bytes((checkpoint / SHARD).read_bytes())
    change(checkpoint, edit)
    with pytest.raises(CoreRLError) as raised:
        list(read(checkpoint, model))
    assert str(checkpoint) in str(raised.value) and "\n" not in str(raised.value)


@pytest.mark.parametrize("how", ["missing", "empty", "cut", "garbage", "folder", "pipe"])
def test_a_damaged_file_of_tensors_is_one_error(checkpoint: Path, model: ModelConfig, how: str) -> None:
    file = checkpoint / SHARD
    content = file.read_bytes()
    file.unlink()
    if how == "folder":
        file.mkdir()
    elif how == "pipe":
        os.mkfifo(file)
    elif how != "missing":
        file.write_bytes({"empty": b"", "cut": content[: len(content) // 2], "garbage": bytes(len(content))}[how])
    with pytest.raises(CoreRLError) as raised:
        list(read(checkpoint, model))
    assert str(checkpoint) in str(raised.value) and "\n" not in str(raised.value)
