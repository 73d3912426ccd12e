"""How far bf16 takes a random model's log-probs from themselves: ``python benchmarks/rounding.py``.

A published shape of the Qwen2 family is computed on the CPU in several ways, and the table has the mean absolute
difference of the log-probs of sampled tokens between each two. ``eager`` rounds to bf16 after every operation, as
transformers' layers do one by one; ``fused`` rounds what goes into a matrix product, what comes out of it and the
residual, as compiled layers and the kernels of engines do. ``other sums`` adds up its matrix products in float32 by
another kernel. Trainer and engine are two such ways; ``transformers`` is the library's own forward pass, uncompiled.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor
from transformers import AutoModelForCausalLM

from corerl_testing.published_shapes import SHAPES, published_config


@dataclass(frozen=True)
class Way:
    """How a forward pass is computed: the dtype of matrix products and residual, and when it rounds."""

    dtype: torch.dtype = torch.bfloat16
    fused: bool = True
    other_sums: bool = False


WAYS = {
    "float32": Way(torch.float32),
    "bf16, fused": Way(),
    "bf16, fused, other sums": Way(other_sums=True),
    "bf16, eager": Way(fused=False),
    "bf16, eager, other sums": Way(fused=False, other_sums=True),
}


@torch.no_grad()
def logits(model: Any, ids: Tensor, way: Way) -> Tensor:
    """(N, V) in float32, of one row of N ids."""
    config, dtype = model.config, way.dtype
    heads, groups = config.num_attention_heads, config.num_attention_heads // config.num_key_value_heads
    width = config.hidden_size // heads
    inner = torch.float32 if way.fused else dtype  # between one matrix product and the next
    rates = config.rope_parameters["rope_theta"] ** -(torch.arange(0, width, 2) / width)
    angles = torch.outer(torch.arange(len(ids)), rates).repeat(1, 2)
    cos, sin = angles.cos().to(inner), angles.sin().to(inner)

    def product(x: Tensor, layer: Any) -> Tensor:
        to = torch.float32 if way.other_sums else dtype
        bias = None if layer.bias is None else layer.bias.to(to)
        return F.linear(x.to(to), layer.weight.to(to), bias).to(dtype)

    def norm(x: Tensor, layer: Any) -> Tensor:
        scaled = x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + config.rms_norm_eps)
        weighted: Tensor = layer.weight.to(inner) * scaled.to(inner)
        return weighted.to(dtype)

    def split(x: Tensor) -> Tensor:
        return x.view(len(ids), -1, width).transpose(0, 1)

    def rotated(x: Tensor) -> Tensor:
        x = x.to(inner)
        first, second = x.chunk(2, -1)
        return (x * cos + torch.cat([-second, first], -1) * sin).to(dtype)

    residual = model.model.embed_tokens.weight[ids].to(dtype)
    hidden = residual
    for layer in model.model.layers:
        attention, mlp = layer.self_attn, layer.mlp
        x = norm(hidden, layer.input_layernorm)
        query = rotated(split(product(x, attention.q_proj)))
        key = rotated(split(product(x, attention.k_proj))).repeat_interleave(groups, 0)
        value = split(product(x, attention.v_proj)).repeat_interleave(groups, 0)
        mixed = F.scaled_dot_product_attention(query[None], key[None], value[None], is_causal=True)[0]
        hidden = residual.to(inner) + product(mixed.transpose(0, 1).flatten(1), attention.o_proj).to(inner)
        residual = hidden.to(dtype)
        x = norm(hidden, layer.post_attention_layernorm)
        gated = F.silu(product(x, mlp.gate_proj).to(inner)) * product(x, mlp.up_proj).to(inner)
        hidden = residual.to(inner) + product(gated.to(dtype), mlp.down_proj).to(inner)
        residual = hidden.to(dtype)
    return product(norm(hidden, model.model.norm), model.lm_head).float()


@torch.no_grad()
def compare(model: Any, ids: Tensor, say: Callable[[str], object]) -> dict[str, Tensor]:
    """By the names of the ways, log-probs of tokens that the float32 model draws."""
    found: dict[str, Tensor] = {}
    tokens = None
    for name, way in WAYS.items():
        say(name)
        log_probs = logits(model, ids, way).log_softmax(-1)
        if tokens is None:
            tokens = log_probs.exp().multinomial(1)[:, 0]
        found[name] = log_probs.gather(1, tokens[:, None])[:, 0]
    assert tokens is not None
    say("bf16, transformers")
    own: Tensor = model(ids[None]).logits[0].float()
    found["bf16, transformers"] = own.log_softmax(-1).gather(1, tokens[:, None])[:, 0]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="qwen2.5-1.5b", choices=[name for name in SHAPES if "2.5" in name])
    parser.add_argument("--tokens", type=int, default=256)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    make: Any = AutoModelForCausalLM.from_config
    model = make(published_config(arguments.shape), dtype=torch.bfloat16)
    ids = torch.randint(model.config.vocab_size, (arguments.tokens,))
    console = Console(width=160)
    found = compare(model, ids, console.print)
    table = Table("", *found, title=f"{arguments.shape}, {arguments.tokens} random tokens: mean absolute differences")
    for name, ours in found.items():
        table.add_row(name, *(f"{float((ours - theirs).abs().mean()):.4f}" for theirs in found.values()))
    console.print(table)


if __name__ == "__main__":
    main()
