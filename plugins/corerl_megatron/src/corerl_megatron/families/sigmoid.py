"""Experts chosen by sigmoid scores with a bias (DeepSeek-AI 2024, DeepSeek-V3, arXiv 2412.19437, eq. 16), with shared
experts beside them; the first layers are dense. Keys are DeepSeek's, which GLM-4-MoE has too.
"""

from collections.abc import Mapping
from typing import Any

from corerl_megatron.families.family import ROUTER, Mixture, Rule

BIAS = Rule("mlp.router.expert_bias", ("mlp.gate.e_score_correction_bias",), buffer=True)
SHARED = (
    Rule(
        "mlp.shared_experts.linear_fc1.weight",
        ("mlp.shared_experts.gate_proj.weight", "mlp.shared_experts.up_proj.weight"),
        "gate_up",
    ),
    Rule("mlp.shared_experts.linear_fc2.weight", ("mlp.shared_experts.down_proj.weight",), "columns"),
)
RULES = (ROUTER, BIAS, *SHARED)
ASSUMES = {"norm_topk_prob": True}
BEST = 2
"""experts of a group whose scores transformers adds up for the score of the group"""


def mixture(config: Mapping[str, Any]) -> Mixture | None:
    """None if all layers are dense."""
    dense, width = int(config.get("first_k_dense_replace") or 0), int(config.get("moe_intermediate_size") or 0)
    if dense >= config["num_hidden_layers"]:
        return None
    groups = int(config.get("n_group") or 1)
    return Mixture(
        number=int(config.get("n_routed_experts") or 0),
        width=width,
        dense=dense,
        shared=width * int(config.get("n_shared_experts", 1)),
        settings={
            "moe_router_score_function": "sigmoid",
            "moe_router_enable_expert_bias": True,
            "moe_router_bias_update_rate": 0.0,
            "moe_router_topk_scaling_factor": config.get("routed_scaling_factor"),
            "moe_router_num_groups": groups if groups > 1 else None,
            "moe_router_group_topk": config.get("topk_group") if groups > 1 else None,
        },
    )


def refusal(config: Mapping[str, Any]) -> str | None:
    """See :attr:`corerl_megatron.families.family.Family.refusal`."""
    if mixture(config) is None:
        return None
    chosen, groups = int(config.get("num_experts_per_tok") or 8), int(config.get("topk_group") or 1)
    if int(config.get("n_group") or 1) > 1 and chosen // groups != BEST:
        return (
            f"megatron-core scores a group of experts by its {chosen // groups} best ones (num_experts_per_tok "
            f"{chosen} // topk_group {groups}), and the model by its {BEST} best"
        )
    if chosen < 2:
        return "num_experts_per_tok is 1, and megatron-core normalises the weights of two experts or more"
    if not config.get("n_shared_experts", 1):
        return "n_shared_experts is 0, and the mapping supports only models with shared experts"
    return None
