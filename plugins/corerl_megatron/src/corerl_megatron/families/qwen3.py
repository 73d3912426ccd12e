"""Qwen3: norms on each head's query and key."""

from corerl_megatron.families.family import ATTENTION, MLP, NORMS, PLAIN, QK_NORMS, Family

FAMILY = Family(
    layer=(*NORMS, *ATTENTION, *QK_NORMS, *MLP),
    settings={"qk_layernorm": True},
    assumes={**PLAIN, "use_sliding_window": False},
)
