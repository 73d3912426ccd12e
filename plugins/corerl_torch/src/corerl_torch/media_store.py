"""Processed images on disk, each stored once under the digest of its content.

A batch has the digests alone. Engines and training workers read the tensors: no pixel passes through the controller.
On several machines the folder must be one that all of them see.
"""

import functools
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError

from corerl.errors import RunError
from corerl.files import atomic_path

COLUMN = "images"
"""name of the column: (N, 32) uint8, a digest at the first token that stands for an image"""

DIGEST_BYTES = 32

PLACEHOLDERS = "placeholders"
"""(n,) int64, places of an image's tokens behind the first one"""
SECONDS = "seconds"
"""(1,) float64, of a video alone: seconds between its pairs of frames"""
SOURCE = "source"
"""uint8, the image as a PNG file, for engines that process images themselves"""

VARIABLE = "CORERL_MEDIA"
"""environment variable with the folder"""

CACHED = 64
"""processed images that a process keeps in memory"""

Features = Mapping[str, NDArray[Any]]


def folder() -> Path:
    """The folder of processed images: ``CORERL_MEDIA``, or ``~/.cache/corerl/media``."""
    return Path(os.environ.get(VARIABLE) or "~/.cache/corerl/media").expanduser()


def path_of(digest: bytes) -> Path:
    """The file of a processed image."""
    name = digest.hex()
    return folder() / name[:2] / f"{name}.safetensors"


def put(digest: bytes, features: Features) -> None:
    """Store a processed image, if it is not there yet.

    Raises:
        RunError: the folder cannot be written.
    """
    from safetensors.numpy import save_file

    path = path_of(digest)
    if path.exists():
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_path(path) as temporary:
            save_file({name: np.ascontiguousarray(value) for name, value in features.items()}, temporary)
    except OSError as error:
        raise RunError(f"processed images cannot be stored in {folder()} ({VARIABLE}): {error}") from error


def get(digest: bytes) -> Features:
    """A processed image; do not change it.

    Raises:
        RunError: it is not there, or its file is damaged.
    """
    return _read(str(path_of(digest)))


@functools.lru_cache(CACHED)
def _read(path: str) -> Features:
    from safetensors.numpy import load_file

    try:
        return load_file(path)
    except FileNotFoundError as error:
        raise RunError(
            f"the processed image {path} is not there: set {VARIABLE} to a folder that all machines of the run share, "
            "and leave its files there while the run lasts"
        ) from error
    except (OSError, SafetensorError) as error:
        raise RunError(f"the processed image {path} is damaged: delete the file ({error})") from error
