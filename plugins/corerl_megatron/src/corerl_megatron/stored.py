"""Checks the tensors of a megatron-core checkpoint, as described by its metadata, before torch reads them.

torch allocates any stated size, leaves parts without a chunk undefined, and opens any path.
"""

from collections.abc import Iterable, Mapping
from math import prod
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, TensorStorageMetadata

from corerl.errors import ModelError
from corerl.files import reading_file
from corerl_megatron.pickled_files import METADATA


def facts_of(folder: Path, metadata: Metadata) -> Mapping[str, Any]:
    """Name -> description of the stored tensors and objects.

    Raises:
        ModelError: there is no such table.
    """
    for table in (metadata.state_dict_metadata, metadata.storage_data):
        if not isinstance(table, dict):
            raise ModelError(f"{folder / METADATA} is damaged: it has a {type(table).__name__} in place of a table")
    return metadata.state_dict_metadata


def check_tensor(folder: Path, metadata: Metadata, name: str, sizes: Mapping[str, int]) -> None:
    """Refuse a tensor that is not fully in its files.

    Args:
        sizes: name of a file -> bytes (:func:`sizes_of`).

    Raises:
        ModelError: it is no tensor, its chunks do not cover it exactly once, or a chunk is outside its file.
    """
    found = metadata.state_dict_metadata[name]
    try:
        why = _wrong(found, name, metadata, sizes)
    except (AttributeError, TypeError, ValueError, OverflowError) as error:  # fields of another type
        why = str(error)
    if why:
        raise ModelError(f"{folder / METADATA} is damaged: '{name}' {' '.join(why.split())}")


def _wrong(found: Any, name: str, metadata: Metadata, sizes: Mapping[str, int]) -> str:
    if not isinstance(found, TensorStorageMetadata):
        return "is no tensor"
    if not found.properties.dtype.is_floating_point:
        return f"is of {found.properties.dtype}"
    elements = prod(found.size)
    if elements * found.properties.dtype.itemsize > sum(sizes.values()):
        return f"has size {list(found.size)}, more than all files hold"
    covered = 0
    for chunk in found.chunks:
        for offset, length, whole in zip(chunk.offsets, chunk.sizes, found.size, strict=True):
            if min(offset, length) < 0 or offset + length > whole:
                return f"has a part beyond its size {list(found.size)}"
        covered += prod(chunk.sizes)
        place = metadata.storage_data.get(MetadataIndex(name, chunk.offsets))
        if place is None:
            return "has a part that is stored nowhere"
        if place.relative_path not in sizes:
            return f"has a part in {place.relative_path!r}, which is no file beside it"
        if min(place.offset, place.length) < 0 or place.offset + place.length > sizes[place.relative_path]:
            return f"has a part beyond the end of {place.relative_path}"
    return "" if covered == elements else f"has parts of {covered:,} of its {elements:,} numbers"


def sizes_of(folder: Path, metadata: Metadata) -> dict[str, int]:
    """Name -> bytes of the files in this folder that the metadata names.

    Raises:
        RequestError: a file is missing, or no regular file.
    """
    names: Iterable[Any] = {getattr(place, "relative_path", None) for place in metadata.storage_data.values()}
    sizes = {}
    for name in names:
        if isinstance(name, str) and name not in ("", ".", "..") and Path(name).name == name:
            with reading_file(folder / name) as path:
                sizes[name] = path.stat().st_size
    return sizes


def reason_of(error: CheckpointException) -> str:
    """The first line of the error of a reader's rank."""
    raised = [failure[0] for failure in error.failures.values()]
    return (str(raised[0]) or type(raised[0]).__name__).splitlines()[0] if raised else "it cannot be read"
