"""The experts of a layer: tokens sorted by expert, one grouped matrix product for all experts of each projection.

It replaces the forward of the modules that transformers marks for other implementations of experts: stacked weights
``gate_up_proj`` (or ``up_proj``) and ``down_proj``, (experts, out, in) or transposed, with or without biases. It does
the same mathematics as transformers' own, with four differences. The weight of an expert multiplies the activation
before the down projection, which is narrower than its output. Copies of tokens and sums over experts have one order, so
results repeat. Under autocast the products have its dtype. On CUDA, no value is read back to the host.
"""

from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from corerl_torch.experts.items import Items
from corerl_torch.experts.parallel import ExpertGroup

FAST = (torch.bfloat16, torch.float16)
"""dtypes of torch's grouped products on CUDA; others are multiplied expert by expert"""


def expert_modules(model: Any) -> dict[str, Any]:
    """Name -> module of the experts of every layer that :func:`use` can compute."""
    return {name: module for name, module in model.named_modules() if _is_stacked(module)}


def use(model: Any, group: ExpertGroup | None = None) -> None:
    """Compute the experts of a transformers model by grouped products, in this object alone.

    Args:
        group: the ranks that divide the experts; their weights must be divided already, or be so before a pass.
    """
    for module in expert_modules(model).values():
        module.forward = torch.compiler.disable(_Experts(module, group))  # type: ignore[no-untyped-call]


def _is_stacked(module: Any) -> bool:
    """Whether transformers' marks (``use_experts_implementation``) describe the module."""
    marks = all(hasattr(module, name) for name in ("has_gate", "has_bias", "is_transposed"))
    stacked = marks and getattr(module, "gate_up_proj" if module.has_gate else "up_proj", None) is not None
    return stacked and not getattr(module, "has_post_expert_norm", False)


class _Experts:
    """The forward of one module of experts."""

    def __init__(self, module: Any, group: ExpertGroup | None) -> None:
        self.module, self.group = module, group
        self.silu = type(module)._apply_gate.__module__ == "transformers.integrations.moe" and _is_silu(module)

    def __call__(self, hidden: Tensor, indices: Tensor, weights: Tensor) -> Tensor:
        """(tokens, K) sums over the chosen experts; ``indices`` and ``weights`` are (tokens, top_k)."""
        if self.group is None:
            return self.local(hidden, indices, weights, indices.numel())
        return self.group.exchange(self.local, hidden, indices, weights, self.module.num_experts)

    def local(self, hidden: Tensor, indices: Tensor, weights: Tensor, pairs: int) -> Tensor:
        """The same of the experts that are here; ``pairs`` of the chosen ones are, others have ids behind them."""
        module, each = self.module, indices.shape[1]
        if not pairs:  # zeros, whose gradients reach all weights: other ranks wait for them
            idle = sum(_here(weight).flatten()[:1].sum() for weight in module.parameters(recurse=False))
            return hidden * 0.0 + ((idle + weights.sum()) * 0.0).to(hidden.dtype)
        into = _here(module.gate_up_proj if module.has_gate else module.up_proj)
        out = _here(module.down_proj)
        device = hidden.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else into.dtype
        experts, order = torch.sort(indices.flatten().to(torch.int16), stable=True)
        experts, order = experts[:pairs], order[:pairs]
        whole = pairs == indices.numel()
        items = Items.sorted(order, each) if whole else Items.of(order // each, len(hidden))
        numbers = torch.arange(len(into), dtype=torch.int16, device=hidden.device)
        ends = torch.searchsorted(experts, numbers, right=True, out_int32=True)
        chosen = weights.flatten().index_select(0, order)
        with torch.autocast(device, enabled=False):
            states = items.spread(hidden.to(dtype))
            states = _product(states, into.to(dtype), ends, transposed=module.is_transposed)
            if module.has_bias:
                states = states + self._bias("gate_up_proj_bias", experts, dtype)
            states = _product(self._activated(states, chosen), out.to(dtype), ends, transposed=module.is_transposed)
            if module.has_bias:
                states = states + (self._bias("down_proj_bias", experts, dtype) * chosen[:, None]).to(dtype)
            return items.collect(states).to(hidden.dtype)

    def _bias(self, name: str, experts: Tensor, dtype: torch.dtype) -> Tensor:
        return _here(getattr(self.module, name)).to(dtype)[experts.long()]

    def _activated(self, states: Tensor, weights: Tensor) -> Tensor:
        """The activations times the weights."""
        if self.silu and states.is_cuda and states.dtype in FAST:
            activated: Tensor = _Gated.apply(states, weights)  # type: ignore[no-untyped-call]
            return activated
        module = self.module
        activated = module._apply_gate(states) if module.has_gate else module.act_fn(states)
        return (activated * weights[:, None]).to(states.dtype)


class _Gated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states: Tensor, weights: Tensor) -> Tensor:
        from corerl_torch.experts.kernels import gated

        states = states.contiguous()
        ctx.save_for_backward(states, weights)
        return gated(states, weights)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        from corerl_torch.experts.kernels import gated_gradients

        states, weights = ctx.saved_tensors
        of_states, of_weights = gated_gradients(gradient, states, weights)
        return of_states, of_weights.to(weights.dtype)


def _is_silu(module: Any) -> bool:
    return module.has_gate and not module.has_bias and type(module.act_fn).__name__ in ("SiLU", "SiLUActivation")


def _here(weight: Tensor) -> Tensor:
    """This rank's experts of a weight that ranks divide."""
    return weight.to_local() if isinstance(weight, DTensor) else weight


def _product(states: Tensor, weights: Tensor, ends: Tensor, *, transposed: bool) -> Tensor:
    """(n, out) of (n, in) states, those up to ``ends[e]`` and not of an expert before with the weights of expert e."""
    if not transposed:
        weights = weights.transpose(-2, -1)
    aligned = states.shape[1] % 8 == weights.shape[2] % 8 == 0  # rows of 16 bytes
    if states.is_cuda and states.dtype in FAST and aligned:
        product: Tensor = torch._grouped_mm(states, weights, offs=ends)
        return product
    sizes = torch.nn.functional.pad(ends, (1, 0)).diff().tolist()
    parts = zip(torch.split(states, sizes), weights.unbind(0), strict=True)
    return torch.cat([part @ weight for part, weight in parts])
