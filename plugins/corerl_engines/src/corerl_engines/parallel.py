"""Checks that a model can be divided over several GPUs, before an engine starts."""

from typing import Any

import torch

from corerl.contracts.config import RolloutConfig
from corerl.errors import ConfigError
from corerl_engines.experts import has_experts

KEY = "rollout.tensor_model_parallel_size"
STAGES = "rollout.pipeline_model_parallel_size"
PARTS = "rollout.data_parallel_size"

VOCABULARY_PADDING = 64
"""the engines pad the vocabulary to a multiple of this"""


def check_parallel(config: Any, rollout: RolloutConfig, device: str, nodes: int = 1) -> None:
    """
    Args:
        config: transformers' config of the model.
        nodes: equally many GPUs of the engine are on each.

    Raises:
        ConfigError: the sizes do not divide the heads, the layers' widths or the vocabulary; there are more stages than
            layers; a model without experts has data parallel ranks; there are too few GPUs.
    """
    text = config.get_text_config()
    _check_tensor(text, rollout.tensor_model_parallel_size)
    stages, layers = rollout.pipeline_model_parallel_size, text.num_hidden_layers
    if stages > layers:
        raise ConfigError(STAGES, f"is {stages}, and the model has {layers} layers: set at most {layers}")
    if rollout.data_parallel_size > 1 and not has_experts(config):
        raise ConfigError(
            PARTS,
            f"is {rollout.data_parallel_size}, and the model has no experts to divide: set 1; GPUs beyond those of one "
            "engine get further engines, which divide the requests",
        )
    gpus = rollout.gpus_per_engine // nodes
    if device == "cuda" and gpus > torch.cuda.device_count():
        raise ConfigError(KEY, f"{gpus} GPUs are asked for and {torch.cuda.device_count()} are here")


def _check_tensor(text: Any, size: int) -> None:
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
