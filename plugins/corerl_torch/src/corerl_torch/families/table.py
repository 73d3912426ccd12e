"""Families of models, and what tests prove of each under each backend: the source of docs/models.md.

This file imports neither torch nor transformers.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from corerl_torch.families.columns import COLUMNS, MEGATRON_LACKS, MEGATRON_ROUTES, REFUSED_BY_MEGATRON, Column, State

WINDOWED = MappingProxyType({"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 4})
RECURRENT = MappingProxyType(
    {
        "layer_types": ["linear_attention", "full_attention"],
        "linear_num_value_heads": 4,
        "linear_num_key_heads": 2,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
    }
)
EXPERTS = MappingProxyType({"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16})
SHARED_EXPERT = MappingProxyType({**EXPERTS, "shared_expert_intermediate_size": 16})

NO_PACKING: Mapping[str, State] = MappingProxyType(
    {
        "torch.packed": "padded",
        "torch.prefixes": "refused",
        "fsdp.packed": "padded",
        "fsdp.ulysses": "refused",
        "fsdp.context": "refused",
    }
)
DIVIDED: Mapping[str, State] = MappingProxyType({"fsdp.experts": "proven", "fsdp.tensor": "refused"})
NOT_IN_VLLM: Mapping[str, State] = MappingProxyType({"vllm.export": "not proven"})
NOT_IN_SGLANG: Mapping[str, State] = MappingProxyType({"sglang.export": "not proven"})
ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
NO_SHARING = "its recurrent state and its convolution run over the bounds of packed rows"


@dataclass(frozen=True)
class Family:
    """
    Attributes:
        name: as its makers write it.
        model_type: of its text config in transformers.
        config: name of the class of that config.
        models: published models.
        shape: of the two layers that tests build, beside :data:`SHAPE`.
        states: ``backend.feature`` → state, if it is another one than the column's.
        note: a limit, for a reader of the page; '' if there is none.
        adapted: layers that get adapters in tests; (): ``all-linear``.
        proofs: ``backend.feature`` → ``file::function``, if it is another test than the column's.
    """

    name: str
    model_type: str
    config: str
    models: str
    shape: Mapping[str, Any] = field(default_factory=dict)
    states: Mapping[str, State] = field(default_factory=dict)
    note: str = ""
    adapted: tuple[str, ...] = ()
    proofs: Mapping[str, str] = field(default_factory=dict)

    def config_values(self) -> dict[str, Any]:
        """Arguments of the config's class: two layers with random weights."""
        return {**SHAPE, **self.shape}

    def state(self, column: Column) -> State:
        """What is proven."""
        return self.states.get(column.key, column.state)

    def test(self, column: Column) -> str:
        """``file::function`` that proves the state; '' if nothing does."""
        state = self.state(column)
        if state == "refused" and column.backend == "megatron":
            return self.proofs.get(column.key, REFUSED_BY_MEGATRON)
        return "" if state == "not proven" else self.proofs.get(column.key, column.test)


SHAPE: Mapping[str, Any] = MappingProxyType(
    {
        "vocab_size": 259,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 128,
        "bos_token_id": None,
        "eos_token_id": 258,
        "pad_token_id": 256,
        "tie_word_embeddings": False,
    }
)
"""of every family; tokens are those of the tiny tokenizer of corerl-testing"""

OF_MEGATRON: Mapping[str, State] = MappingProxyType(
    {f"megatron.{feature}": "proven" for feature in ("packed", "tensor", "lora", "export")}
)
"""dense families of corerl-megatron"""

ROUTED_BY_MEGATRON: Mapping[str, State] = MappingProxyType({**OF_MEGATRON, "megatron.lora": "not proven"})
"""with experts in some layers"""

LACKING: Mapping[str, str] = MappingProxyType(dict.fromkeys(OF_MEGATRON, MEGATRON_LACKS))
"""proofs of families for which megatron-core lacks a part"""

EXPERTS_OF_MEGATRON: Mapping[str, State] = MappingProxyType({**ROUTED_BY_MEGATRON, "megatron.tensor": "not proven"})
"""with experts in every layer, which tensor parallel needs GPUs for"""

