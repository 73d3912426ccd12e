"""Configs of tiny models of several families, whose weights come from ``load_format: dummy``."""

import itertools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from transformers import (
    DeepseekV3Config,
    Glm4MoeConfig,
    GptOssConfig,
    LlamaConfig,
    PretrainedConfig,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
)

FAMILIES: dict[str, type[PretrainedConfig]] = {
    "qwen2": Qwen2Config,
    "qwen3": Qwen3Config,
    "llama": LlamaConfig,
    "qwen3_moe": Qwen3MoeConfig,
    "deepseek_v3": DeepseekV3Config,
    "glm4_moe": Glm4MoeConfig,
    "gpt_oss": GptOssConfig,
}

SIGMOID: dict[str, Any] = {"n_routed_experts": 8, "moe_intermediate_size": 16, "n_shared_experts": 2}
SIGMOID |= {"first_k_dense_replace": 1, "routed_scaling_factor": 1.5}
YARN: dict[str, Any] = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "mscale": 1.0, "mscale_all_dim": 0.7}
YARN |= {"original_max_position_embeddings": 32, "beta_fast": 32, "beta_slow": 1}
MORE: dict[str, dict[str, Any]] = {
    "qwen3_moe": {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "norm_topk_prob": True},
    "deepseek_v3": {
        **SIGMOID,
        "num_key_value_heads": 4,
        "num_experts_per_tok": 4,
        "n_group": 4,
        "topk_group": 2,
        "q_lora_rank": 16,
        "kv_lora_rank": 12,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 6,
        "v_head_dim": 10,
        "rope_parameters": YARN,
        "max_position_embeddings": 128,
    },
    "glm4_moe": {**SIGMOID, "num_experts_per_tok": 2, "use_qk_norm": True, "attention_bias": True},
    "gpt_oss": {
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "layer_types": ["sliding_attention", "full_attention"],
        "sliding_window": 4,
    },
}
"""beside the common shape"""


def write_config(folder: Path, family: str, **changes: Any) -> Path:
    """Write ``config.json``: two layers, 4 heads over 2 of keys and values, 51 tokens, which divide by neither 2 nor 4.

    Args:
        changes: of the config.
    """
    shape: dict[str, Any] = {"vocab_size": 51, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    shape |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
    shape |= MORE.get(family, {})
    kind = FAMILIES[family]
    architecture = kind.__name__.replace("Config", "ForCausalLM")
    kind(architectures=[architecture], **{**shape, **changes}).save_pretrained(folder)
    return folder


def model_folders(families: Iterable[str], make_folder: Callable[[str], Path]) -> dict[tuple[str, bool], str]:
    """(family, whether its embeddings are tied) → a folder with its config."""
    return {
        (family, tied): str(write_config(make_folder(family), family, tie_word_embeddings=tied))
        for family, tied in itertools.product(families, (True, False))
    }
