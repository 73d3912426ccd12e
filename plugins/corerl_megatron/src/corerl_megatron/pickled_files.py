"""Checks the pickles in megatron-core's distributed checkpoints before megatron-core reads them.

The metadata, and objects other than tensors, are pickles, which may name any function. The metadata may only name the
classes that describe tensors; the objects may only hold what ``torch.load(weights_only=True)`` accepts.
"""

import io
import os
import pickle
from enum import Enum
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint import filesystem, metadata
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, Metadata

from corerl.errors import ModelError
from corerl.files import open_regular, reading_file

METADATA = ".metadata"

DESCRIBING = {
    ("torch.serialization", "_get_layout"),
    ("torch", "Size"),
    ("pathlib", "PosixPath"),
    ("collections", "OrderedDict"),
    *((filesystem.__name__, name) for name in ("_StorageInfo", "_StoragePrefix")),
    *((metadata.__name__, name) for name in ("Metadata", "MetadataIndex", "StorageMeta", "TensorProperties")),
    *((metadata.__name__, name) for name in ("TensorStorageMetadata", "BytesStorageMetadata", "ChunkStorageMetadata")),
    (metadata.__name__, "_MEM_FORMAT_ENCODING"),
}


def read_metadata(folder: Path) -> Metadata:
    """The metadata, as torch's reader would read them.

    Raises:
        ModelError: they are missing, damaged, or name anything other than the classes that describe tensors.
    """
    path = folder / METADATA
    try:
        with os.fdopen(open_regular(path), "rb") as file:
            found = _Describing(file).load()
    except FileNotFoundError:
        raise ModelError(f"{folder} has no {METADATA}: it is no checkpoint of megatron-core") from None
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}") from error
    except pickle.UnpicklingError as error:
        raise ModelError(f"{path} was not read: {error}") from error
    except Exception as error:  # raised by a damaged pickle
        raise ModelError(f"{path} is damaged: {type(error).__name__}: {error}") from error
    if not isinstance(found, Metadata):
        raise ModelError(f"{path} is damaged: it holds a {type(found).__name__}")
    return found


def require_plain(folder: Path) -> None:
    """Check the metadata and every object other than tensors.

    Raises:
        ModelError: an object names code.
    """
    found = read_metadata(folder)
    for index, place in found.storage_data.items():
        if not isinstance(found.state_dict_metadata.get(index.fqn), BytesStorageMetadata):
            continue
        if Path(place.relative_path).name != place.relative_path:
            raise ModelError(f"{folder / METADATA} is damaged: '{place.relative_path}' is no file beside it")
        with reading_file(folder / place.relative_path) as path, path.open("rb") as file:
            file.seek(place.offset)
            content = file.read(place.length)
        try:
            torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
        except Exception as error:
            lines = str(error).splitlines() or [type(error).__name__]
            reason = next((line.strip() for line in lines if "GLOBAL" in line), lines[0])
            raise ModelError(f"'{index.fqn}' in {folder} was not read, because it may hold code: {reason}") from error


class _Describing(pickle.Unpickler):
    """Refuses classes that do not describe tensors."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in DESCRIBING or (module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)):
            return super().find_class(module, name)
        if (module, name) == ("builtins", "getattr"):
            return _member
        raise pickle.UnpicklingError(f"it names {module}.{name}, which describes no tensor")


def _member(kind: Any, name: str) -> Enum:
    """A member of an enumeration, as Python before 3.11.4 writes it: with ``getattr``, which is not called."""
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind[name]
    raise pickle.UnpicklingError(f"it names builtins.getattr for {kind!r:.100}, which is no enumeration")
