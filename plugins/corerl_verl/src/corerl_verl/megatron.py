"""verl's options of Megatron, and its overrides of megatron-core's transformer config."""

from typing import Any

from corerl_verl.conversion import Conversion, Kind, shown
from corerl_verl.layouts import layers_of

OPTIONS = (
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "virtual_pipeline_model_parallel_size",
    "context_parallel_size",
    "expert_model_parallel_size",
    "sequence_parallel",
    "use_distributed_optimizer",
    "param_offload",
    "grad_offload",
    "optimizer_offload",
    "use_mbridge",
)
RECOMPUTE = ("recompute_granularity", "recompute_method", "recompute_num_layers", "recompute_modules")
"""keys of megatron-core's transformer config that are options of CoreRL's strategy"""

_LAYOUT = (
    "CoreRL's stages have equal numbers of layers but the first and the last one: num_layers_in_first_pipeline_stage, "
    "num_layers_in_last_pipeline_stage"
)
_FALSE = ("account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split", "fp8")
"""keys whose value false is megatron-core's default"""
_OF_CORERL: tuple[tuple[Kind, str, str], ...] = (
    (
        "harmless",
        "a matter of speed: attention and its rotation are modules of CoreRL",
        """attention_backend apply_rope_fusion use_flash_attn fused_single_qkv_rope cp_comm_type flash_decode
        attention_softmax_in_fp32 apply_query_key_layer_scaling use_fused_rotary_pos_emb position_embedding_type""",
    ),
    (
        "harmless",
        "a matter of memory and speed, which CoreRL's megatron selects itself",
        """moe_grouped_gemm moe_use_legacy_grouped_gemm moe_extended_tp variable_seq_lengths overlap_p2p_comm
        batch_p2p_comm hierarchical_context_parallel_sizes hybrid_context_parallel transformer_impl
        use_cpu_initialization perform_initialization init_model_with_meta_device use_fused_rmsnorm use_fused_swiglu""",
    ),
    (
        "changed",
        "the model's config.json determines it",
        """num_layers hidden_size num_attention_heads num_query_groups kv_channels ffn_hidden_size layernorm_epsilon
        normalization gated_linear_unit activation_func activation_func_clamp_value glu_linear_offset
        add_bias_linear add_qkv_bias qk_layernorm qk_l2_norm num_moe_experts moe_ffn_hidden_size moe_router_topk
        moe_router_pre_softmax moe_router_score_function moe_router_topk_scaling_factor moe_router_num_groups
        moe_router_group_topk moe_shared_expert_intermediate_size moe_shared_expert_gate moe_layer_freq
        moe_latent_size layernorm_zero_centered_gamma multi_latent_attention experimental_attention_variant
        attention_output_gate linear_attention_freq is_hybrid_model heterogeneous_block_specs rotary_interleaved
        mrope_section no_rope_freq softmax_scale softmax_type window_size window_attn_skip_freq""",
    ),
    ("changed", "model.dtype determines it", "params_dtype pipeline_dtype bf16 fp16 enable_autocast autocast_dtype"),
    ("changed", "models are trained without dropout", "hidden_dropout attention_dropout"),
    (
        "changed",
        "gradients do not depend on micro-batches and ranks: actor.loss_agg_mode",
        "calculate_per_token_loss",
    ),
    (
        "missing",
        "CoreRL's megatron has no load-balance loss of routers yet (fsdp: router_aux_loss_coef)",
        "moe_router_load_balancing_type moe_aux_loss_coeff moe_z_loss_coeff",
    ),
    (
        "missing",
        "no family of CoreRL's megatron has it yet",
        """moe_router_bias_update_rate moe_router_enable_expert_bias mtp_num_layers mtp_loss_scaling_factor qk_clip
        moe_input_jitter_eps moe_token_dropping moe_expert_capacity_factor moe_router_force_load_balancing""",
    ),
    ("missing", "CoreRL divides experts over expert_model_parallel_size alone", "expert_tensor_parallel_size"),
    (
        "missing",
        "it is code, which CoreRL sets",
        """timers finalize_model_grads_func grad_scale_func no_sync_func grad_sync_func param_sync_func init_method
        output_layer_init_method embedding_init_method _cpu_offloading_context""",
    ),
)
OF_CORERL: dict[str, tuple[Kind, str]] = {
    name: (kind, reason) for kind, reason, names in _OF_CORERL for name in names.split()
}
"""keys that CoreRL sets itself, or that MindSpeed adds -> kind and reason of the remark; others are passed on"""
_NEUTRAL: dict[str, tuple[Any, ...]] = {"expert_tensor_parallel_size": (1,), "normalization": ("RMSNorm",)}
_OFF: tuple[Any, ...] = (None, False, 0, "none")


