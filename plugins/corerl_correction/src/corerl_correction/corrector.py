"""``algorithm.rollout_correction`` in a step: on the whole batch, or in bypass mode on each mini-batch."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from corerl.contracts.config import RolloutCorrectionConfig
from corerl.contracts.experience import Experience
from corerl.contracts.facts import Claims
from corerl.contracts.losses import Mean, Measure
from corerl.contracts.rollout_correctors import Correction
from corerl_correction.claims import claims
from corerl_correction.correction import check_agreement, correct, mismatch


@dataclass(frozen=True)
class ImportanceCorrector:
    """Stateless; ``config.rollout_is`` is resolved.

    Attributes:
        most: the run stops if the mean difference of log-probs is larger.
    """

    config: RolloutCorrectionConfig
    most: float = math.inf

    @property
    def claims(self) -> Claims:
        """Bias with an unbiased estimator and samples of another policy."""
        return claims(self.config)

    @property
    def acts_on_mini_batches(self) -> bool:
        """Whether each mini-batch is corrected just before its update."""
        return self.config.bypass_mode and self.config.acts

    @property
    def only_measures(self) -> bool:
        """Neither weights nor rejections are configured."""
        return not self.config.acts

    def of_batch(self, experience: Experience, staleness: int) -> tuple[Correction | None, dict[str, Measure]]:
        """Weights and the tokens to train on, with the measured metrics; None and no metrics in bypass mode."""
        old, rollout = experience.old_log_probs, experience.rollout_log_probs
        if old is None or rollout is None or self.config.bypass_mode:
            return None, {}
        correction, means = self._corrected(old, rollout, experience.response_mask)
        return (correction if self.config.acts else None), means

    @property
    def takes_parts(self) -> bool:
        """Weights that are divided by their mean are not of parts."""
        return not self.config.rollout_is_batch_normalize

    def check(self, measures: Mapping[str, Measure], staleness: int) -> None:
        """
        Raises:
            RunError: engine and trainer disagree by more than ``most``.
        """
        check_agreement(measures, staleness, self.most)

    def weights(self, correction: Correction | None) -> Tensor | None:
        """(B, T) float32 factors of the loss terms, 0 at rejected tokens; None if all are 1."""
        if correction is None or not self.config.acts:
            return None
        return correction.response_mask.float() if correction.weights is None else correction.weights

    def apply(self, correction: Correction | None, experience: Experience) -> None:
        """Store the weights in a batch, and remove the rejected tokens from its mask."""
        if correction is not None:
            experience.rollout_weights = correction.weights
            experience.response_mask = experience.response_mask & correction.response_mask

    def of_mini_batch(self, mini_batch: Experience, present: Tensor) -> dict[str, Measure]:
        """Change a mini-batch in bypass mode: its weights, its mask and, with weights, its old log-probs.

        Args:
            present: (b, T), log pi of the policy just before the update.

        Returns:
            The measured metrics.
        """
        assert mini_batch.rollout_log_probs is not None
        correction, means = self._corrected(present, mini_batch.rollout_log_probs, mini_batch.response_mask)
        mini_batch.rollout_weights, mini_batch.response_mask = correction
        if correction.weights is not None:
            mini_batch.old_log_probs = present  # the weights hold the ratio of present to rollout
        return means

    def _corrected(self, log_probs: Tensor, rollout: Tensor, mask: Tensor) -> tuple[Correction, dict[str, Measure]]:
        means = mismatch(log_probs, rollout, mask, self.config)
        correction = correct(log_probs, rollout, mask, self.config)
        if self.config.acts:
            means["rejected_fraction"] = Mean((mask & ~correction.response_mask).sum(), mask.sum())
        return correction, means
