"""The optimizer steps of a training step: mini-batches, their loss weights, and updates that are not finite."""

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch

from corerl.batch.cuts import mini_batches
from corerl.contracts.annotators import Annotator
from corerl.contracts.config import TrainConfig
from corerl.contracts.experience import Experience
from corerl.contracts.losses import Mean
from corerl.contracts.policy_losses import TokenSelector
from corerl.contracts.rollout_correctors import RolloutCorrector
from corerl.errors import NonFiniteError
from corerl.objective import loss_weights, policy_loss_inputs
from corerl.registry.parts import Parts
from corerl.seeding import Seeds
from corerl.telemetry.metrics import merge_means
from corerl.terminal.notices import say
from corerl.trainer.models import Models
from corerl.trainer.step import Step

MiniBatches = Iterator[tuple[torch.Tensor, Experience]]
"""(rows of the batch, mini-batch)"""


class Updates:
    """Updates the models with the batch of a step."""

    def __init__(
        self,
        config: TrainConfig,
        parts: Parts,
        models: Models,
        corrector: RolloutCorrector,
        seeds: Seeds,
        annotators: Sequence[Annotator] = (),
    ) -> None:
        self._config, self._models, self._corrector, self._seeds = config, models, corrector, seeds
        self._annotators = annotators
        self._select_tokens: TokenSelector | None = parts.policy_loss.load_fact("select_tokens")
        self._of_vocabulary = parts.kl_loss is not None and "logits" in parts.kl_loss.entry.needs

    def of_critic(self, step: Step) -> dict[str, float]:
        """All updates of the critic; their metrics."""
        assert self._models.critic is not None
        actor, critic = self._config.actor, self._config.critic
        size, epochs = critic.ppo_mini_batch_size or actor.ppo_mini_batch_size, critic.ppo_epochs or actor.ppo_epochs
        cut = self.mini_batches(step.experience, size, epochs, critic.loss_agg_mode)
        return merge_means(_updated(self._models.critic.update, cut, step), "critic")

    def of_policy(self, step: Step) -> dict[str, float]:
        """All updates of the policy; their metrics."""
        actor = self._config.actor
        cut = self.mini_batches(step.experience, actor.ppo_mini_batch_size, actor.ppo_epochs, actor.loss_agg_mode)
        measured: list[dict[str, Mean]] = []
        annotated: list[Mapping[str, Mean]] = []
        prepared = self._annotated(self._prepared(cut, step.number, measured), step, annotated)
        metrics = merge_means(_updated(self._models.actor.update, prepared, step), "actor")
        metrics |= merge_means(annotated, "actor") | merge_means(measured, "rollout_corr")
        if not step.experience.response_mask.any():
            say(f"step {step.number}: no response has a score; the weights are not updated")
        if "actor/kl_loss" in metrics:
            metrics["actor/kl_coef"] = actor.kl_loss_coef
        return metrics

    def mini_batches(self, experience: Experience, size: int, epochs: int, loss_agg_mode: str) -> MiniBatches:
        """The mini-batches of all epochs, each with the loss weights of its own tokens.

        One without a trained token is left out: its gradient is 0, and yet momentum and decay would move the weights.
        """
        for _ in range(epochs):
            for rows in mini_batches(experience.group_ids, size):
                mini_batch = experience.select(rows)
                if mini_batch.response_mask.any():
                    self._weigh(mini_batch, loss_agg_mode)
                    yield rows, mini_batch

    def _weigh(self, mini_batch: Experience, loss_agg_mode: str) -> None:
        scale_factor = self._config.actor.loss_scale_factor or self._config.data.max_response_length
        mask, episodes = mini_batch.response_mask, mini_batch.episode_ids
        mini_batch.loss_weights = loss_weights(mask, loss_agg_mode, scale_factor, episodes)

    def _prepared(self, cut: MiniBatches, step: int, measured: list[dict[str, Mean]]) -> MiniBatches:
        """Mini-batches, each just before its update of the policy.

        Args:
            measured: gets the measures of rollout correction.
        """
        for number, (rows, mini_batch) in enumerate(cut):
            if self._corrector.acts_on_mini_batches:
                present = self._models.present_log_probs(mini_batch)
                measured.append(self._corrector.of_mini_batch(mini_batch, present))
                if not mini_batch.response_mask.any():
                    continue
                self._weigh(mini_batch, self._config.actor.loss_agg_mode)
            if self._of_vocabulary:
                mini_batch.ref_vocabulary_log_probs = self._models.ref_vocabulary_log_probs(mini_batch)
            if self._select_tokens is not None:
                present = self._models.present_log_probs(mini_batch)
                uniforms = torch.from_numpy(self._seeds.uniforms(step, number, tuple(present.shape)))
                mini_batch.selected = self._select_tokens(policy_loss_inputs(present, mini_batch), uniforms)
            yield rows, mini_batch

    def _annotated(self, cut: MiniBatches, step: Step, metrics: list[Mapping[str, Mean]]) -> MiniBatches:
        """Mini-batches with the columns of all annotators, whose metrics are put into ``metrics``."""
        for rows, mini_batch in cut:
            for annotator in self._annotators:
                with step.part(annotator.part):
                    metrics.append(annotator.annotate(mini_batch, rows, step.batch.rollouts))
            yield rows, mini_batch


def _updated(
    update: Callable[[Experience], dict[str, Mean]], cut: MiniBatches, step: Step
) -> Iterator[dict[str, Mean]]:
    """The metrics of each optimizer step; one whose loss or gradient is not finite is not taken."""
    for rows, mini_batch in cut:
        try:
            metrics = update(mini_batch)
        except NonFiniteError as error:
            step.skip_update(error, (rows[list(error.rows)] if error.rows else rows).tolist())
            metrics = {}
        yield metrics | {"skipped_updates": Mean(float(not metrics), 1.0)}
