"""Operations whose result for a token depends on the token and its prefix alone, bit for bit, on the CPU in float32.

BLAS selects kernels by the number of rows, so a matrix product of one token (decoding) and of a whole batch (training)
differ in their last bits. Here every product has one shape, ``ROWS`` rows, padded with zeros, and sums over keys have
one order. Elementwise functions that torch rounds differently in vectors and in their remainders are composed of exact
ones. The functions apply in generation, old log-probs and updates alike.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from corerl.contracts.config import ModelConfig
from corerl.errors import ConfigError
from corerl.models import compute_dtype
from corerl_torch.bitwise_attention import NAME, attention, keep_mask

ROWS = 16
"""rows of every matrix product"""

ALIGNMENT = 64
"""bytes; kernels of other alignments may sum in another order"""


def check(
    model: ModelConfig,
    device: str,
    *,
    compiled: bool = False,
    ranks_share_rows: bool = False,
    shares_prefixes: bool = False,
) -> None:
    """Raise ConfigError for a device, dtype or option without such operations."""
    for wrong, what in (
        (device != "cpu", f"the device {device}: it needs actor.device=cpu"),
        (compute_dtype(model, device) != torch.float32, f"model.dtype={model.dtype}: it needs fp32"),
        (model.lora_rank > 0, "model.lora_rank: the engine gets merged weights, whose products round differently"),
        (compiled, "the strategy's option compile, which rounds differently"),
        (shares_prefixes, "the strategy's option share_prefixes"),
        (ranks_share_rows, "the strategy's option ulysses_sequence_parallel_size"),
    ):
        if wrong:
            raise ConfigError("trainer.bitwise", f"is not possible with {what}")


def use(model: Any) -> None:
    """Replace the operations of a transformers model, in place.

    Raises:
        ConfigError: a part of the model is not known to be invariant, such as a router of experts or a convolution.
    """
    from transformers import AttentionInterface, AttentionMaskInterface

    config = model.config.get_text_config()
    softcap = getattr(config, "attn_logit_softcapping", None)
    if softcap or any("full" not in kind for kind in getattr(config, "layer_types", None) or ()):
        raise ConfigError("trainer.bitwise", f"the attention of {type(model).__name__} is not the plain causal one")
    for module in model.modules():
        _replace(module)
    AttentionInterface.register(NAME, attention)
    AttentionMaskInterface.register(NAME, keep_mask)
    model.set_attn_implementation(NAME)


def linear(hidden: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``torch.nn.functional.linear`` in blocks of ``ROWS`` rows."""
    apply: Any = _Linear.apply
    product: Tensor = apply(hidden, weight)
    return product if bias is None else product + bias


def silu(hidden: Tensor) -> Tensor:
    """``x / (1 + exp(-x))``: torch's own function rounds differently at the end of a tensor."""
    return hidden / (1 + torch.exp(-hidden))


def gelu_tanh(hidden: Tensor) -> Tensor:
    """The tanh approximation of GELU, from products and ``torch.tanh``."""
    cubic = hidden + 0.044715 * (hidden * hidden * hidden)
    return hidden * 0.5 * (1 + torch.tanh(math.sqrt(2 / math.pi) * cubic))


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "SiLU": silu,
    "SiLUActivation": silu,
    "GELUTanh": gelu_tanh,
    "PytorchGELUTanh": gelu_tanh,
}

ROW_BY_ROW = ("Embedding", "RMSNorm", "LayerNorm", "ReLU", "Dropout", "Identity")
"""ends of names of modules that compute each row by itself"""


def _replace(module: torch.nn.Module) -> None:
    name = type(module).__name__
    if type(module) is torch.nn.Linear:
        module.forward = functools.partial(_forward_linear, module)  # type: ignore[method-assign]
    elif name in ACTIVATIONS:
        module.forward = ACTIVATIONS[name]
    elif not name.endswith(ROW_BY_ROW) and (
        "Activation" in name or "GELU" in name or next(module.parameters(recurse=False), None) is not None
    ):
        raise ConfigError(
            "trainer.bitwise", f"{name} of this model has no version whose bits are those of a token alone"
        )


def _forward_linear(module: torch.nn.Linear, hidden: Tensor) -> Tensor:
    return linear(hidden, module.weight, module.bias)


class _Linear(torch.autograd.Function):
    """Blocks in the forward pass only: gradients need the same bits in the same batch, not in any batch."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(hidden, weight)
        rows = hidden.reshape(-1, hidden.shape[-1])
        blocks = -(-len(rows) // ROWS)
        padded = pad(rows, (0, 0, 0, blocks * ROWS - len(rows))).view(blocks, ROWS, -1)
        products = torch.bmm(aligned(padded), aligned(weight).t().expand(blocks, -1, -1))
        return products.view(blocks * ROWS, -1)[: len(rows)].view(*hidden.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None]:
        hidden, weight = ctx.saved_tensors
        by_hidden, by_weight = ctx.needs_input_grad
        rows = gradients[0].reshape(-1, len(weight))
        return (
            (rows @ weight).view(hidden.shape) if by_hidden else None,
            rows.t() @ hidden.reshape(-1, hidden.shape[-1]) if by_weight else None,
        )


def aligned(tensor: Tensor) -> Tensor:
    """The tensor, contiguous, at an address that torch itself would give it."""
    tensor = tensor.contiguous()
    return tensor.clone() if tensor.data_ptr() % ALIGNMENT else tensor
