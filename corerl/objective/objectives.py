"""Objectives, which a strategy minimises on a micro-batch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from corerl.contracts.experience import Experience
from corerl.contracts.kl_types import KLType
from corerl.contracts.losses import LossOutput, Mean, masked_mean
from corerl.contracts.objective import LossTerm, ObjectiveOutput
from corerl.contracts.policy_losses import PolicyLoss, PolicyLossInputs
from corerl.contracts.token_outputs import OfLogits, Output, TokenOutputs, Wanted
from corerl.contracts.value_losses import ValueLoss, ValueLossInputs
from corerl.errors import RunError


@dataclass(frozen=True)
class PolicyObjective:
    """policy loss + kl_loss_coef · KL(policy || reference) - entropy_coeff · entropy, each aggregated the same way.

    Rollout correction weights of the batch, if any, multiply the terms of the policy loss.

    Attributes:
        of_logits: the policy loss takes the results of this function.
        terms: further ones, from plugins, which are added.
    """

    policy_loss: PolicyLoss
    kl_type: KLType | None = None
    kl_loss_coef: float = 0.0
    entropy_coeff: float = 0.0
    of_logits: OfLogits | None = None
    terms: Sequence[LossTerm] = ()

    @property
    def wanted(self) -> frozenset[Wanted]:
        wanted: set[Wanted] = {"log_probs", *(term.of_logits for term in self.terms if term.of_logits is not None)}
        if self.entropy_coeff > 0:
            wanted.add("entropy")
        if self.of_logits is not None:
            wanted.add(self.of_logits)
        return frozenset(wanted)

    def __call__(self, outputs: TokenOutputs, batch: Experience) -> ObjectiveOutput:
        outputs, batch = _trained_only(outputs, batch)
        log_probs = outputs.log_probs
        assert log_probs is not None and batch.old_log_probs is not None and batch.advantages is not None
        output = _checked(self.policy_loss(policy_loss_inputs(log_probs, batch, outputs.of_logits)))
        terms = output.terms if batch.rollout_weights is None else output.terms * batch.rollout_weights
        loss = pg_loss = _weighted(terms, batch)
        parts = {"pg_loss": pg_loss.detach()}
        if self.kl_type is not None:
            assert batch.ref_log_probs is not None
            kl_loss = _weighted(self.kl_type(log_probs, batch.ref_log_probs), batch)
            loss = loss + self.kl_loss_coef * kl_loss
            parts["kl_loss"] = kl_loss.detach()
        if self.entropy_coeff > 0:
            assert outputs.entropy is not None
            entropy_bonus = _weighted(outputs.entropy, batch)
            loss = loss - self.entropy_coeff * entropy_bonus
            parts["entropy_loss"] = entropy_bonus.detach()
        for term in self.terms:
            further = _weighted(term(outputs, batch), batch)
            loss, parts[term.name] = loss + term.coefficient * further, further.detach()
        if log_probs.requires_grad and not loss.requires_grad:
            raise RunError("a loss gave terms without a gradient: it must compute them from inputs.log_probs")
        metrics = {
            **output.metrics,
            "ppo_kl": masked_mean(batch.old_log_probs - log_probs.detach(), batch.response_mask),
        }
        return ObjectiveOutput(loss, parts, metrics)


@dataclass(frozen=True)
class ValueObjective:
    """The critic's loss."""

    value_loss: ValueLoss
    wanted: ClassVar[frozenset[Output]] = frozenset({"values"})

    def __call__(self, outputs: TokenOutputs, batch: Experience) -> ObjectiveOutput:
        outputs, batch = _trained_only(outputs, batch)
        assert outputs.values is not None and batch.values is not None and batch.returns is not None
        inputs = ValueLossInputs(outputs.values, batch.values, batch.returns, batch.response_mask)
        output = _checked(self.value_loss(inputs))
        loss = _weighted(output.terms, batch)
        predicted = masked_mean(outputs.values.detach(), batch.response_mask)
        return ObjectiveOutput(loss, {"vf_loss": loss.detach()}, {**output.metrics, "vpred_mean": predicted})


def _trained_only(outputs: TokenOutputs, batch: Experience) -> tuple[TokenOutputs, Experience]:
    """Both with 0 at tokens that are not trained, where a loss is undefined."""
    given = {name: batch.at_trained(each) for name, each in outputs._asdict().items() if isinstance(each, Tensor)}
    of_logits = outputs.of_logits and {name: batch.at_trained(each) for name, each in outputs.of_logits.items()}
    return TokenOutputs(**given, of_logits=of_logits), batch.trained_only()


def policy_loss_inputs(
    log_probs: Tensor, batch: Experience, of_logits: Mapping[str, Tensor] | None = None
) -> PolicyLossInputs:
    """The inputs of a policy loss or its token selector for ``batch``."""
    assert batch.old_log_probs is not None and batch.advantages is not None
    return PolicyLossInputs(
        log_probs=log_probs,
        old_log_probs=batch.old_log_probs,
        advantages=batch.advantages,
        response_mask=batch.response_mask,
        rollout_log_probs=batch.rollout_log_probs,
        ref_log_probs=batch.ref_log_probs,
        selected=batch.selected,
        of_logits=of_logits,
    )


def _checked(output: LossOutput) -> LossOutput:
    if not isinstance(output, LossOutput) or not all(isinstance(mean, Mean) for mean in output.metrics.values()):
        given = {name: type(mean).__name__ for name, mean in getattr(output, "metrics", {}).items()}
        raise RunError(
            f"a loss returned {type(output).__name__}{f' with metrics {given}' if given else ''}: it must return "
            "LossOutput(terms, metrics), with metrics of type Mean"
        )
    return output


def _weighted(terms: Tensor, batch: Experience) -> Tensor:
    assert batch.loss_weights is not None
    if terms.shape != batch.response_mask.shape:
        raise RunError(
            f"a loss gave terms of shape {tuple(terms.shape)}, not {tuple(batch.response_mask.shape)}: "
            "there must be one term for each response token, and the aggregation is CoreRL's"
        )
    return torch.where(batch.response_mask, terms * batch.loss_weights.to(terms.dtype), 0.0).sum()