def megatron(conversion: Conversion, role: str) -> None:
    """Degrees of parallelism, offloads and the transformer config of a role."""
    section = f"{role}.megatron"
    for name in OPTIONS:
        given = conversion.given.pop(f"{section}.{name}", None)
        value = given if given is not None else conversion.effective(f"{section}.{name}")
        if given is not None or name == "sequence_parallel" or (name.endswith("_size") and value not in (None, 1)):
            conversion.values[f"{role}.strategy.{name}"] = value
    if conversion.effective(f"{section}.tensor_model_parallel_size", 1) in (1, "1"):
        conversion.values.pop(f"{role}.strategy.sequence_parallel", None)  # verl turns it off
    _transformer(conversion, role, f"{section}.override_transformer_config")
    _reduction(conversion, f"{section}.override_ddp_config")


def _transformer(conversion: Conversion, role: str, key: str) -> None:
    whole = conversion.take(key, {})
    overrides = (dict(whole) if isinstance(whole, dict) else {}) | conversion.take_section(key)
    _layers(conversion, role, overrides)
    prefix = f"{role}.strategy"
    for name, value in overrides.items():
        if name in RECOMPUTE:
            if value is not None:
                conversion.values[f"{prefix}.{name}"] = value
        elif name in OPTIONS:
            conversion.remark(shown(f"{key}.{name}", value), f"{role}.megatron.{name} sets it")
        elif name in _FALSE and value is False:
            conversion.remark(shown(f"{key}.{name}", value), "megatron-core's default", "harmless")
        elif name in OF_CORERL:
            kind, reason = OF_CORERL[name]
            neutral = value in (*_OFF, *_NEUTRAL.get(name, ()))
            conversion.remark(shown(f"{key}.{name}", value), reason, "harmless" if neutral else kind)
        elif value is not None:
            conversion.values[f"{prefix}.override_transformer_config.{name}"] = value
    if conversion.values.get(f"{prefix}.recompute_granularity") != "selective":
        conversion.values.pop(f"{prefix}.recompute_modules", None)


def _reduction(conversion: Conversion, key: str) -> None:
    """megatron-core's options for the reduction of gradients."""
    whole = conversion.take(key, {})
    for name, value in ((dict(whole) if isinstance(whole, dict) else {}) | conversion.take_section(key)).items():
        lower = name == "grad_reduce_in_fp32" and value is False
        reason = "CoreRL sums gradients in float32" if name == "grad_reduce_in_fp32" else "a matter of memory and speed"
        conversion.remark(shown(f"{key}.{name}", value), reason, "changed" if lower else "harmless")


def _layers(conversion: Conversion, role: str, overrides: dict[str, Any]) -> None:
    """A layout of the pipeline, as the numbers of layers of its first and its last stage."""
    layout = overrides.pop("pipeline_model_parallel_layout", None)
    if layout is None:
        return
    counts = layers_of(layout)
    stages = conversion.effective(f"{role}.megatron.pipeline_model_parallel_size", 1)
    middle = set(counts[1:-1])
    if len(counts) == stages and stages > 1 and len(middle) < 2:
        prefix = f"{role}.strategy.override_transformer_config.num_layers_in"
        conversion.values[f"{prefix}_first_pipeline_stage"] = counts[0]
        conversion.values[f"{prefix}_last_pipeline_stage"] = counts[-1]
    else:
        key = f"{role}.megatron.override_transformer_config.pipeline_model_parallel_layout"
        conversion.remark(shown(key, layout), _LAYOUT, "missing")
