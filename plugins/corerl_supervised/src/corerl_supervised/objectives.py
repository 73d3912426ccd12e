"""Objectives of pairs and of scored responses, which a training strategy minimises on a micro-batch.

A batch holds the two rows of a pair with equal ``unit_ids``, so that a micro-batch has both. Its columns are:

==================  ============================================================================================
``advantages``      (B, T), 1 on the trained tokens of a preferred response, -1 on those of the other; each divided by
                    the number of these tokens with ``length_normalize``
``rewards``         (B, T), 0 but in the first column: the margin of the pair, or the score of a scored response
``loss_weights``    (B, T), of the preferred row of a pair: its share of the loss, spread evenly over its trained tokens
``ref_log_probs``   (B, T) of the reference, or None
==================  ============================================================================================
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from corerl.contracts.experience import Experience
from corerl.contracts.losses import Mean
from corerl.contracts.objective import ObjectiveOutput
from corerl.contracts.token_outputs import Output, TokenOutputs
from corerl_supervised.contract import PreferenceInputs, PreferenceLoss


@dataclass(frozen=True)
class PreferenceObjective:
    """preference loss + sft_coef · NLL of the preferred response + center_coef · (s_w + s_l)², a mean over pairs.

    Sums over tokens are float64: the difference of two sums of hundreds of log-probs is small.

    Attributes:
        output: ``log_probs``: s = Σ_t (log π - log π_ref), or without the reference; ``values``: s is a reward.
        sft_coef: of -log π(y_w|x) / |y_w| (Pang et al. 2024, arXiv 2404.19733, equation 1).
        center_coef: of the square of the sum of both rewards, which keeps them around 0 (Eisenstein et al. 2023, arXiv
            2312.09244, section 2.2).
    """

    loss: PreferenceLoss
    output: Literal["log_probs", "values"] = "log_probs"
    sft_coef: float = 0.0
    center_coef: float = 0.0

    @property
    def wanted(self) -> frozenset[Output]:
        return frozenset({self.output})

    def __call__(self, outputs: TokenOutputs, batch: Experience) -> ObjectiveOutput:
        values: Tensor | None = getattr(outputs, self.output)
        assert values is not None and batch.advantages is not None and batch.loss_weights is not None
        assert batch.rewards is not None and batch.unit_ids is not None
        scores = values.double() if batch.ref_log_probs is None else values.double() - batch.ref_log_probs.double()
        scores = (batch.at_trained(scores) * batch.at_trained(batch.advantages)).sum(1)
        units, places = torch.unique(batch.unit_ids, return_inverse=True)

        def of_units(rows: Tensor) -> Tensor:
            return rows.new_zeros(len(units)).index_add(0, places, rows)

        is_chosen = batch.advantages.sum(1) > 0
        chosen, rejected = of_units(scores * is_chosen), of_units(-scores * ~is_chosen)
        weights, margins = of_units(batch.loss_weights.sum(1)), of_units(batch.rewards[:, 0].double())
        terms = self.loss(PreferenceInputs(chosen, rejected, margins))
        if self.center_coef:
            terms = terms + self.center_coef * (chosen + rejected) ** 2
        loss = (terms * weights).sum()
        parts = {}
        if self.sft_coef:
            nll = -(batch.at_trained(values).double() * batch.loss_weights).sum()
            loss, parts["sft_loss"] = loss + self.sft_coef * nll, nll.detach()
        trained = batch.response_mask.any(1)
        whole = (of_units(1.0 * (trained & is_chosen)) > 0) & (of_units(1.0 * (trained & ~is_chosen)) > 0)
        metrics = _measured(chosen.detach(), rejected.detach(), whole)
        return ObjectiveOutput(loss, {"loss": loss.detach(), **parts}, metrics)


def _measured(chosen: Tensor, rejected: Tensor, whole: Tensor) -> dict[str, Mean]:
    """Means over the pairs with both rows here; equal scores count half in the accuracy."""
    difference, count = chosen - rejected, whole.sum()
    right = (difference > 0) + 0.5 * (difference == 0)
    named = {"accuracy": right, "margin": difference, "chosen": chosen, "rejected": rejected}
    return {name: Mean((each * whole).sum(), count) for name, each in named.items()}


@dataclass(frozen=True)
class PointwiseObjective:
    """Squared error, or cross-entropy of σ(reward), between the reward and the score of the row; a mean over rows."""

    kind: Literal["squared_error", "cross_entropy"] = "squared_error"

    @property
    def wanted(self) -> frozenset[Output]:
        return frozenset({"values"})

    def __call__(self, outputs: TokenOutputs, batch: Experience) -> ObjectiveOutput:
        assert outputs.values is not None and batch.rewards is not None and batch.loss_weights is not None
        rewards, scores, weights = (each[:, 0].double() for each in (outputs.values, batch.rewards, batch.loss_weights))
        if self.kind == "squared_error":
            terms = (rewards - scores) ** 2
        else:
            terms = binary_cross_entropy_with_logits(rewards, scores, reduction="none")
        loss, counted = (terms * weights).sum(), weights > 0
        error = (rewards if self.kind == "squared_error" else rewards.sigmoid()).detach() - scores
        count = counted.sum()
        metrics = {
            "abs_error": Mean((error.abs() * counted).sum(), count),
            "reward": Mean((rewards.detach() * counted).sum(), count),
        }
        return ObjectiveOutput(loss, {"loss": loss.detach()}, metrics)
