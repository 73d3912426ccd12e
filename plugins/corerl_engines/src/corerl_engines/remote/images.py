"""Processed images of a prompt, read from their files in the engine's own process.

A request names files alone: pixels pass neither through the trainer's side nor through the socket.
"""

import functools
from typing import Any

RESERVED = ("placeholders", "source", "text")
"""tensors of a file that are no inputs of the model"""


@functools.lru_cache(4096)
def places(path: str) -> Any:
    """(n,) int64, places of an image's tokens behind the first one."""
    from safetensors import safe_open

    with safe_open(path, "pt") as file:
        return file.get_tensor("placeholders")


def features(path: str) -> "dict[str, Any]":
    """The model's inputs for an image, as tensors."""
    from safetensors import safe_open

    with safe_open(path, "pt") as file:
        return {name: file.get_tensor(name) for name in file.keys() if name not in RESERVED}  # noqa: SIM118
