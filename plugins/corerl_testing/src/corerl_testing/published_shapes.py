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
    "qwen2.5-3b": {
        "hidden_size": 2048,
        "intermediate_size": 11_008,
        "num_hidden_layers": 36,
        "num_attention_heads": 16,
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
    "qwen2.5-14b": {
        "hidden_size": 5120,
        "intermediate_size": 13_824,
        "num_hidden_layers": 48,
        "num_attention_heads": 40,
        "num_key_value_heads": 8,
        "vocab_size": 152_064,
        "tie_word_embeddings": False,
    },
    "qwen2.5-32b": {
        "hidden_size": 5120,
        "intermediate_size": 27_648,
        "num_hidden_layers": 64,
        "num_attention_heads": 40,
        "num_key_value_heads": 8,
        "vocab_size": 152_064,
        "tie_word_embeddings": False,
    },
}
QWEN3: dict[str, dict[str, Any]] = {
    "qwen3-0.6b": {
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
    },
    "qwen3-8b": {
        "hidden_size": 4096,
        "intermediate_size": 12_288,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "tie_word_embeddings": False,
    },
}
QWEN3_MOE: dict[str, dict[str, Any]] = {
    "qwen3-30b-a3b": {
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "moe_intermediate_size": 768,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "norm_topk_prob": True,
        "num_hidden_layers": 48,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "tie_word_embeddings": False,
    },
    # layers as those of Qwen3-30B-A3B, fewer and narrower, with 8 experts for its 128: 1.3 B parameters
    "qwen3-moe-small": {
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "moe_intermediate_size": 1536,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "norm_topk_prob": True,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "tie_word_embeddings": False,
    },
}
FAMILIES = {"Qwen2": QWEN2_5, "Qwen3": QWEN3, "Qwen3Moe": QWEN3_MOE}
"""by name of the class in transformers"""
SHAPES = tuple(shape for family in FAMILIES.values() for shape in family)


def published_config(shape: str, **changes: Any) -> Any:
    """A transformers config of one of ``SHAPES``, in bfloat16, with those values changed."""
    import transformers

    [family] = [name for name, shapes in FAMILIES.items() if shape in shapes]
    settings = {
        "architectures": [f"{family}ForCausalLM"],
        "dtype": "bfloat16",
        "vocab_size": 151_936,
        "max_position_embeddings": 32768,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
        "tie_word_embeddings": True,
        "bos_token_id": 151_643,
        "eos_token_id": 151_645,
        **FAMILIES[family][shape],
    }
    return getattr(transformers, f"{family}Config")(**(settings | changes))


def named_shapes(config: Any) -> Iterator[tuple[str, torch.Size]]:
    """Names and shapes of a config's weights, each once; none is made."""
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    for name, parameter in model.named_parameters():
        yield name, parameter.shape
