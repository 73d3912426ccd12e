"""Images of prompts, which the trainer's side has processed: SGLang takes the same tokens and the same pixels."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from corerl_engine.images import features, places


def processor_output(token_ids: Sequence[int], images: Sequence[Mapping[str, Any]], placeholder: int) -> dict[str, Any]:
    """All images of a prompt as one item of SGLang's ``image_data``: SGLang processes nothing.

    Args:
        images: ``path`` of each processed image, and ``start``, the place of its first token.
        placeholder: id of the tokens that stand for images.

    Raises:
        ValueError: a token of the policy stands for an image: SGLang finds positions by ids.
    """
    stored = [features(image["path"]) for image in images]
    found = [image["start"] + places(image["path"]) for image in images]
    if sum(map(len, found)) != list(token_ids).count(placeholder):
        raise ValueError(f"a prompt with images has a sampled token {placeholder}, which stands for an image in SGLang")
    joined = {name: torch.cat([each[name] for each in stored]) for name in stored[0]}
    return {"format": "processor_output", **joined, "offsets": [(int(own[0]), int(own[-1])) for own in found]}
