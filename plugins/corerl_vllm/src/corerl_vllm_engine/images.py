"""Images of a prompt, which the trainer's side has processed: vLLM takes the same tokens and the same pixels."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from safetensors.torch import load_file
from transformers import BatchFeature
from vllm.inputs import mm_input
from vllm.multimodal.inputs import MultiModalKwargsItems, PlaceholderRange

PLACEHOLDERS = "placeholders"
"""tensor of an image's file: places of its tokens behind the first one"""


def prompt_with(token_ids: list[int], images: Sequence[Mapping[str, Any]], processor: Any) -> Any:
    """The input of vLLM's engine.

    Args:
        images: ``path`` of each processed image, and ``start``, the place of its first token.
        processor: vLLM's processor of the model, which knows the fields of its inputs.
    """
    stored = [load_file(image["path"]) for image in images]
    features = BatchFeature({name: _joined(stored, name) for name in stored[0] if name != PLACEHOLDERS})
    items = MultiModalKwargsItems.from_hf_inputs(features, processor._get_mm_fields_config(features, {}))
    ranges = [_range(image["start"], each[PLACEHOLDERS]) for image, each in zip(images, stored, strict=True)]
    hashes = [image["path"].rpartition("/")[2] for image in images]
    return mm_input(token_ids, items, {"image": hashes}, {"image": ranges})


def _joined(stored: Sequence[Mapping[str, torch.Tensor]], name: str) -> torch.Tensor:
    return torch.cat([each[name] for each in stored])


def _range(start: int, places: torch.Tensor) -> PlaceholderRange:
    """The tokens of an image; tokens between them, such as line breaks, are no part of it."""
    length = int(places[-1]) + 1
    if length == len(places):
        return PlaceholderRange(start, length)
    mask = torch.zeros(length, dtype=torch.bool)
    mask[places] = True
    return PlaceholderRange(start, length, mask)
