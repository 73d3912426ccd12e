"""Files of ``torch.distributed.checkpoint`` with their metadata as JSON.

torch pickles its metadata, and reading a pickle runs code named in the pickle. A checkpoint of strategy ``fsdp`` has
``metadata.json`` instead: name, dtype and size of each tensor, and the position of each chunk in a file. Chunks are
read with ``weights_only``. Anything other than tensors is refused.
"""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint import state_dict_loader
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, _StorageInfo
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from corerl.errors import ModelError, RequestError
from corerl.files import atomic_path, read_text, reading_file
from corerl_torch.distributed_writer import DistributedWriter

FILE = "metadata.json"


def fill(state: dict[str, Tensor], folder: Path, *, no_dist: bool = False) -> None:
    """Read tensors into the tensors of ``state``, by name; a collective unless ``no_dist``.

    Raises:
        ModelError: a file is missing, damaged or holds anything other than tensors, or a tensor has another size.
    """
    ShardReader(folder).read_metadata()  # otherwise torch searches a rank's metadata, with two tracebacks
    try:
        state_dict_loader.load(state, storage_reader=ShardReader(folder), no_dist=no_dist)
    except CheckpointException as error:  # a BaseException
        first: BaseException = next(iter(error.failures.values()))[0]
        if isinstance(first, ModelError):
            raise first from error
        reason = f"{type(first).__name__}: {first}"
        raise ModelError(f"{folder} cannot be read: {reason.splitlines()[0]}") from error


class ShardWriter(DistributedWriter):
    """torch's writer, with ``metadata.json``."""

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Write the metadata; called on rank 0 only, after all ranks have written."""
        places = {result.index: result.storage_data for of_rank in results for result in of_rank}
        tensors: dict[str, Any] = {}
        for name, facts in metadata.state_dict_metadata.items():
            if not isinstance(facts, TensorStorageMetadata):
                raise TypeError(f"{name} is no tensor")
            chunks = []
            for chunk in facts.chunks:
                place = places[MetadataIndex(name, chunk.offsets)]
                chunks.append(
                    {
                        "offsets": list(chunk.offsets),
                        "sizes": list(chunk.sizes),
                        "file": place.relative_path,
                        "start": place.offset,
                        "bytes": place.length,
                    }
                )
            dtype = str(facts.properties.dtype).removeprefix("torch.")
            tensors[name] = {"dtype": dtype, "size": list(facts.size), "chunks": chunks}
        with atomic_path(Path(self.path) / FILE) as temporary:
            temporary.write_text(json.dumps({"tensors": tensors}))


class ShardReader(FileSystemReader):
    """torch's reader, for files of :class:`ShardWriter`."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """
        Raises:
            ModelError: ``metadata.json`` is missing or damaged.
        """
        path = Path(self.path) / FILE
        try:
            found = _parsed(json.loads(read_text(path)))
        except FileNotFoundError:
            raise ModelError(f"{path} is missing: {path.parent} has no {FILE}, as strategy 'fsdp' writes") from None
        except OSError as error:
            raise ModelError(f"{path} cannot be read: {error.strerror}") from error
        except (KeyError, TypeError, ValueError, AttributeError, RuntimeError, OverflowError) as error:
            raise ModelError(
                f"{path} is damaged: {type(error).__name__}: {' '.join(str(error).split())[:300]}"
            ) from error
        _check_room(path, found)
        return found

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """As torch's method, file by file, so that an error names the file.

        Raises:
            ModelError: a file is missing, damaged, or holds anything other than tensors.
        """
        by_file: dict[str, list[ReadItem]] = {}
        for item in plan.items:
            by_file.setdefault(self.storage_data[item.storage_index].relative_path, []).append(item)
        for name, items in by_file.items():
            try:
                with reading_file(Path(self.path) / name):
                    super().read_data(replace(plan, items=items), planner)
            except RequestError as error:
                raise ModelError(str(error)) from error
        done: Future[None] = Future()
        done.set_result(None)
        return done


def _check_room(path: Path, found: Metadata) -> None:
    """Refuse tensors larger than their chunks before memory is allocated for them."""
    room: dict[str, int] = {}
    for index, place in found.storage_data.items():
        room[index.fqn] = room.get(index.fqn, 0) + place.length
    for name, facts in found.state_dict_metadata.items():
        assert isinstance(facts, TensorStorageMetadata)
        size = math.prod(facts.size) * facts.properties.dtype.itemsize
        if size > room.get(name, 0) or min(facts.size, default=0) < 0:
            raise ModelError(f"{path} is damaged: '{name}' has {size:,} bytes, its chunks {room.get(name, 0):,}")


def _parsed(stored: Any) -> Metadata:
    tensors: dict[str, Any] = {}
    places: dict[MetadataIndex, _StorageInfo] = {}
    for name, facts in stored["tensors"].items():
        dtype = getattr(torch, facts["dtype"])
        if not isinstance(dtype, torch.dtype):
            raise ValueError(f"'{facts['dtype']}' is no dtype")
        chunks = []
        for chunk in facts["chunks"]:
            if Path(chunk["file"]).name != chunk["file"]:
                raise ValueError(f"'{chunk['file']}' is no file beside it")
            chunks.append(ChunkStorageMetadata(torch.Size(chunk["offsets"]), torch.Size(chunk["sizes"])))
            place = _StorageInfo(chunk["file"], int(chunk["start"]), int(chunk["bytes"]))
            places[MetadataIndex(name, chunk["offsets"])] = place
        tensors[name] = TensorStorageMetadata(TensorProperties(dtype=dtype), torch.Size(facts["size"]), chunks)
    return Metadata(tensors, storage_data=places, storage_meta=StorageMeta())
