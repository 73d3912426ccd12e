"""The KL penalty: KL against the reference, in the reward."""

import dataclasses

import torch
from torch import Tensor

from corerl.batch.cuts import mini_batches
from corerl.contracts.experience import Experience
from corerl.contracts.kl_controllers import KLController
from corerl.contracts.kl_types import KLType
from corerl.contracts.losses import Mean
from corerl.telemetry.metrics import merge_means
from corerl.trainer.models import Models
from corerl.trainer.plan import Plan
from corerl_torch.vocabulary import NAME, ReferenceLogProbs, VocabularyKL, reference_log_probs


@dataclasses.dataclass
class KLPenalty:
    """Subtracts ``coef`` · KL from each token's reward; a controller moves ``coef`` after each step.

    Attributes:
        reference: of a KL type that takes the whole vocabulary, or None.
        mini_batch_size: prompts at a time, for such a type.
    """

    kl_type: KLType
    controller: KLController
    coef: float
    models: Models
    reference: ReferenceLogProbs | None
    mini_batch_size: int

    def subtract(self, experience: Experience) -> dict[str, float]:
        """Change ``experience.rewards``; returns the mean KL over responses and this step's coefficient."""
        mask = experience.response_mask
        kl = torch.where(mask, self._kl(experience), 0.0)
        assert experience.rewards is not None
        experience.rewards = experience.rewards - self.coef * kl
        lengths = mask.sum(1)
        mean = Mean((kl.sum(1) / lengths.clamp(min=1)).sum(), (lengths > 0).sum())
        metrics = {"reward_kl_penalty": mean, "reward_kl_penalty_coeff": Mean(self.coef, 1)}
        self.coef = self.controller(self.coef, mean.value, int(mean.count))
        return merge_means([metrics], "actor")

    def _kl(self, experience: Experience) -> Tensor:
        """(B, T) KL terms."""
        if self.reference is None:
            assert experience.old_log_probs is not None and experience.ref_log_probs is not None
            return self.kl_type(experience.old_log_probs, experience.ref_log_probs)
        kl = torch.zeros(experience.response_mask.shape)
        for rows in mini_batches(experience.group_ids, self.mini_batch_size):
            part = experience.select(rows)
            self.reference.add(part)
            wanted = VocabularyKL(self.kl_type, self.reference.temperature)
            found = self.models.actor.forward(part.tokens(), [wanted]).of_logits
            assert found is not None
            terms = found[NAME]
            kl[rows, : terms.shape[1]] = terms
        return kl


def make_kl_penalty(plan: Plan, models: Models) -> KLPenalty:
    """The penalty of a run, with the coefficient of the checkpoint if there is one."""
    config, kl_type, controller = plan.config, plan.parts.kl_penalty, plan.parts.kl_controller
    assert kl_type is not None and controller is not None
    coef = config.algorithm.kl_ctrl.kl_coef
    if plan.checkpoint is not None and plan.checkpoint.kl_coef is not None:
        coef = plan.checkpoint.kl_coef
    reference = reference_log_probs(plan, models) if "logits" in kl_type.entry.needs else None
    return KLPenalty(kl_type.load(), controller.load(), coef, models, reference, config.actor.ppo_mini_batch_size)
