"""Objectives: what a strategy minimises on a micro-batch."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from corerl.batch.experience import Experience
from corerl.errors import RunError
from corerl.registry.kl_types import KLType
from corerl.registry.policy_losses import Mean, PolicyLoss, PolicyLossInputs


@dataclass(frozen=True)
class ObjectiveOutput:
    """One micro-batch's share.

    Attributes:
        loss: scalar to be minimised; the mini-batch's loss is the sum over its micro-batches.
        parts: named scalars that add up over the micro-batches in the same way.
        metrics: means over any partition.
    """

    loss: Tensor
    parts: Mapping[str, Tensor] = field(default_factory=dict)
    metrics: Mapping[str, Mean] = field(default_factory=dict)


class Objective(Protocol):
    """Maps (b, T) log-probs, and entropies where ``needs_entropy``, to a loss; ``batch`` has its ``loss_weights``."""

    @property
    def needs_entropy(self) -> bool: ...

    def __call__(self, log_probs: Tensor, entropy: Tensor | None, batch: Experience) -> ObjectiveOutput: ...


@dataclass(frozen=True)
class SupervisedObjective:
    """Cross-entropy of the response tokens."""

    needs_entropy: bool = False

    def __call__(self, log_probs: Tensor, entropy: Tensor | None, batch: Experience) -> ObjectiveOutput:
        loss = _weighted(-log_probs, batch)
        return ObjectiveOutput(loss, {"loss": loss.detach()})


@dataclass(frozen=True)
class PolicyObjective:
    """policy loss + kl_loss_coef · KL(policy || reference) - entropy_coeff · entropy, each aggregated the same way."""

    policy_loss: PolicyLoss
    kl_type: KLType | None = None
    kl_loss_coef: float = 0.0
    entropy_coeff: float = 0.0

    @property
    def needs_entropy(self) -> bool:
        return self.entropy_coeff > 0

    def __call__(self, log_probs: Tensor, entropy: Tensor | None, batch: Experience) -> ObjectiveOutput:
        assert batch.old_log_probs is not None and batch.advantages is not None
        output = self.policy_loss(
            PolicyLossInputs(
                log_probs, batch.old_log_probs, batch.advantages, batch.response_mask, batch.rollout_log_probs
            )
        )
        loss = pg_loss = _weighted(output.terms, batch)
        parts = {"pg_loss": pg_loss.detach()}
        if self.kl_type is not None:
            assert batch.ref_log_probs is not None
            kl_loss = _weighted(self.kl_type(log_probs, batch.ref_log_probs), batch)
            loss = loss + self.kl_loss_coef * kl_loss
            parts["kl_loss"] = kl_loss.detach()
        if entropy is not None and self.needs_entropy:
            entropy_bonus = _weighted(entropy, batch)
            loss = loss - self.entropy_coeff * entropy_bonus
            parts["entropy_loss"] = entropy_bonus.detach()
        metrics = {
            **output.metrics,
            "ppo_kl": masked_mean(batch.old_log_probs - log_probs.detach(), batch.response_mask),
        }
        return ObjectiveOutput(loss, parts, metrics)


def masked_mean(values: Tensor, mask: Tensor) -> Mean:
    """Sum and count of ``values`` where ``mask`` is true."""
    return Mean(torch.where(mask, values, 0.0).sum(), mask.sum())


def _weighted(terms: Tensor, batch: Experience) -> Tensor:
    assert batch.loss_weights is not None
    if terms.shape != batch.response_mask.shape:
        raise RunError(
            f"a loss gave terms of shape {tuple(terms.shape)}, not {tuple(batch.response_mask.shape)}: "
            "there must be one term for each response token, and the aggregation is CoreRL's"
        )
    return torch.where(batch.response_mask, terms * batch.loss_weights.to(terms.dtype), 0.0).sum()
