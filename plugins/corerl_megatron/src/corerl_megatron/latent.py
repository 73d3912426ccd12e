"""Multi-latent attention (DeepSeek-AI 2024, DeepSeek-V2, arXiv 2405.04434, section 2.1) of megatron-core's matrices.

megatron-core's own class (0.16 to 0.19) builds a rotation on a CUDA device. Without Transformer Engine it divides the
matrices to the latents among tensor-parallel ranks, and the gradient of the rotated key, which all heads share, is then
that of one rank's heads. Here every rank has these two matrices whole, and the gradient is summed over the ranks.
"""

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from megatron.core.tensor_parallel import (
    ColumnParallelLinear,
    RowParallelLinear,
    checkpoint,
    copy_to_tensor_model_parallel_region,
    gather_from_sequence_parallel_region,
)
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor, nn

from corerl_megatron.attention import PackedRows, RMSNorm, attend, rotate, rotate_pairs

EPSILON = 1e-6
"""of the norms of latents, whatever ``rms_norm_eps`` is, as in transformers"""


@dataclass(frozen=True)
class LatentShape:
    """Sizes of a head and of the latents.

    Attributes:
        query: size of the query's latent; None: the query has none.
        latent: size of the latent of keys and values.
        plain, rotated: parts of the head of a query or key.
        value: the head of a value.
        scale: of scores.
        pairs: neighbours are rotated together, not the two halves.
    """

    query: int | None
    latent: int
    plain: int
    rotated: int
    value: int
    scale: float
    pairs: bool

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> "LatentShape":
        """From a Hugging Face config. YaRN multiplies the scores by the square of its mscale."""
        rope = config["rope_parameters"]
        plain, rotated = config["qk_nope_head_dim"], config["qk_rope_head_dim"]
        mscale = 1.0
        if rope.get("rope_type", "default") != "default" and rope.get("mscale_all_dim") and rope["factor"] > 1:
            mscale += 0.1 * rope["mscale_all_dim"] * math.log(rope["factor"])
        return cls(
            config["q_lora_rank"],
            config["kv_lora_rank"],
            plain,
            rotated,
            config["v_head_dim"],
            mscale**2 / math.sqrt(plain + rotated),
            bool(config.get("rope_interleave", True)),
        )


class LatentAttention(MegatronModule):  # type: ignore[misc]
    """Attention within each packed row, for this tensor-parallel rank's heads."""

    def __init__(
        self, config: TransformerConfig, layer_number: int, shape: LatentShape, submodules: Any = None, **named: Any
    ) -> None:
        super().__init__(config=config)
        self.shape, self.layer_number = shape, layer_number
        self.shares_tokens = config.sequence_parallel
        self.again = config.recompute_granularity == "selective" and "core_attn" in (config.recompute_modules or ())
        heads, hidden = config.num_attention_heads, config.hidden_size
        divided = functools.partial(_column_parallel, config)
        if shape.query is None:
            self.linear_q_proj = divided(hidden, heads * (shape.plain + shape.rotated))
        else:
            self.linear_q_down_proj = Undivided(config, hidden, shape.query)
            self.q_norm = RMSNorm(config, shape.query, EPSILON)
            self.linear_q_up_proj = divided(shape.query, heads * (shape.plain + shape.rotated))
        self.linear_kv_down_proj = Undivided(config, hidden, shape.latent + shape.rotated)
        self.kv_norm = RMSNorm(config, shape.latent, EPSILON)
        self.linear_kv_up_proj = divided(shape.latent, heads * (shape.plain + shape.value))
        self.linear_proj = RowParallelLinear(
            heads * shape.value,
            hidden,
            config=config,
            init_method=config.output_layer_init_method,
            bias=False,
            input_is_parallel=True,
            skip_bias_add=True,
            is_expert=False,
        )

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        *,
        packed_seq_params: PackedRows,
        **named: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """(own tokens, 1, hidden size), and no bias."""
        shape, rows = self.shape, packed_seq_params
        query = self._query(hidden_states)
        latent, key_rotated = self.linear_kv_down_proj(hidden_states).split([shape.latent, shape.rotated], dim=-1)
        whole = gather_from_sequence_parallel_region if self.shares_tokens else copy_to_tensor_model_parallel_region
        key_rotated = whole(key_rotated)
        both = self.linear_kv_up_proj(self.kv_norm(latent))[0].squeeze(1)
        key_plain, value = both.unflatten(-1, (-1, shape.plain + shape.value)).split([shape.plain, shape.value], -1)
        query_plain, query_rotated = query[..., : shape.plain], query[..., shape.plain :]
        turn = rotate_pairs if shape.pairs else rotate
        key_rotated = turn(key_rotated, rows.cosine, rows.sine).expand(-1, query.shape[1], -1)
        query = torch.cat([query_plain, turn(query_rotated, rows.cosine, rows.sine)], dim=-1)
        key = torch.cat([key_plain, key_rotated], dim=-1)
        if self.again and self.training:
            attended = checkpoint(self._attend(rows), False, query, key, value)
        else:
            attended = self._attend(rows)(query, key, value)
        output: tuple[Tensor, Tensor | None] = self.linear_proj(attended.unsqueeze(1))
        return output

    def _attend(self, rows: PackedRows) -> Any:
        return lambda query, key, value: attend(self, query, key, value, rows, self.shape.scale)

    def _query(self, hidden_states: Tensor) -> Tensor:
        """(tokens, own heads, size of a head), without rotation."""
        if self.shape.query is None:
            query = self.linear_q_proj(hidden_states)[0]
        else:
            query = self.linear_q_up_proj(self.q_norm(self.linear_q_down_proj(hidden_states)))[0]
        by_head: Tensor = query.view(len(query), -1, self.shape.plain + self.shape.rotated)
        return by_head


class Undivided(nn.Module):
    """A matrix that every tensor-parallel rank has whole; with sequence parallel each applies it to its own tokens."""

    def __init__(self, config: TransformerConfig, inputs: int, outputs: int) -> None:
        super().__init__()
        device = None if config.use_cpu_initialization else torch.cuda.current_device()
        self.weight = nn.Parameter(torch.empty(outputs, inputs, dtype=config.params_dtype, device=device))
        self.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]

    def forward(self, states: Tensor) -> Tensor:
        return nn.functional.linear(states, self.weight)


def _column_parallel(config: TransformerConfig, inputs: int, outputs: int) -> Any:
    return ColumnParallelLinear(
        inputs,
        outputs,
        config=config,
        init_method=config.init_method,
        gather_output=False,
        bias=False,
        skip_bias_add=False,
        is_expert=False,
    )
