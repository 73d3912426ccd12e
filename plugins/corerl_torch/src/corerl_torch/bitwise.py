"""``bitwise``: log-probs of a strategy that equal those of an engine, to the last bit.

Both replace the operations of the model by those of :mod:`corerl_torch.invariant`, whose result for a token depends on
the token and its prefix alone. They apply in generation, old log-probs and updates alike.
"""

import copy
import functools
import os
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from corerl.contracts.config import ModelConfig
from corerl.errors import ConfigError
from corerl.models import compute_dtype
from corerl_torch.invariant import on_cpu

NAME = "corerl_bitwise"

KEY = "trainer.bitwise"

ACTIVATIONS = {
    "SiLU": "silu",
    "SiLUActivation": "silu",
    "GELUTanh": "gelu_tanh",
    "PytorchGELUTanh": "gelu_tanh",
}
"""class of a module to the name of the invariant function"""

ROW_BY_ROW = ("Embedding", "ReLU", "Dropout", "Identity")
"""ends of names of modules that compute each row by itself"""

ALSO_ON_CPU = ("RMSNorm", "LayerNorm")

WORKSPACE = ("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
"""cuBLAS then gives the same bits in each run, which torch's deterministic mode requires"""


def check(
    model: ModelConfig,
    device: str,
    *,
    compiled: bool = False,
    sharing: str = "",
    shares_prefixes: bool = False,
    packed: bool = True,
    on_cuda: bool = True,
) -> None:
    """Raise ConfigError for a device, dtype or option without such operations.

    Args:
        sharing: key of the option by which ranks share rows; "" if none do.
        on_cuda: the engine or strategy has invariant operations on a GPU.
    """
    dtype = compute_dtype(model, device)
    for wrong, what in (
        (device not in ("cpu", "cuda"), f"the device {device}: it needs actor.device=cpu or cuda"),
        (device == "cuda" and not on_cuda, "this engine or strategy on a GPU: vllm with fsdp can"),
        (device == "cpu" and dtype != torch.float32, f"model.dtype={model.dtype} on the CPU: it needs fp32"),
        (device == "cuda" and dtype != torch.bfloat16, f"model.dtype={model.dtype} on a GPU: it needs bf16"),
        (model.lora_rank > 0, "model.lora_rank: the products of adapters, and of merged weights, round differently"),
        (compiled, "the strategy's option compile, which rounds differently"),
        (shares_prefixes, "the strategy's option share_prefixes"),
        (bool(sharing), f"the strategy's option {sharing.rpartition('.')[2]}"),
        (device == "cuda" and not packed, "the strategy's option use_remove_padding=false on a GPU"),
    ):
        if wrong:
            raise ConfigError(KEY, f"is not possible with {what}")


def operations(device: str) -> ModuleType:
    """The module of invariant operations of a device; that of CUDA needs triton."""
    if device == "cpu":
        return on_cpu
    from corerl_torch.invariant import on_cuda

    return on_cuda


def use(model: Any, device: str) -> None:
    """Replace the operations of a transformers model, in place; on CUDA, torch becomes deterministic.

    Raises:
        ConfigError: a part of the model is not known to be invariant, such as a router of experts or a convolution.
    """
    from transformers import AttentionInterface, AttentionMaskInterface

    config = model.config.get_text_config()
    softcap = getattr(config, "attn_logit_softcapping", None)
    if softcap or any("full" not in kind for kind in getattr(config, "layer_types", None) or ()):
        raise ConfigError(KEY, f"the attention of {type(model).__name__} is not the plain causal one")
    if device == "cuda":
        if config.vocab_size % 4:
            raise ConfigError(KEY, f"a vocabulary of {config.vocab_size} tokens, no multiple of 4, on a GPU")
        os.environ.setdefault(*WORKSPACE)
        torch.use_deterministic_algorithms(True)
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    invariant = operations(device)
    for module in model.modules():
        _replace(module, invariant)
    AttentionInterface.register(NAME, attention)
    AttentionMaskInterface.register(NAME, keep_mask)
    model.set_attn_implementation(NAME)


def keep_mask(*arguments: Any, attention_mask: Tensor | None = None, **others: Any) -> Tensor | None:
    """The (rows, columns) mask itself, true on tokens: it gives the first column of each row."""
    return attention_mask


def attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    cu_seq_lens_q: Tensor | None = None,
    max_length_q: int = 0,
    **others: Any,
) -> tuple[Tensor, None]:
    """As transformers calls it.

    Args:
        query: (rows, heads, queries, head size), of the last columns; key and value may have fewer heads.
        attention_mask: (rows, columns) bool, false on padding on the left; None: no padding there.
        cu_seq_lens_q, max_length_q: (packed rows + 1,) starts of the rows that are packed into one, and the end; tokens
            of the longest.

    Returns:
        (rows, queries, heads, head size).
    """
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    if query.is_cuda:
        assert cu_seq_lens_q is not None, "rows are packed on CUDA"
        plain = functools.partial(_plain, bounds=cu_seq_lens_q, longest=max_length_q, scale=scale)
        on_cuda = operations("cuda")
        return on_cuda.packed_attention(query, key, value, cu_seq_lens_q, max_length_q, scale, plain), None
    if cu_seq_lens_q is not None:
        return on_cpu.packed_attention(query, key, value, cu_seq_lens_q, scale).transpose(1, 2), None
    first = None if attention_mask is None else attention_mask.to(torch.int8).argmax(dim=1)
    return on_cpu.padded_attention(query, key, value, first, scale).transpose(1, 2), None


