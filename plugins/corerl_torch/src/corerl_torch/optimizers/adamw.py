"""AdamW, fused: Loshchilov and Hutter 2019, "Decoupled Weight Decay Regularization", arXiv 1711.05101, algorithm 2."""

from typing import Any

import torch
from torch import nn

from corerl.contracts.config import OptimConfig


def adamw(model: nn.Module, groups: list[dict[str, Any]], config: OptimConfig) -> torch.optim.AdamW:
    """torch's fused kernel, one for all weights of a device mesh."""
    beta1, beta2 = config.betas
    return torch.optim.AdamW(groups, lr=config.lr, betas=(beta1, beta2), eps=config.eps, fused=True)
