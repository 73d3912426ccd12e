"""Model families with a mapping of their weights: one file each, listed here by transformers' ``model_type``."""

from corerl_megatron.families import deepseek_v3, glm4_moe, llama, qwen2, qwen3, qwen3_moe
from corerl_megatron.families.family import Family

FAMILIES: dict[str, Family] = {
    "deepseek_v3": deepseek_v3.FAMILY,
    "glm4_moe": glm4_moe.FAMILY,
    "llama": llama.FAMILY,
    "qwen2": qwen2.FAMILY,
    "qwen3": qwen3.FAMILY,
    "qwen3_moe": qwen3_moe.FAMILY,
}
