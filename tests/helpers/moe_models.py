"""Tiny mixtures of experts of several families, with random weights."""

from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    DeepseekV3Config,
    Glm4MoeConfig,
    GptOssConfig,
    MiniMaxM2Config,
    MixtralConfig,
    OlmoeConfig,
    Qwen2MoeConfig,
    Qwen3MoeConfig,
)

SHAPE = {"vocab_size": 50, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
SHAPE |= {
    "num_key_value_heads": 2,
    "head_dim": 8,
    "moe_intermediate_size": 16,
    "pad_token_id": 0,
    "initializer_range": 0.3,
}
EIGHT = {"num_experts": 8, "num_experts_per_tok": 2}
LOCAL = {"num_local_experts": 8, "num_experts_per_tok": 2}
ROUTED = {"n_routed_experts": 8, "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1}
LATENT = {
    "num_key_value_heads": 4,
    "q_lora_rank": 8,
    "kv_lora_rank": 8,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
}

FAMILIES: dict[str, tuple[Any, dict[str, Any], tuple[int, ...]]] = {
    "qwen2_moe": (Qwen2MoeConfig, {**EIGHT, "shared_expert_intermediate_size": 16}, (0, 1)),
    "qwen3_moe": (Qwen3MoeConfig, {**EIGHT, "norm_topk_prob": True}, (0, 1)),
    "olmoe": (OlmoeConfig, EIGHT, (0, 1)),
    "mixtral": (MixtralConfig, LOCAL, (0, 1)),
    "gpt_oss": (GptOssConfig, LOCAL, (0, 1)),
    "minimax_m2": (MiniMaxM2Config, LOCAL, (0, 1)),
    "deepseek_v3": (DeepseekV3Config, {**ROUTED, **LATENT}, (1,)),
    "glm4_moe": (Glm4MoeConfig, ROUTED, (1,)),
}


def model_of(family: str) -> Any:
    config, changes, _ = FAMILIES[family]
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config(**{**SHAPE, **changes})).eval()
