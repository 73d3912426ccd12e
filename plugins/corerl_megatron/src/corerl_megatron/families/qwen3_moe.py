"""Qwen3 with a mixture of experts in every layer: the top experts of a softmax over all."""

from corerl_megatron.families.family import ATTENTION, EXPERT, NORMS, PLAIN, QK_NORMS, ROUTER, Family

FAMILY = Family(
    layer=(*NORMS, *ATTENTION, *QK_NORMS, ROUTER),
    expert=EXPERT,
    settings={"qk_layernorm": True},
    assumes={
        **PLAIN,
        "use_sliding_window": False,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    },
)
