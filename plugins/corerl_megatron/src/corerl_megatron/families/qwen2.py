"""Qwen2 and Qwen2.5: biases on query, key and value."""

from corerl_megatron.families.family import ATTENTION, MLP, NORMS, QKV_BIAS, Family

FAMILY = Family(
    layer=(*NORMS, *ATTENTION, QKV_BIAS, *MLP),
    settings={"add_qkv_bias": True},
    assumes={"hidden_act": "silu", "use_sliding_window": False},
)
