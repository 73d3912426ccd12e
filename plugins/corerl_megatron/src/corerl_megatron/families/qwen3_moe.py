"""Qwen3 with a mixture of experts in every layer: the top experts of a softmax over all."""

from corerl_megatron.families.family import ATTENTION, EXPERT, NORMS, PLAIN, QK_NORMS, ROUTER, Family, Mixture

FAMILY = Family(
    layer=(*NORMS, *ATTENTION, *QK_NORMS, ROUTER),
    expert=EXPERT,
    settings={"qk_layernorm": True},
    mixture=lambda config: Mixture(
        number=int(config.get("num_experts") or config.get("num_local_experts") or 0),
        width=int(config.get("moe_intermediate_size") or 0),
        settings={"moe_router_pre_softmax": not config.get("norm_topk_prob")},
    ),
    assumes={
        **PLAIN,
        "use_sliding_window": False,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    },
)
