"""AdamW, fused: Loshchilov and Hutter 2019, "Decoupled Weight Decay Regularization", arXiv 1711.05101, algorithm 2."""

from typing import Any

import torch
from torch import nn

from corerl.contracts.config import OptimConfig
from corerl_torch.optimizers.options import AdamWOptions
from corerl_torch.optimizers.partly_on_cpu import PartlyOnCpu


def adamw(
    model: nn.Module, groups: list[dict[str, Any]], config: OptimConfig, *, options: AdamWOptions | None = None
) -> torch.optim.AdamW:
    """torch's fused kernel, one for all weights of a device mesh; with ``offload_fraction``, a part on the CPU."""
    beta1, beta2 = config.betas
    values: dict[str, Any] = {"lr": config.lr, "betas": (beta1, beta2), "eps": config.eps, "fused": True}
    if options is not None and options.offload_fraction > 0:
        return PartlyOnCpu(groups, options.offload_fraction, **values)
    return torch.optim.AdamW(groups, **values)
