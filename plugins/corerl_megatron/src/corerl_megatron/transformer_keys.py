"""Keys of megatron-core's transformer config that a config may set; imports neither torch nor megatron-core."""

import ast
import dataclasses
import importlib.util
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from corerl.contracts.options import did_you_mean
from corerl.errors import ConfigError
from corerl_megatron.options import MegatronOptions

NAME = "override_transformer_config"
SOURCES = {"transformer/transformer_config.py": "TransformerConfig", "model_parallel_config.py": "ModelParallelConfig"}
"""file below megatron/core -> its dataclass"""

_MODEL = "the model's config.json determines it"
_GRADIENT = "CoreRL sets it, as gradients must not depend on micro-batches and ranks"
_DTYPE = "model.dtype and actor.device determine it"
_LAYOUT = "CoreRL divides experts, and exchanges states, in one way"
_ATTENTION = "attention and its rotation are modules of CoreRL, which do not read it"
_CALLS = "it is code, which CoreRL sets"
_NAMES: Mapping[str, str] = {
    _MODEL: """
        num_layers hidden_size num_attention_heads num_query_groups kv_channels ffn_hidden_size layernorm_epsilon
        normalization gated_linear_unit activation_func activation_func_clamp_value glu_linear_offset
        add_bias_linear add_qkv_bias qk_layernorm qk_l2_norm num_moe_experts moe_ffn_hidden_size moe_router_topk
        moe_router_pre_softmax moe_router_score_function moe_router_topk_scaling_factor moe_router_num_groups
        moe_router_group_topk moe_router_enable_expert_bias moe_shared_expert_intermediate_size
        moe_shared_expert_gate moe_layer_freq moe_latent_size layernorm_zero_centered_gamma multi_latent_attention
        experimental_attention_variant attention_output_gate linear_attention_freq is_hybrid_model mtp_num_layers""",
    _GRADIENT: """
        hidden_dropout attention_dropout calculate_per_token_loss moe_router_load_balancing_type moe_aux_loss_coeff
        moe_z_loss_coeff moe_input_jitter_eps moe_token_dropping moe_expert_capacity_factor
        moe_router_force_load_balancing moe_router_bias_update_rate""",
    _DTYPE: """
        params_dtype pipeline_dtype bf16 fp16 enable_autocast autocast_dtype use_cpu_initialization
        perform_initialization init_model_with_meta_device""",
    _LAYOUT: """
        pipeline_model_parallel_layout expert_tensor_parallel_size moe_extended_tp variable_seq_lengths overlap_p2p_comm
        batch_p2p_comm hierarchical_context_parallel_sizes hybrid_context_parallel moe_grouped_gemm
        moe_use_legacy_grouped_gemm transformer_impl heterogeneous_block_specs""",
    _ATTENTION: """
        attention_backend apply_rope_fusion fused_single_qkv_rope rotary_interleaved mrope_section no_rope_freq
        softmax_scale softmax_type window_size window_attn_skip_freq cp_comm_type flash_decode
        apply_query_key_layer_scaling attention_softmax_in_fp32 qk_clip""",
    _CALLS: """
        timers finalize_model_grads_func grad_scale_func no_sync_func grad_sync_func param_sync_func init_method
        output_layer_init_method embedding_init_method _cpu_offloading_context""",
}
OWN: Mapping[str, str] = {name: why for why, names in _NAMES.items() for name in names.split()}
"""key that CoreRL sets itself -> why"""

_KINDS: Mapping[str, tuple[tuple[type, ...], str]] = {
    "bool": ((bool,), "true or false"),
    "int": ((int,), "an integer"),
    "float": ((int, float), "a number"),
    "str": ((str,), "a text"),
}


def check_transformer(key: str, options: MegatronOptions) -> None:
    """Check the keys of ``override_transformer_config``.

    Raises:
        ConfigError: a key that megatron-core does not have, that CoreRL sets itself, or with a value of another type.
    """
    for error in _violations(f"{key}.{NAME}", key, options):
        raise error


def _violations(path: str, key: str, options: MegatronOptions) -> Iterator[ConfigError]:
    known = fields()
    own = {each.name for each in dataclasses.fields(options)}
    for name, value in options.override_transformer_config.items():
        if name in own:
            yield ConfigError(f"{path}.{name}", f"is an option of its own: {key}.{name}")
        elif name in OWN:
            yield ConfigError(f"{path}.{name}", f"cannot be set: {OWN[name]}")
        elif name not in known:
            free = known.keys() - own - OWN.keys()
            yield ConfigError(
                f"{path}.{name}",
                f"megatron-core's transformer config has no such key{did_you_mean(name, sorted(free))}",
            )
        elif wrong := _wrong(known[name], value):
            yield ConfigError(f"{path}.{name}", f"must be {wrong}, not {value!r}")


def _wrong(annotation: str, value: Any) -> str:
    """Words for the right type of a value, or ''; only plain types are checked, megatron-core checks the rest."""
    optional = annotation.startswith("Optional[")
    kinds, words = _KINDS.get(annotation.removeprefix("Optional[").removesuffix("]"), ((), ""))
    if not words or (optional and value is None):
        return ""
    fits = isinstance(value, kinds) and (bool in kinds or not isinstance(value, bool))
    return "" if fits else words + (" or null" if optional else "")


@cache
def fields() -> Mapping[str, str]:
    """Key of the installed megatron-core's transformer config -> its type, as written there."""
    spec = importlib.util.find_spec("megatron")  # a namespace: nothing is run
    places = [] if spec is None else [Path(each) / "core" for each in spec.submodule_search_locations or ()]
    found: dict[str, str] = {}
    for name, wanted in SOURCES.items():
        for file in (place / name for place in places if (place / name).is_file()):
            for node in ast.parse(file.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.ClassDef) and node.name == wanted:
                    declared = [each for each in node.body if isinstance(each, ast.AnnAssign)]
                    found |= {ast.unparse(each.target): ast.unparse(each.annotation) for each in declared}
    return found
