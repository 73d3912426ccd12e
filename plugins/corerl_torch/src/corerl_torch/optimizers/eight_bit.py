"""AdamW with moments of 8 bits: about 2 bytes of state for a weight, not 8.

Blocks of ``block_size`` numbers share a float32 scale, the number of the largest size with its sign. A number is one of
256 codes between -1 and 1 (of the second moment: 0 and 1), which lie densest near 0: seven decades, the number of codes
doubling in each. Moments are float32 during the update of their weight. A positive second moment is never rounded to 0,
since the update divides by its root. If ranks divide a weight, each has blocks of its own part.

Checkpoints of ``fsdp`` have the moments themselves, in float32, as those of AdamW: other ranks, with other blocks, read
them. Encoding a block that was decoded gives its codes again, unless its scale is below 1e-38.

Dettmers et al. 2021, "8-bit Optimizers via Block-wise Quantization", arXiv 2110.02861, sections 2.1 and 2.2.
"""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from corerl.contracts.config import OptimConfig
from corerl_torch.optimizers.options import EightBitOptions
from corerl_torch.optimizers.shares import local

DECADES = 7


def adamw_8bit(
    model: nn.Module, groups: list[dict[str, Any]], config: OptimConfig, *, options: EightBitOptions
) -> "AdamW8Bit":
    """Moments of all weights in 8 bits, but those of small ones."""
    return AdamW8Bit(groups, config, options)


class AdamW8Bit(torch.optim.Optimizer):
    """See the module."""

    def __init__(self, groups: list[dict[str, Any]], config: OptimConfig, options: EightBitOptions) -> None:
        self.options = options
        super().__init__(groups, {"lr": config.lr, "betas": tuple(config.betas), "eps": config.eps})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """One update of every weight with a gradient."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, parameter.grad, group)

    def initial_state(self, parameter: Tensor) -> dict[str, Tensor]:
        """For :class:`corerl_torch.optimizers.contract.StartsState`."""
        state = {"step": torch.zeros((), dtype=torch.float32)}
        zeros = torch.zeros_like(local(parameter).detach(), dtype=torch.float32)
        self._keep(state, zeros, zeros.clone())
        return state

    @torch.no_grad()
    def stored(self, parameter: Tensor) -> dict[str, Tensor]:
        """For :class:`corerl_torch.optimizers.contract.StoresState`: in host memory."""
        state = self._state(parameter)
        step, moments = state["step"], _moments(local(parameter), state)
        first, second = (torch.zeros_like(parameter.detach(), dtype=torch.float32).to("cpu") for _ in moments)
        for whole, moment in zip((first, second), moments, strict=True):
            local(whole).copy_(moment)
        return {"step": step, "exp_avg": first, "exp_avg_sq": second}

    @torch.no_grad()
    def take(self, parameter: Tensor, stored: Mapping[str, Tensor]) -> None:
        """For :class:`corerl_torch.optimizers.contract.StoresState`."""
        device = local(parameter).device
        first, second = (local(stored[name]).to(device) for name in ("exp_avg", "exp_avg_sq"))
        self._keep(self._state(parameter), first, second)

    def _state(self, parameter: Tensor) -> dict[str, Tensor]:
        state: dict[str, Tensor] = self.state[parameter]
        if not state:
            state.update(self.initial_state(parameter))
        return state

    def _update(self, whole: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        state, (beta1, beta2) = self._state(whole), group["betas"]
        parameter, gradient = local(whole), local(gradient)
        first, second = _moments(parameter, state)
        state["step"] += 1
        step = float(state["step"])
        gradient = gradient.float()
        first.mul_(beta1).add_(gradient, alpha=1 - beta1)
        second.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        scale = (second.sqrt() / (1 - beta2**step) ** 0.5).add_(group["eps"])
        parameter.mul_(1 - group["lr"] * group["weight_decay"])
        parameter.add_(first / scale, alpha=-group["lr"] / (1 - beta1**step))
        self._keep(state, first, second)

    def _keep(self, state: dict[str, Tensor], first: Tensor, second: Tensor) -> None:
        if first.numel() < self.options.min_8bit_size:
            state["exp_avg"], state["exp_avg_sq"] = first, second
            return
        for name, moment, signed in (("first", first, True), ("second", second, False)):
            state[f"{name}_codes"], state[f"{name}_scales"] = encoded(moment, self.options.block_size, signed)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """torch's own method turns codes into the weights' dtype; here they keep theirs."""
        super().load_state_dict(dict(state_dict))
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        for number, stored in state_dict["state"].items():
            state = self.state[parameters[number]]
            for name, value in stored.items():
                state[name] = value.to(parameters[number].device if value.ndim else value.device, copy=True)


def _moments(parameter: Tensor, state: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Both moments in float32, in the weight's shape."""
    if "exp_avg" in state:
        return state["exp_avg"], state["exp_avg_sq"]
    first, second = (
        decoded(state[f"{name}_codes"], state[f"{name}_scales"], signed).flatten()[: parameter.numel()]
        for name, signed in (("first", True), ("second", False))
    )
    return first.view_as(parameter), second.view_as(parameter)


def encoded(values: Tensor, block_size: int, signed: bool) -> tuple[Tensor, Tensor]:
    """Codes, uint8 of shape (blocks, block_size), and the float32 scales (blocks,) of a tensor in float32."""
    flat = values.flatten()
    blocks = nn.functional.pad(flat, (0, -len(flat) % block_size)).view(-1, block_size)
    scales = blocks.gather(1, blocks.abs().argmax(dim=1, keepdim=True))
    table = codes(signed).to(values.device)
    tiny = torch.finfo(torch.float32).tiny
    shares = blocks / torch.where(scales.abs() < tiny, tiny, scales)
    found = torch.bucketize(shares, (table[1:] + table[:-1]) / 2)
    if not signed:
        found = torch.where(blocks > 0, found.clamp(min=1), found)
    return found.to(torch.uint8), scales[:, 0]


def decoded(found: Tensor, scales: Tensor, signed: bool) -> Tensor:
    """Float32 values of :func:`encoded`, in blocks."""
    return codes(signed).to(found.device)[found.int()] * scales[:, None]


@cache
def codes(signed: bool) -> Tensor:
    """The 256 codes, rising."""
    positive = [torch.ones(1)]
    for decade in range(DECADES):
        bounds = torch.linspace(0.1, 1, (1 if signed else 2) * 2**decade + 1)
        positive.append(10.0 ** (decade + 1 - DECADES) * (bounds[1:] + bounds[:-1]) / 2)
    found = torch.cat(positive)
    both = [found, torch.zeros(1), -found[1:]] if signed else [found, torch.zeros(1)]
    return torch.cat(both).sort().values
