"""The option ``bitwise``: the model of vLLM computes with the operations that a training strategy uses.

The model is that of transformers (``model_impl``), of which vLLM replaces linear layers, norms and gated activations.
Their operations are replaced here by those of ``corerl_engine.invariant``, and the attention reads keys and values that
these functions keep in vLLM's cache in an order of their own.
"""

import functools
import os
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear as torch_linear

from corerl_vllm_engine import BITWISE

ACTIVATIONS = {"SiluAndMul": "silu", "SiLU": "silu", "SiLUActivation": "silu"}
"""class of a module to the function of its gate"""

KINDS = ("Norm", "Activation", "AndMul")

ROW_BY_ROW = ("Embedding", "Dropout", "Identity", "ParallelLMHead", "Attention", "LogitsProcessor")


def keep_plain_weights() -> None:
    """Before a model is loaded on the CPU: vLLM packs no weights for its kernels."""
    if BITWISE in os.environ:
        from vllm.model_executor.layers import utils

        def plain(layer: Any, remove_weight: bool) -> None:
            layer.cpu_linear = torch_linear

        utils.dispatch_cpu_unquantized_gemm = plain


def use(model: Any, layers: Mapping[str, Any], device: str) -> None:
    """Replace the operations of a loaded model, before its CUDA graphs are recorded.

    Args:
        layers: vLLM's layers with a cache, by name; they need not be modules of the model.

    Raises:
        RuntimeError: a part of the model has no invariant version.
    """
    if device == "cuda":
        from corerl_engine.invariant import on_cuda as invariant
    else:
        from corerl_engine.invariant import on_cpu as invariant
    for module in model.modules():
        _replace(module, invariant)
    for name, layer in layers.items():
        if type(layer).__name__ != "Attention":
            raise RuntimeError(f"rollout.options.bitwise: {name} ({type(layer).__name__}) has no invariant version")
        layer.impl.do_kv_cache_update = _store
        layer.impl.forward = functools.partial(_attend, invariant, layer.impl.scale)


def _replace(module: Any, invariant: ModuleType) -> None:
    name = type(module).__name__
    method = type(getattr(module, "quant_method", None)).__name__
    if method in ("UnquantizedLinearMethod", "UnquantizedEmbeddingMethod"):
        module.quant_method.apply = functools.partial(_linear, invariant)
    elif name in ("RMSNorm", "TPAwareRMSNorm"):
        module.forward = functools.partial(_norm, module, invariant)
    elif name == "SiluAndMul":
        module.forward = functools.partial(_gated, invariant)
    elif name in ACTIVATIONS:
        module.forward = getattr(invariant, ACTIVATIONS[name])
    elif not name.endswith(ROW_BY_ROW) and (
        any(part in name for part in KINDS) or next(module.parameters(recurse=False), None) is not None
    ):
        raise RuntimeError(f"rollout.options.bitwise: {name} of this model has no invariant version")


def _linear(invariant: ModuleType, layer: Any, hidden: Tensor, bias: Tensor | None = None) -> Tensor:
    product: Tensor = invariant.linear(hidden, layer.weight, bias)
    return product


def _norm(module: Any, invariant: ModuleType, hidden: Tensor) -> Tensor:
    normed: Tensor = invariant.rms_norm(hidden, module.weight, module.variance_epsilon)
    return normed


def _gated(invariant: ModuleType, both: Tensor) -> Tensor:
    gate, up = both.chunk(2, dim=-1)
    product: Tensor = invariant.silu(gate) * up
    return product


def _slots(cache: Tensor, heads: int, size: int) -> Tensor:
    """(slots, 2, heads, head size): vLLM's cache of a layer in an order of our own.

    Raises:
        RuntimeError: the cache has holes.
    """
    slots = cache.numel() // (2 * heads * size)
    dense = sum((count - 1) * step for count, step in zip(cache.shape, cache.stride(), strict=True)) + 1
    if dense != cache.numel():
        raise RuntimeError(f"rollout.options.bitwise: this vLLM's cache has holes: {cache.shape}, {cache.stride()}")
    return cache.as_strided((slots, 2, heads, size), (2 * heads * size, heads * size, size, 1))


def _store(layer: Any, key: Tensor, value: Tensor, kv_cache: Tensor, slot_mapping: Tensor) -> None:
    """Write keys and values (tokens, heads, head size) of the tokens with a slot."""
    count = len(slot_mapping)
    states = torch.stack([key[:count], value[:count]], dim=1)
    slots = _slots(kv_cache, *key.shape[1:])
    slots[slot_mapping.clamp(min=0)] = states  # of a filler token (-1): block 0 belongs to no request


def _attend(
    invariant: ModuleType,
    scale: float,
    layer: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    kv_cache: Tensor,
    attn_metadata: Any,
    output: Tensor,
    output_scale: Any = None,
    output_block_scale: Any = None,
) -> Tensor:
    """As vLLM calls ``AttentionImpl.forward``; without metadata, vLLM measures memory."""
    if attn_metadata is None:
        return output.fill_(0)
    slots = _slots(kv_cache, *key.shape[1:])
    count = attn_metadata.num_actual_tokens
    output[:count] = invariant.paged_attention(
        query[:count],
        slots,
        attn_metadata.block_table,
        len(slots) // kv_cache.shape[0],  # slots of a block: the first dimension is that of blocks
        attn_metadata.query_start_loc,
        attn_metadata.seq_lens,
        attn_metadata.max_query_len,
        scale,
    )
    return output


def use_in(worker: Any) -> None:
    """:func:`use` in a worker of vLLM that has loaded its model."""
    layers = worker.vllm_config.compilation_config.static_forward_context
    use(worker.model_runner.get_model(), layers, worker.device.type)
