"""Checks that a model can be split over several GPUs, before an engine starts."""

from typing import Any

import torch

from corerl.errors import ConfigError

KEY = "rollout.tensor_model_parallel_size"

VOCABULARY_PADDING = 64
"""the engines pad the vocabulary to a multiple of this"""


def check_parallel(config: Any, size: int, device: str, nodes: int = 1) -> None:
    """
    Args:
        config: transformers' config of the model.
        size: GPUs that hold one copy of it.
        nodes: equally many of them are on each.

    Raises:
        ConfigError: ``size`` does not divide the heads, the layers' widths or the vocabulary, or there are too few
            GPUs.
    """
    if size == 1:
        return
    text = config.get_text_config()
    heads, kv_heads = text.num_attention_heads, getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    padded = -(-text.vocab_size // VOCABULARY_PADDING) * VOCABULARY_PADDING
    widths = {
        f"{heads} attention heads": heads,
        f"a hidden size of {text.hidden_size}": text.hidden_size,
        f"an intermediate size of {getattr(text, 'intermediate_size', 0)}": getattr(text, "intermediate_size", 0),
        f"a vocabulary of {text.vocab_size} (filled up to {padded})": padded,
    }
    fitting = [
        each
        for each in range(1, heads + 1)
        if all(width % each == 0 for width in widths.values()) and (kv_heads % each == 0 or each % kv_heads == 0)
    ]
    if size not in fitting:
        wrong = next((what for what, width in widths.items() if width % size), f"{kv_heads} key-value heads")
        sizes = ", ".join(map(str, fitting))
        raise ConfigError(KEY, f"the model has {wrong}, which {size} GPUs cannot share evenly: {sizes} can")
    if device == "cuda" and size // nodes > torch.cuda.device_count():
        raise ConfigError(KEY, f"{size // nodes} GPUs are asked for and {torch.cuda.device_count()} are here")
