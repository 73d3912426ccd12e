"""Conversion of weights by the package mbridge, instead of this plugin's tables.

mbridge names parameters like megatron-core's layers with Transformer Engine, in which a norm belongs to the following
matrix. Without Transformer Engine norms are separate layers; their names are added to mbridge's tables here.
"""

import contextlib
import importlib
from typing import Any

import torch
from transformers import GenerationConfig

from corerl.contracts.config import ModelConfig
from corerl.errors import ConfigError, ModelError
from corerl_torch import ranks

LAYER = "model.layers.{layer_number}"

NORMS = {
    "_OTHER_MAPPING": {"input_layernorm.weight": [f"{LAYER}.input_layernorm.weight"]},
    "_MLP_MAPPING": {"pre_mlp_layernorm.weight": [f"{LAYER}.post_attention_layernorm.weight"]},
}
"""table of mbridge → missing names; in the second table mbridge looks up all names with "mlp" in them"""


def open_bridge(key: str, model: ModelConfig, dtype: torch.dtype) -> Any:
    """mbridge's bridge for a model, in a process with parallel groups.

    Raises:
        ConfigError: mbridge does not know the family.
    """
    mbridge: Any = importlib.import_module("mbridge")
    try:
        bridge = mbridge.AutoBridge.from_pretrained(model.path, trust_remote_code=model.trust_remote_code, dtype=dtype)
    except ValueError as error:
        raise ConfigError(f"{key}.use_mbridge", f"mbridge does not support the model: {error}") from error
    names = dict(bridge._DIRECT_MAPPING)
    type(bridge)._DIRECT_MAPPING["output_layer.weight"] = (
        "lm_head.weight"  # a tied model changes it for all later models
    )
    bridge._DIRECT_MAPPING = names
    for table, more in NORMS.items():
        setattr(bridge, table, {**getattr(bridge, table), **more})
    return bridge


def load(bridge: Any, pieces: list[Any], model: ModelConfig, meta: Any) -> None:
    """Read a model's files into the pieces, on all ranks; ``meta``, the model without storage, gets the other tensors.

    Raises:
        ModelError: on all ranks, if a weight is missing.
    """

    def look() -> None:
        try:
            there = set(bridge._get_safetensor_io(model.path).load_hf_weight_names())
        except (OSError, ValueError) as error:
            raise ModelError(f"model.path: mbridge cannot read {model.path}: {error}") from error
        missing = [name for name, _ in meta.named_parameters() if name not in there]
        if missing:
            raise ModelError(f"model.path: mbridge finds no {missing[0]} in the safetensors files of {model.path}")

    ranks.on_first_rank(look, ModelError)
    bridge.load_weights(pieces, model.path)
    with contextlib.suppress(OSError):  # a model may have none
        meta.generation_config = GenerationConfig.from_pretrained(model.path)
