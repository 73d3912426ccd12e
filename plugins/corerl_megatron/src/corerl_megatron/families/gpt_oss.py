"""gpt-oss: sinks and windows of attention, biases, and experts in one tensor of transformers.

Its files have each expert's matrices transposed, with gate and up projection in alternating columns.
"""

import functools
from collections.abc import Mapping
from typing import Any

from corerl_megatron.families.family import ATTENTION, NORMS, QKV_BIAS, Family, Mixture, Rule

EXPERT = (
    Rule("linear_fc1.weight", ("gate_up_proj",), "turned_pairs"),
    Rule("linear_fc1.bias", ("gate_up_proj_bias",), "turned_pairs"),
    Rule("linear_fc2.weight", ("down_proj",), "turned"),
    Rule("linear_fc2.bias", ("down_proj_bias",)),
)


ALPHA, LIMIT = 1.702, 7.0
"""of the clamped SwiGLU, for versions of transformers whose config does not name them"""


def _gate(states: Any, alpha: float) -> Any:
    return states * (alpha * states).sigmoid()


def _settings(config: Mapping[str, Any]) -> Mapping[str, Any]:
    return {
        "activation_func": functools.partial(_gate, alpha=config.get("swiglu_alpha", ALPHA)),
        "activation_func_clamp_value": config.get("swiglu_limit", LIMIT),
        "bias_activation_fusion": False,
    }


def _windows(config: Mapping[str, Any]) -> list[int | None]:
    sliding = [kind == "sliding_attention" for kind in config["layer_types"]]
    return [config["sliding_window"] if each else None for each in sliding]


FAMILY = Family(
    layer=(
        *NORMS,
        *ATTENTION,
        QKV_BIAS,
        Rule("self_attention.linear_proj.bias", ("self_attn.o_proj.bias",)),
        Rule("self_attention.core_attention.sinks", ("self_attn.sinks",), "rows"),
        Rule("mlp.router.weight", ("mlp.router.weight",)),
        Rule("mlp.router.bias", ("mlp.router.bias",)),
    ),
    expert=EXPERT,
    settings={"add_bias_linear": True, "glu_linear_offset": 1.0},
    assumes={"hidden_act": "silu", "attention_bias": True},
    of_config=_settings,
    mixture=lambda config: Mixture(
        number=int(config.get("num_local_experts") or 0), width=int(config["intermediate_size"])
    ),
    windows=_windows,
    stacked=True,
)