FAMILIES: tuple[Family, ...] = (
    Family("Qwen2, Qwen2.5", "qwen2", "Qwen2Config", "Qwen2.5-0.5B … 72B", {"tie_word_embeddings": True}, OF_MEGATRON),
    Family("Qwen3", "qwen3", "Qwen3Config", "Qwen3-0.6B … 32B", {}, OF_MEGATRON),
    Family(
        "Qwen3-MoE",
        "qwen3_moe",
        "Qwen3MoeConfig",
        "Qwen3-30B-A3B, 235B-A22B",
        EXPERTS,
        {**EXPERTS_OF_MEGATRON, **DIVIDED},
        "",
        ATTENTION,
        {"megatron.packed": MEGATRON_ROUTES},
    ),
    Family(
        "Qwen3-Next",
        "qwen3_next",
        "Qwen3NextConfig",
        "Qwen3-Next-80B-A3B",
        {**RECURRENT, **SHARED_EXPERT},
        {**NO_PACKING, **NOT_IN_VLLM, **NOT_IN_SGLANG, **DIVIDED},
        f"without flash-linear-attention {NO_SHARING}",
        ATTENTION,
        LACKING,
    ),
    Family(
        "Qwen3.5",
        "qwen3_5_text",
        "Qwen3_5TextConfig",
        "Qwen3.5, text",
        RECURRENT,
        {**NO_PACKING, **NOT_IN_VLLM, **NOT_IN_SGLANG},
        f"without flash-linear-attention {NO_SHARING}",
        proofs=LACKING,
    ),
    Family(
        "Qwen3.5-MoE",
        "qwen3_5_moe_text",
        "Qwen3_5MoeTextConfig",
        "Qwen3.5 with experts, text",
        {**RECURRENT, **SHARED_EXPERT},
        {**NO_PACKING, **NOT_IN_VLLM, **NOT_IN_SGLANG, **DIVIDED},
        f"without flash-linear-attention {NO_SHARING}; adapters of `all-linear` leave out the experts, as with peft",
        proofs=LACKING,
    ),
    Family(
        "Llama 3",
        "llama",
        "LlamaConfig",
        "Llama-3.1-8B, 3.2, 3.3-70B",
        {
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 500000.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            }
        },
        OF_MEGATRON,
    ),
    Family(
        "Llama 4",
        "llama4_text",
        "Llama4TextConfig",
        "Llama-4-Scout, Maverick, text",
        {
            "intermediate_size_mlp": 48,
            "num_local_experts": 4,
            "num_experts_per_tok": 1,
            "interleave_moe_layer_step": 1,
            "no_rope_layers": [1, 0],
            "attention_chunk_size": 4,
            "floor_scale": 64,
        },
        {**NO_PACKING, **NOT_IN_SGLANG, "fsdp.tensor": "refused"},
        "transformers counts the positions of its layers without rotary embedding in the batch, not in the row, and "
        "its chunks of attention are in a mask alone",
        ATTENTION,
    ),
    Family("Mistral", "mistral", "MistralConfig", "Mistral-7B, Small", {"sliding_window": 4}),
    Family(
        "Gemma 3",
        "gemma3_text",
        "Gemma3TextConfig",
        "Gemma 3 1B … 27B, text",
        {**WINDOWED, "query_pre_attn_scalar": 8},
        NOT_IN_SGLANG,
    ),
    Family(
        "Gemma 4",
        "gemma4_text",
        "Gemma4TextConfig",
        "Gemma 4 E2B … 31B, text",
        {
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "num_hidden_layers": 4,
            "num_kv_shared_layers": 2,
            "sliding_window": 4,
            "global_head_dim": 16,
            "hidden_size_per_layer_input": 8,
            "vocab_size_per_layer_input": 259,
            "tie_word_embeddings": True,
        },
        NOT_IN_SGLANG,
    ),
    Family("Phi-4", "phi3", "Phi3Config", "Phi-3, Phi-4, Phi-4-mini", {"sliding_window": 4}),
    Family(
        "gpt-oss",
        "gpt_oss",
        "GptOssConfig",
        "gpt-oss-20b, 120b",
        {**WINDOWED, "num_local_experts": 4, "num_experts_per_tok": 2, "max_position_embeddings": 131072},
        {**NOT_IN_VLLM, **NOT_IN_SGLANG, **DIVIDED, **EXPERTS_OF_MEGATRON},
        "its sinks need the attention row by row, also on CUDA; weights are trained in bf16 or float32, not in MXFP4",
        proofs={"megatron.packed": MEGATRON_ROUTES},
    ),
    Family("GLM-4", "glm4", "Glm4Config", "GLM-4-9B, 32B (0414)"),
    Family(
        "GLM-4-MoE",
        "glm4_moe",
        "Glm4MoeConfig",
        "GLM-4.5, 4.6, 4.7",
        {
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 16,
            "first_k_dense_replace": 1,
            "n_shared_experts": 1,
            "use_qk_norm": True,
        },
        {**DIVIDED, **ROUTED_BY_MEGATRON},
        "the bias of its routers' scores moves by `router_bias_update_rate` alone",
        ATTENTION,
        {"megatron.packed": MEGATRON_ROUTES},
    ),
    Family(
        "DeepSeek-V3",
        "deepseek_v3",
        "DeepseekV3Config",
        "DeepSeek-V3, R1, Kimi-K2's shape",
        {
            "num_key_value_heads": 4,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 16,
            "first_k_dense_replace": 1,
            "n_group": 2,
            "topk_group": 1,
            "topk_method": "noaux_tc",
            "q_lora_rank": 16,
            "kv_lora_rank": 16,
            "qk_rope_head_dim": 8,
            "qk_nope_head_dim": 8,
            "v_head_dim": 12,
        },
        {**NOT_IN_VLLM, **NOT_IN_SGLANG, **DIVIDED, **ROUTED_BY_MEGATRON},
        "the bias of its routers' scores moves by `router_bias_update_rate` alone; weights are trained in bf16 or "
        "float32, not in FP8",
        ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj"),
        {"megatron.packed": MEGATRON_ROUTES},
    ),
    Family("OLMo 3", "olmo3", "Olmo3Config", "Olmo-3-7B, 32B", WINDOWED, NOT_IN_SGLANG),
    Family(
        "SmolLM3",
        "smollm3",
        "SmolLM3Config",
        "SmolLM3-3B",
        {"no_rope_layers": [1, 0], "tie_word_embeddings": True},
    ),
    Family(
        "Granite",
        "granite",
        "GraniteConfig",
        "Granite 3, 4 (dense)",
        {"logits_scaling": 4.0, "residual_multiplier": 0.3, "embedding_multiplier": 6.0, "attention_multiplier": 0.2},
    ),
)


def family_of(model_type: str) -> Family | None:
    """The family with a ``model_type``; None if there is none."""
    return next((each for each in FAMILIES if each.model_type == model_type), None)


def unproven(model_type: str, backend: str) -> Iterator[str]:
    """The features of a backend that no test proves for a family; all of an unknown one."""
    family = family_of(model_type)
    for column in COLUMNS:
        if column.backend == backend and (family is None or family.state(column) == "not proven"):
            yield column.title
