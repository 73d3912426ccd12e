"""Processed images of a prompt, read from their files in the engine's own process.

A request names files alone: pixels pass neither through the trainer's side nor through the socket.
"""

import functools
import os
from typing import Any

RESERVED = ("placeholders", "source", "text")
"""tensors of a file that are no inputs of the model"""


VIDEO = "seconds"
"""tensor of a video's file alone"""


@functools.lru_cache(4096)
def places(path: str) -> Any:
    """(n,) int64, places of an image's tokens behind the first one.

    Raises:
        ValueError: there is no such file, or it is a video.
    """
    from safetensors import safe_open

    if not os.path.isfile(path):  # noqa: PTH113
        raise ValueError(f"the engine sees no processed image {path}: CORERL_MEDIA must be a folder that it shares")
    with safe_open(path, "pt") as file:
        if VIDEO in file.keys():  # noqa: SIM118
            raise ValueError("a prompt has a video, and this engine reads images alone: use rollout.name=hf")
        return file.get_tensor("placeholders")


def features(path: str) -> "dict[str, Any]":
    """The model's inputs for an image, as tensors."""
    from safetensors import safe_open

    with safe_open(path, "pt") as file:
        return {name: file.get_tensor(name) for name in file.keys() if name not in RESERVED}  # noqa: SIM118
