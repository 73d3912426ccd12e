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


@dataclasses.dataclass
class KLPenalty:
    """Subtracts ``coef`` · KL from each token's reward; a controller moves ``coef`` after each step.

    Attributes:
        of_vocabulary: the KL type needs log-probs of the whole vocabulary.
        mini_batch_size: prompts at a time, for such a type.
    """

    kl_type: KLType
    controller: KLController
    coef: float
    models: Models
    of_vocabulary: bool
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
        if not self.of_vocabulary:
            assert experience.old_log_probs is not None and experience.ref_log_probs is not None
            return self.kl_type(experience.old_log_probs, experience.ref_log_probs)
        kl = torch.zeros(experience.response_mask.shape)
        for rows in mini_batches(experience.group_ids, self.mini_batch_size):
            part = experience.select(rows)
            reference = self.models.ref_vocabulary_log_probs(part)
            policy = self.models.actor.forward(part.tokens(), ["vocabulary_log_probs"]).vocabulary_log_probs
            assert policy is not None
            terms = self.kl_type(policy, reference)
            kl[rows, : terms.shape[1]] = terms
        return kl


def make_kl_penalty(plan: Plan, models: Models) -> KLPenalty:
    """The penalty of a run, with the coefficient of the checkpoint if there is one."""
    config, kl_type, controller = plan.config, plan.parts.kl_penalty, plan.parts.kl_controller
    assert kl_type is not None and controller is not None
    coef = config.algorithm.kl_ctrl.kl_coef
    if plan.checkpoint is not None and plan.checkpoint.kl_coef is not None:
        coef = plan.checkpoint.kl_coef
    of_vocabulary, mini_batch_size = "logits" in kl_type.entry.needs, config.actor.ppo_mini_batch_size
    return KLPenalty(kl_type.load(), controller.load(), coef, models, of_vocabulary, mini_batch_size)
