"""The objective of supervised fine-tuning."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from corerl.contracts.experience import Experience
from corerl.contracts.objective import ObjectiveOutput
from corerl.contracts.token_outputs import Output, TokenOutputs


@dataclass(frozen=True)
class SupervisedObjective:
    """Cross-entropy of the response tokens."""

    wanted: ClassVar[frozenset[Output]] = frozenset({"log_probs"})

    def __call__(self, outputs: TokenOutputs, batch: Experience) -> ObjectiveOutput:
        assert outputs.log_probs is not None and batch.loss_weights is not None
        terms = -outputs.log_probs * batch.loss_weights.to(outputs.log_probs.dtype)
        loss = torch.where(batch.response_mask, terms, 0.0).sum()
        return ObjectiveOutput(loss, {"loss": loss.detach()})
