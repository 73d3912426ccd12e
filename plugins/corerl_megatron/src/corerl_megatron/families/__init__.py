"""Model families with a mapping of their weights: one file each, listed here by transformers' ``model_type``."""

from corerl_megatron.families import deepseek_v3, glm4_moe, gpt_oss, llama, qwen2, qwen3, qwen3_moe
from corerl_megatron.families.family import Family

FAMILIES: dict[str, Family] = {
    "deepseek_v3": deepseek_v3.FAMILY,
    "glm4_moe": glm4_moe.FAMILY,
    "gpt_oss": gpt_oss.FAMILY,
    "llama": llama.FAMILY,
    "qwen2": qwen2.FAMILY,
    "qwen3": qwen3.FAMILY,
    "qwen3_moe": qwen3_moe.FAMILY,
}

_DELTA_NET = (
    "megatron-core's gated delta net needs flash-linear-attention and, for its input, Transformer Engine's linear "
    "layer with a norm"
)
MISSING: dict[str, str] = dict.fromkeys(("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"), _DELTA_NET)
"""model_type → the part of megatron-core that it would need"""
