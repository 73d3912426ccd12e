"""The facts of a family: which weights of megatron-core are made from which of Hugging Face's, and how."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Kind = Literal["whole", "rows", "columns", "vocabulary", "qkv", "gate_up", "turned", "turned_pairs"]
"""Division of a weight among tensor-parallel ranks.

================  =================================================================================================
``whole``         every rank has the whole weight
``rows``          dimension 0 is cut: output features
``columns``       dimension 1 is cut: input features
``vocabulary``    ``rows`` after padding with zeros to a multiple of the ranks
``qkv``           query, key and value by groups: a group's query heads, its key head, its value head; groups stay whole
``gate_up``       a rank's part of the gate above its part of the up projection
``turned``        every rank has the whole weight, transposed
``turned_pairs``  the same of a gate and an up projection, whose output features alternate in Hugging Face's weight
================  =================================================================================================
"""


@dataclass(frozen=True)
class Rule:
    """One weight of megatron-core, of a layer or of the whole model.

    Attributes:
        megatron: its name in the local layer specification.
        parts: Hugging Face's names of its parts.
        fused: its name if Transformer Engine puts it into the following linear layer.
        buffer: no optimizer changes it; float32 in every model.
    """

    megatron: str
    parts: tuple[str, ...]
    kind: Kind = "whole"
    fused: str | None = None
    buffer: bool = False


@dataclass(frozen=True)
class Mixture:
    """The experts of a model.

    Attributes:
        number: of a layer.
        width: intermediate size of one.
        dense: leading layers without experts.
        shared: intermediate size of the experts that all tokens pass; 0: there are none.
        settings: for megatron-core's TransformerConfig.
    """

    number: int
    width: int
    dense: int = 0
    shared: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)


def _nothing(config: Mapping[str, Any]) -> Any:
    return None


@dataclass(frozen=True)
class Family:
    """One value of transformers' ``model_type``. Functions get the Hugging Face config.

    Attributes:
        layer: rules of a decoder layer, after ``decoder.layers.N.`` and ``model.layers.N.``.
        expert: rules of an expert, after ``mlp.experts.local_experts.N.`` and ``mlp.experts.N.`` of its layer.
        settings: for megatron-core's TransformerConfig.
        assumes: keys of the Hugging Face config, with the one value that the rules support.
        of_config: further settings.
        mixture: the experts; None for a dense model.
        refusal: why megatron-core cannot run this model; None if it can.
        latent: attention is multi-latent (:mod:`corerl_megatron.latent`).
        windows: of each layer, the number of tokens that a token sees, or None; with them attention has sinks.
        stacked: the files have one tensor for all experts of a layer, ``mlp.experts.NAME`` for each NAME of
            ``expert``; the rotation has each angle once.
    """

    layer: tuple[Rule, ...]
    expert: tuple[Rule, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    assumes: Mapping[str, Any] = field(default_factory=dict)
    of_config: Callable[[Mapping[str, Any]], Mapping[str, Any] | None] = _nothing
    mixture: Callable[[Mapping[str, Any]], Mixture | None] = _nothing
    refusal: Callable[[Mapping[str, Any]], str | None] = _nothing
    latent: bool = False
    windows: Callable[[Mapping[str, Any]], list[int | None] | None] = _nothing
    stacked: bool = False


EMBEDDING = Rule("embedding.word_embeddings.weight", ("model.embed_tokens.weight",), "vocabulary")
OUTPUT = Rule("output_layer.weight", ("lm_head.weight",), "vocabulary")
NORM = Rule("decoder.final_layernorm.weight", ("model.norm.weight",))
SCORE = (Rule("score.weight", ("score.weight",)), Rule("score.bias", ("score.bias",)))

NORMS = (
    Rule("input_layernorm.weight", ("input_layernorm.weight",), fused="self_attention.linear_qkv.layer_norm_weight"),
    Rule("pre_mlp_layernorm.weight", ("post_attention_layernorm.weight",), fused="mlp.linear_fc1.layer_norm_weight"),
)
ATTENTION = (
    Rule(
        "self_attention.linear_qkv.weight",
        ("self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"),
        "qkv",
    ),
    Rule("self_attention.linear_proj.weight", ("self_attn.o_proj.weight",), "columns"),
)
QKV_BIAS = Rule(
    "self_attention.linear_qkv.bias", ("self_attn.q_proj.bias", "self_attn.k_proj.bias", "self_attn.v_proj.bias"), "qkv"
)
QK_NORMS = (
    Rule("self_attention.q_layernorm.weight", ("self_attn.q_norm.weight",)),
    Rule("self_attention.k_layernorm.weight", ("self_attn.k_norm.weight",)),
)
MLP = (
    Rule("mlp.linear_fc1.weight", ("mlp.gate_proj.weight", "mlp.up_proj.weight"), "gate_up"),
    Rule("mlp.linear_fc2.weight", ("mlp.down_proj.weight",), "columns"),
)
ROUTER = Rule("mlp.router.weight", ("mlp.gate.weight",))
EXPERT = (
    Rule("linear_fc1.weight", ("gate_proj.weight", "up_proj.weight"), "gate_up"),
    Rule("linear_fc2.weight", ("down_proj.weight",), "columns"),
)
PLAIN = {"hidden_act": "silu", "attention_bias": False}
"""assumptions of most families"""