def _plain(query: Tensor, key: Tensor, value: Tensor, *, bounds: Tensor, longest: int, scale: float) -> Tensor:
    from corerl_torch import packed_attention

    packed_attention.find_kernel()
    return packed_attention.packed_attention(
        torch.nn.Module(), query, key, value, None, cu_seq_lens_q=bounds, max_length_q=longest, scaling=scale
    )[0]


def _replace(module: torch.nn.Module, invariant: ModuleType) -> None:
    name = type(module).__name__
    if type(module) is torch.nn.Linear:
        module.forward = functools.partial(_forward_linear, module, invariant.linear)  # type: ignore[method-assign]
    elif name in ACTIVATIONS:
        module.forward = getattr(invariant, ACTIVATIONS[name])
    elif name.endswith(ALSO_ON_CPU) and invariant is on_cpu:
        return
    elif name.endswith("RMSNorm") and _is_plain_norm(module):
        module.forward = functools.partial(_forward_norm, module, invariant.rms_norm)
    elif not name.endswith(ROW_BY_ROW) and (
        "Activation" in name or "GELU" in name or next(module.parameters(recurse=False), None) is not None
    ):
        raise ConfigError(KEY, f"{name} of this model has no version whose bits are those of a token alone")


def _forward_linear(module: torch.nn.Linear, linear: Callable[..., Tensor], hidden: Tensor) -> Tensor:
    return linear(hidden, module.weight, module.bias)


def _forward_norm(module: Any, rms_norm: Callable[..., Tensor], hidden: Tensor) -> Tensor:
    return rms_norm(hidden, module.weight, eps_of(module))


def eps_of(norm: Any) -> float:
    """The small constant of a norm of transformers."""
    return float(norm.variance_epsilon if hasattr(norm, "variance_epsilon") else norm.eps)


def _is_plain_norm(norm: Any) -> bool:
    """Whether the module multiplies by its weight, and not by a function of the weight."""
    if not hasattr(norm, "weight") or not (hasattr(norm, "variance_epsilon") or hasattr(norm, "eps")):
        return False
    copied = copy.copy(norm)
    copied._parameters = {"weight": torch.nn.Parameter(torch.linspace(0.5, 2.0, norm.weight.numel()))}
    hidden = torch.linspace(-1.0, 3.0, 2 * norm.weight.numel()).view(2, -1)
    expected = on_cpu.rms_norm(hidden, copied.weight, eps_of(norm))
    return torch.allclose(copied(hidden), expected, atol=1e-5)
