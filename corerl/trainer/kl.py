"""KL against the reference: the penalty in the reward, and log-probs of the whole vocabulary for the type ``full``."""

import dataclasses

import torch
from torch import Tensor

from corerl.batch.cuts import mini_batches
from corerl.contracts.experience import Experience
from corerl.contracts.kl_controllers import KLController
from corerl.contracts.kl_types import KLType
from corerl.contracts.losses import Mean
from corerl.errors import RunError
from corerl.telemetry.metrics import merge_means
from corerl.trainer.workers import PolicyWorker, ReferenceWorker


@dataclasses.dataclass(frozen=True)
class VocabularyReference:
    """The reference's log-probs of every token of the vocabulary, for a mini-batch at a time.

    Attributes:
        vocabulary: tokens in it.
        max_gb: most memory, in GiB, that they may take: ``ref.max_vocabulary_log_probs_gb``.
    """

    reference: ReferenceWorker
    vocabulary: int
    max_gb: float

    def add(self, mini_batch: Experience) -> None:
        """Set ``ref_vocabulary_log_probs``.

        Raises:
            RunError: they take more than ``max_gb``.
        """
        rows, tokens = mini_batch.response_mask.shape
        gigabytes = rows * tokens * self.vocabulary * 4 / 2**30
        if gigabytes > self.max_gb:
            raise RunError(
                f"log-probs of {rows} × {tokens} tokens over a vocabulary of {self.vocabulary} take {gigabytes:.1f} "
                f"GiB, more than ref.max_vocabulary_log_probs_gb = {self.max_gb:g}: use a smaller "
                "actor.ppo_mini_batch_size, or a KL type of the sampled tokens such as low_var_kl"
            )
        outputs = self.reference.forward(mini_batch.tokens(), ["vocabulary_log_probs"])
        mini_batch.ref_vocabulary_log_probs = outputs.vocabulary_log_probs


@dataclasses.dataclass
class KLPenalty:
    """Subtracts ``coef`` · KL from each token's reward; a controller moves ``coef`` after each step.

    Attributes:
        vocabulary_reference: for a KL type that needs the whole vocabulary, else None.
        mini_batch_size: prompts at a time, for such a type.
    """

    kl_type: KLType
    controller: KLController
    coef: float
    actor: PolicyWorker
    vocabulary_reference: VocabularyReference | None
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
        if self.vocabulary_reference is None:
            assert experience.old_log_probs is not None and experience.ref_log_probs is not None
            return self.kl_type(experience.old_log_probs, experience.ref_log_probs)
        kl = torch.zeros(experience.response_mask.shape)
        for rows in mini_batches(experience.group_ids, self.mini_batch_size):
            part = experience.select(rows)
            self.vocabulary_reference.add(part)
            policy = self.actor.forward(part.tokens(), ["vocabulary_log_probs"]).vocabulary_log_probs
            assert policy is not None and part.ref_vocabulary_log_probs is not None
            terms = self.kl_type(policy, part.ref_vocabulary_log_probs)
            kl[rows, : terms.shape[1]] = terms
        return kl
