"""GLM-4.5 to 4.7 with experts: rotation of a part of each head, and sigmoid experts."""

from corerl_megatron.families import sigmoid
from corerl_megatron.families.family import ATTENTION, EXPERT, MLP, NORMS, QK_NORMS, QKV_BIAS, Family

FAMILY = Family(
    layer=(*NORMS, *ATTENTION, QKV_BIAS, *QK_NORMS, *MLP, *sigmoid.RULES),
    expert=EXPERT,
    assumes={"hidden_act": "silu", **sigmoid.ASSUMES},
    of_config=lambda config: {
        "add_qkv_bias": bool(config.get("attention_bias")),
        "qk_layernorm": bool(config.get("use_qk_norm")),
    },
    mixture=sigmoid.mixture,
    refusal=sigmoid.refusal,
)
