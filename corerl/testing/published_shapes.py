"""Published models as shapes, for measurements with random weights: nothing is downloaded."""

from collections.abc import Iterator
from typing import Any

import torch

QWEN2_5: dict[str, dict[str, Any]] = {
    "qwen2.5-0.5b": {
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
    },
    "qwen2.5-1.5b": {
        "hidden_size": 1536,
        "intermediate_size": 8960,
        "num_hidden_layers": 28,
        "num_attention_heads": 12,
        "num_key_value_heads": 2,
    },
    "qwen2.5-7b": {
        "hidden_size": 3584,
        "intermediate_size": 18_944,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "vocab_size": 152_064,
        "tie_word_embeddings": False,
    },
}
SHAPES = tuple(QWEN2_5)


def published_config(shape: str, **changes: Any) -> Any:
    """A transformers config of one of ``SHAPES``, in bfloat16, with those values changed."""
    from transformers import Qwen2Config

    settings = {
        "architectures": ["Qwen2ForCausalLM"],
        "dtype": "bfloat16",
        "vocab_size": 151_936,
        "max_position_embeddings": 32768,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
        "tie_word_embeddings": True,
        "bos_token_id": 151_643,
        "eos_token_id": 151_645,
        **QWEN2_5[shape],
    }
    return Qwen2Config(**(settings | changes))


def named_shapes(config: Any) -> Iterator[tuple[str, torch.Size]]:
    """Names and shapes of a config's weights, each once; none is made."""
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    for name, parameter in model.named_parameters():
        yield name, parameter.shape
