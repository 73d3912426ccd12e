"""Configs of tiny models of several families, whose weights come from ``load_format: dummy``."""

import itertools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from transformers import LlamaConfig, PretrainedConfig, Qwen2Config, Qwen3Config, Qwen3MoeConfig

FAMILIES: dict[str, type[PretrainedConfig]] = {
    "qwen2": Qwen2Config,
    "qwen3": Qwen3Config,
    "llama": LlamaConfig,
    "qwen3_moe": Qwen3MoeConfig,
}


def write_config(folder: Path, family: str, **changes: Any) -> Path:
    """Write ``config.json``: two layers, 4 heads over 2 of keys and values, 51 tokens, which divide by neither 2 nor 4.

    Args:
        changes: of the config.
    """
    shape: dict[str, Any] = {"vocab_size": 51, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    shape |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
    if family == "qwen3_moe":
        shape |= {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "norm_topk_prob": True}
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
