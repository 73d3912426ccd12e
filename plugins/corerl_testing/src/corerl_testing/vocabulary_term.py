"""The KL loss of a KL type that takes the whole vocabulary, on outputs in any dtype."""

from dataclasses import dataclass

import torch
from torch import Tensor

from corerl.contracts.experience import Experience
from corerl.contracts.kl_types import KLType
from corerl.contracts.token_outputs import OfLogits, TokenOutputs, Wanted
from corerl.objective import PolicyObjective
from corerl_torch.vocabulary import COLUMN


@dataclass(eq=False)
class VocabularyTerm:
    """See :class:`corerl.contracts.objective.LossTerm`; the reference is the batch's column of a run."""

    kl_type: KLType
    coefficient: float
    name: str = "kl_loss"
    of_logits: OfLogits | None = None

    def __call__(self, outputs: TokenOutputs, batch: Experience) -> Tensor:
        policy = outputs.vocabulary_log_probs
        assert policy is not None
        lengths = batch.response_lengths[:, None]
        real = torch.arange(policy.shape[1], device=policy.device) < lengths
        values = batch.columns[COLUMN].values.to(policy.dtype)
        return self.kl_type(policy, torch.zeros_like(policy).index_put((real,), values))


class VocabularyObjective(PolicyObjective):
    """An objective with such a term, of a strategy's output ``vocabulary_log_probs``."""

    @property
    def wanted(self) -> frozenset[Wanted]:
        return super().wanted | {"vocabulary_log_probs"}
