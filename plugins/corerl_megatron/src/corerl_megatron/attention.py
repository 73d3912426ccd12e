"""The parts of a layer: megatron-core's modules, with a norm and an attention that run on every device.

Without Apex and Transformer Engine, megatron-core's own norm refuses sequence parallel, and its own attention refuses
packed rows. Both are replaced through the layer's specification, megatron-core's interface for other modules.
"""

import importlib.util
from collections.abc import Callable, Sequence
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
from megatron.core.transformer.utils import make_sharded_tensors_for_checkpoint
from torch import Tensor, nn

from corerl_torch.packed_attention import packed_attention
from corerl_torch.sequence_parallel import SequenceGroup


@dataclass
class PackedRows(PackedSeqParams):  # type: ignore[misc]
    """Packed rows, with the rotation of this rank's tokens.

    Attributes:
        bounds: (rows + 1,) int32, the start of each row, and the end.
        longest: tokens of the longest row.
        cosine, sine: (own tokens, 1, rotated size of a head).
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

    def __init__(
        self,
        config: TransformerConfig,
        layer_number: int,
        *arguments: Any,
        softmax_scale: float | None = None,
        windows: Sequence[int | None] | None = None,
        **named: Any,
    ) -> None:
        super().__init__()
        self.scale, self.window, self.sinks = softmax_scale, None, None
        if windows is not None:
            device = None if config.use_cpu_initialization else torch.cuda.current_device()
            own = config.num_attention_heads // config.tensor_model_parallel_size
            self.window = windows[layer_number - 1]
            self.sinks = nn.Parameter(torch.empty(own, dtype=config.params_dtype, device=device))
            self.sinks.tensor_model_parallel = True  # type: ignore[attr-defined]

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
        query, key = (rotate(each, rows.cosine, rows.sine) for each in (query, key))
        return attend(self, query, key, value, rows, self.scale, window=self.window, sinks=self.sinks)

    def sharded_state_dict(self, prefix: str = "", sharded_offsets: Any = (), metadata: Any = None) -> Any:
        """megatron-core's description of this rank's sinks."""
        state = self.state_dict(prefix="", keep_vars=True)
        return make_sharded_tensors_for_checkpoint(state, prefix, {"sinks": 0}, sharded_offsets)


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    rows: PackedRows,
    scale: float | None,
    *,
    window: int | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """(own tokens, heads · size of a value's head) from rotated (own tokens, heads, size of a head) each.

    Args:
        window: number of tokens that a token sees, itself included; None: all.
        sinks: (heads,), the logit of each head's sink.
    """
    assert rows.bounds is not None
    if rows.begin is not None:
        rows.begin()
    query, key, value = (each.transpose(0, 1).unsqueeze(0) for each in (query, key, value))
    if rows.sharing is not None:
        query, key, value = (rows.sharing.tokens_for_heads(each) for each in (query, key, value))
        sinks = None if sinks is None else sinks.chunk(rows.sharing.size)[rows.sharing.rank]
    attended, _ = packed_attention(
        module,
        query,
        key,
        value,
        None,
        cu_seq_lens_q=rows.bounds,
        max_length_q=rows.longest,
        scaling=scale,
        sliding_window=window,
        s_aux=sinks,
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


def layers(
    config: TransformerConfig,
    experts: Sequence[bool],
    *,
    latent: ModuleSpec | None = None,
    windows: Sequence[int | None] | None = None,
    plain: bool = False,
) -> TransformerBlockSubmodules:
    """The specification of layers and of the norm after the last one.

    Args:
        experts: of each layer, whether it has experts.
        latent: attention of all layers, in place of megatron-core's.
        windows: of all layers of the model, for :class:`PackedAttention`.
        plain: no module of Transformer Engine, whose linear layers hide the input that they norm.
    """
    plain = plain or latent is not None or windows is not None
    core = ModuleSpec(module=PackedAttention, params={"windows": windows})
    specs = {has: _layer(config, core, latent, has_experts=has, plain=plain) for has in set(experts)}
    return TransformerBlockSubmodules(layer_specs=[specs[has] for has in experts], layer_norm=RMSNorm)


def _layer(
    config: TransformerConfig, core: ModuleSpec, latent: ModuleSpec | None, *, has_experts: bool, plain: bool
) -> ModuleSpec:
    experts, qk_norm = config.num_moe_experts if has_experts else None, config.qk_layernorm
    engine = importlib.util.find_spec("transformer_engine") is not None and not config.use_cpu_initialization
    if engine and not plain:
        spec = get_gpt_layer_with_transformer_engine_spec(num_experts=experts, qk_layernorm=qk_norm)
    else:
        spec = get_gpt_layer_local_spec(num_experts=experts, qk_layernorm=qk_norm, normalization="RMSNorm")
        spec.submodules.input_layernorm = RMSNorm
        spec.submodules.pre_mlp_layernorm = RMSNorm
    spec.submodules.sharded_state_dict_keys_map = {}  # weights are loaded under the names of saving
    attention = spec.submodules.self_attention.submodules
    attention.core_attention = core
    if qk_norm:
        attention.q_layernorm = attention.k_layernorm = RMSNorm
    if latent is not None:
        spec.submodules.self_attention = latent
    return spec


def rotate(states: Tensor, cosine: Tensor | None, sine: Tensor | None) -> Tensor:
    """(tokens, heads, size), of which the first as many numbers as ``cosine`` has are rotated, in halves."""
    assert cosine is not None and sine is not None
    turned, rest = states[..., : cosine.shape[-1]], states[..., cosine.shape[-1] :]
    left, right = turned.chunk(2, dim=-1)
    turned = turned * cosine + torch.cat((-right, left), dim=-1) * sine
    return torch.cat((turned, rest), dim=-1) if rest.shape[-1] else turned


def rotate_pairs(states: Tensor, cosine: Tensor | None, sine: Tensor | None) -> Tensor:
    """(tokens, heads, size): each pair of neighbours is rotated. The first of all pairs come before the second ones.

    ``cosine`` has each angle twice.
    """
    assert cosine is not None and sine is not None
    cosine, sine = (each.chunk(2, dim=-1)[0] for each in (cosine, sine))
    left, right = states[..., 0::2], states[..., 1::2]
    return torch.cat((left * cosine - right * sine, right * cosine + left * sine), dim=-1)
