"""The parts of a layer: megatron-core's modules, with a norm and an attention that run on every device.

Without Apex and Transformer Engine, megatron-core's own norm refuses sequence parallel, and its own attention refuses
packed rows. Both are replaced through the layer's specification, megatron-core's interface for other modules.
"""

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from megatron.core.models.gpt.gpt_layer_specs import (
    get_gpt_layer_local_spec,
    get_gpt_layer_with_transformer_engine_spec,
)
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor, nn

from corerl_torch.packed_attention import packed_attention
from corerl_torch.sequence_parallel import SequenceGroup


@dataclass
class PackedRows(PackedSeqParams):  # type: ignore[misc]
    """Packed rows, with the rotation of this rank's tokens.

    Attributes:
        bounds: (rows + 1,) int32, the start of each row, and the end.
        longest: tokens of the longest row.
        cosine, sine: (own tokens, 1, head size).
        sharing: the context-parallel ranks.
        begin: called by each layer before its router runs.
    """

    bounds: Tensor | None = None
    longest: int = 0
    cosine: Tensor | None = None
    sine: Tensor | None = None
    sharing: SequenceGroup | None = None
    begin: Callable[[], None] | None = None


class PackedAttention(nn.Module):
    """Rotary embedding and causal attention within each row, for this tensor-parallel rank's heads.

    With context parallel a rank has a part of the tokens; all-to-alls before and after attention exchange tokens for
    heads (Jacobs et al. 2023, arXiv 2309.14509).
    """

    def __init__(self, *arguments: Any, softmax_scale: float | None = None, **named: Any) -> None:
        super().__init__()
        self.scale = softmax_scale

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        *,
        packed_seq_params: PackedRows,
        **named: Any,
    ) -> Tensor:
        """(own tokens, heads · head size) from (own tokens, heads, head size) each; key and value may have fewer."""
        rows = packed_seq_params
        assert rows.cosine is not None and rows.sine is not None and rows.bounds is not None
        if rows.begin is not None:
            rows.begin()
        rotated = (_rotate(each, rows.cosine, rows.sine) for each in (query, key))
        query, key, value = (each.transpose(0, 1).unsqueeze(0) for each in (*rotated, value))
        if rows.sharing is not None:
            query, key, value = (rows.sharing.tokens_for_heads(each) for each in (query, key, value))
        attended, _ = packed_attention(
            self, query, key, value, None, cu_seq_lens_q=rows.bounds, max_length_q=rows.longest, scaling=self.scale
        )
        if rows.sharing is not None:
            attended = rows.sharing.heads_for_tokens(attended)
        return attended.squeeze(0).flatten(1)


class RMSNorm(nn.Module):
    """x / sqrt(mean(x²) + eps) · weight."""

    def __init__(self, config: TransformerConfig, hidden_size: int, eps: float = 1e-5, **named: Any) -> None:
        super().__init__()
        device = None if config.use_cpu_initialization else torch.cuda.current_device()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(hidden_size, dtype=config.params_dtype, device=device))
        self.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]

    def forward(self, states: Tensor) -> Tensor:
        return nn.functional.rms_norm(states, self.weight.shape, self.weight, self.eps)


def layers(config: TransformerConfig, count: int, *, plain: bool = False) -> TransformerBlockSubmodules:
    """The specification of ``count`` layers and of the norm after the last one.

    Args:
        plain: no module of Transformer Engine, whose linear layers hide the input that they norm.
    """
    experts, qk_norm = config.num_moe_experts, config.qk_layernorm
    engine = importlib.util.find_spec("transformer_engine") is not None and not config.use_cpu_initialization
    if engine and not plain:
        spec = get_gpt_layer_with_transformer_engine_spec(num_experts=experts, qk_layernorm=qk_norm)
    else:
        spec = get_gpt_layer_local_spec(num_experts=experts, qk_layernorm=qk_norm, normalization="RMSNorm")
        spec.submodules.input_layernorm = RMSNorm
        spec.submodules.pre_mlp_layernorm = RMSNorm
    attention = spec.submodules.self_attention.submodules
    attention.core_attention = PackedAttention
    if qk_norm:
        attention.q_layernorm = attention.k_layernorm = RMSNorm
    return TransformerBlockSubmodules(layer_specs=[_plain(spec)] * count, layer_norm=RMSNorm)


def _plain(spec: ModuleSpec) -> ModuleSpec:
    """Remove checkpoint names for fused norms: weights are loaded under the names of saving."""
    spec.submodules.sharded_state_dict_keys_map = {}
    return spec


def _rotate(states: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    left, right = states.chunk(2, dim=-1)
    return states * cosine + torch.cat((-right, left), dim=-1) * sine
