"""Tiny models of every family."""

from transformers import LlamaConfig, Qwen2Config, Qwen3Config, Qwen3MoeConfig

CONFIGS = {"qwen2": Qwen2Config, "qwen3": Qwen3Config, "llama": LlamaConfig, "qwen3_moe": Qwen3MoeConfig}
NAMES = {"qwen2": "Qwen2", "qwen3": "Qwen3", "llama": "Llama", "qwen3_moe": "Qwen3Moe"}


def write_config(folder, kind, **changes):
    """A tiny model's config; 51 tokens do not divide by 2 or 4."""
    shape = {"vocab_size": 51, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    shape |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
    if kind == "qwen3_moe":
        shape |= {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "norm_topk_prob": True}
    CONFIGS[kind](architectures=[f"{NAMES[kind]}ForCausalLM"], **{**shape, **changes}).save_pretrained(folder)
    return folder
