"""Training outside of a run: gradients and optimizer steps as separate calls, with AdamW's values of each step."""

import math
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch

from corerl.contracts.experience import Experience
from corerl.contracts.objective import Objective
from corerl.errors import NonFiniteError
from corerl_torch.optimizer import clip_gradients, gradient_norm
from corerl_torch.sums import Numbers


@runtime_checkable
class SteppedStrategy(Protocol):
    """A training strategy whose gradients add up until a step of its own.

    Attributes:
        model: holds the parameters, whose ``grad`` are the gradients.
        optimizer: AdamW over the trained parameters.
    """

    model: Any
    optimizer: torch.optim.Optimizer

    def accumulate(self, mini_batch: Experience, objective: Objective) -> Numbers:
        """Add the gradient of a mini-batch's loss, cut into micro-batches; returns the sums over them."""
        ...


@dataclass(frozen=True)
class AdamStep:
    """AdamW's values of one step; weight decay is decoupled and acts on every trained parameter.

    Attributes:
        max_norm: largest gradient norm; 0: no clipping.
    """

    lr: float
    betas: tuple[float, float]
    eps: float
    weight_decay: float = 0.0
    max_norm: float = 0.0


def take_step(strategy: SteppedStrategy, step: AdamStep) -> float:
    """Clip the gradients, take an AdamW step, and drop the gradients; returns their norm before clipping.

    Raises:
        NonFiniteError: the norm is not finite. Weights and optimizer are unchanged; the gradients are dropped.
    """
    optimizer = strategy.optimizer
    parameters = [each for group in optimizer.param_groups for each in group["params"] if each.grad is not None]
    norm = gradient_norm(parameters)
    size = float(norm)
    if not math.isfinite(size):
        optimizer.zero_grad(set_to_none=True)
        raise NonFiniteError(f"gradient norm {size}: the optimizer step was not taken", [])
    if step.max_norm > 0:
        clip_gradients(parameters, step.max_norm, norm)
    values = {"lr": step.lr, "betas": step.betas, "eps": step.eps, "weight_decay": step.weight_decay}
    for group in optimizer.param_groups:
        group.update(values)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return size
