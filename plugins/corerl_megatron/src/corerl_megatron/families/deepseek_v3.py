"""DeepSeek-V3, R1 and models with the same ``model_type``: multi-latent attention, and sigmoid experts."""

from corerl_megatron.families import sigmoid
from corerl_megatron.families.family import EXPERT, MLP, NORMS, PLAIN, Family, Rule

LATENT = (
    Rule("self_attention.linear_q_proj.weight", ("self_attn.q_proj.weight",), "rows"),
    Rule("self_attention.linear_q_down_proj.weight", ("self_attn.q_a_proj.weight",)),
    Rule("self_attention.q_norm.weight", ("self_attn.q_a_layernorm.weight",)),
    Rule("self_attention.linear_q_up_proj.weight", ("self_attn.q_b_proj.weight",), "rows"),
    Rule("self_attention.linear_kv_down_proj.weight", ("self_attn.kv_a_proj_with_mqa.weight",)),
    Rule("self_attention.kv_norm.weight", ("self_attn.kv_a_layernorm.weight",)),
    Rule("self_attention.linear_kv_up_proj.weight", ("self_attn.kv_b_proj.weight",), "rows"),
    Rule("self_attention.linear_proj.weight", ("self_attn.o_proj.weight",), "columns"),
)

FAMILY = Family(
    layer=(*NORMS, *LATENT, *MLP, *sigmoid.RULES),
    expert=EXPERT,
    assumes={**PLAIN, **sigmoid.ASSUMES},
    mixture=sigmoid.mixture,
    refusal=sigmoid.refusal,
    latent=True,
)
