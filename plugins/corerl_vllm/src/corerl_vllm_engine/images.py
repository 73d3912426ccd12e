"""Images of prompts, which the trainer's side has processed: vLLM takes the same tokens and the same pixels.

A prompt carries the path of each image's file in the place of vLLM's hash. The engine's core reads the file beside the
model's forward passes, so pixels pass through no queue between vLLM's processes.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from corerl_engine.images import features, places
from transformers import BatchFeature
from vllm import AsyncEngineArgs
from vllm.inputs import mm_input
from vllm.multimodal import MULTIMODAL_REGISTRY
from vllm.multimodal.inputs import MultiModalKwargsItems, PlaceholderRange
from vllm.v1.engine.core import EngineCore

CACHED = 64
"""images that a core keeps in memory"""

NORMALISING = "mm_device_do_normalize"
"""argument of later releases: by default the tower normalises pixels, so that processed ones would be so twice"""


def engine_arguments() -> dict[str, Any]:
    """Arguments of this release of vLLM for pixels that are processed already."""
    return {NORMALISING: False} if hasattr(AsyncEngineArgs, NORMALISING) else {}


def prompt_with(token_ids: list[int], images: Sequence[Mapping[str, Any]]) -> Any:
    """The input of vLLM's engine.

    Args:
        images: ``path`` of each processed image, and ``start``, the place of its first token.
    """
    paths = [image["path"] for image in images]
    ranges = [_range(image["start"], places(image["path"])) for image in images]
    items = MultiModalKwargsItems({"image": [None] * len(paths)})
    return mm_input(token_ids, items, {"image": paths}, {"image": ranges})


def _range(start: int, found: torch.Tensor) -> PlaceholderRange:
    """The tokens of an image; tokens between them, such as line breaks, are no part of it."""
    length = int(found[-1]) + 1
    if length == len(found):
        return PlaceholderRange(start, length)
    mask = torch.zeros(length, dtype=torch.bool)
    mask[found] = True
    return PlaceholderRange(start, length, mask)


def read_in_core(model_config: Any) -> None:
    """Let this process, an engine's core, read the images of requests from their files."""
    plain = EngineCore.preprocess_add_request
    processor = MULTIMODAL_REGISTRY.create_processor(model_config)

    @functools.lru_cache(CACHED)
    def item(path: str) -> Any:
        read = BatchFeature(features(path))
        return MultiModalKwargsItems.from_hf_inputs(read, processor._get_mm_fields_config(read, {}))["image"][0]

    def preprocess_add_request(self: Any, request: Any) -> Any:
        for feature in request.mm_features or ():
            if feature.data is None:
                feature.data = item(feature.mm_hash)
        return plain(self, request)

    EngineCore.preprocess_add_request = preprocess_add_request
