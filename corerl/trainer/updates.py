"""The optimizer steps of a training step: mini-batches, their loss weights, and updates that are not finite."""

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch

from corerl.batch.cuts import mini_batches
from corerl.contracts.annotators import Annotator
from corerl.contracts.config import TrainConfig
from corerl.contracts.experience import Experience
from corerl.contracts.losses import Mean, Measure
from corerl.contracts.policy_losses import TokenSelector
from corerl.contracts.rollout_correctors import RolloutCorrector
from corerl.errors import NonFiniteError
from corerl.objective import policy_loss_inputs
from corerl.registry.parts import Parts
from corerl.seeding import Seeds
from corerl.telemetry.metrics import merge_means
from corerl.terminal.notices import Recurring
from corerl.trainer.batch import Batch, weighed
from corerl.trainer.models import Models
from corerl.trainer.step import Step

MiniBatches = Iterator[tuple[torch.Tensor, Experience]]
"""(rows of the batch, mini-batch)"""


class Updates:
    """Updates the models with the batch of a step.

    Rows and mini-batches are handles if other processes have the batch. A corrector of mini-batches, a token selector
    and annotators read tokens, so the controller has the batch of a run with one of them.
    """

    def __init__(
        self,
        config: TrainConfig,
        parts: Parts,
        models: Models,
        batch: Batch,
        corrector: RolloutCorrector,
        seeds: Seeds,
        annotators: Sequence[Annotator] = (),
    ) -> None:
        self._config, self._models, self._corrector, self._seeds = config, models, corrector, seeds
        self._batch = batch
        self._annotators, self._recurring = annotators, Recurring()
        self._select_tokens: TokenSelector | None = parts.policy_loss.load_fact("select_tokens")
        exact = parts.kl_loss is None and not config.actor.entropy_coeff
        exact = exact and parts.policy_loss.entry.facts.zero_at_zero_advantage
        self._skips = exact and config.actor.zero_advantage == "skip"

    def of_critic(self, step: Step) -> dict[str, float]:
        """All updates of the critic; their metrics."""
        assert self._models.critic is not None
        actor, critic = self._config.actor, self._config.critic
        size, epochs = critic.ppo_mini_batch_size or actor.ppo_mini_batch_size, critic.ppo_epochs or actor.ppo_epochs
        cut = self.mini_batches(step.of_critic.result(), size, epochs, critic.loss_agg_mode)
        return merge_means(self._updated(self._models.critic.update, cut, step), "critic")

    def of_policy(self, step: Step) -> dict[str, float]:
        """All updates of the policy; their metrics."""
        actor = self._config.actor
        drops = actor.zero_advantage == "drop"
        whole = step.of_policy.result()
        rows = whole.numbers()
        cut = self.mini_batches(whole, actor.ppo_mini_batch_size, actor.ppo_epochs, actor.loss_agg_mode)
        measured: list[Mapping[str, Measure]] = []
        trained: list[int] = []
        annotated: list[Mapping[str, Mean]] = []
        prepared = self._prepared(cut, step.number, measured)
        if self._skips or drops:
            prepared = _trained(prepared, trained, by_mask=drops)
        prepared = self._annotated(prepared, step, annotated)
        metrics = merge_means(self._updated(self._models.actor.update, prepared, step), "actor")
        metrics |= merge_means(annotated, "actor") | merge_means(measured, "rollout_corr")
        if self._skips or drops:
            metrics["actor/skipped_tokens"] = 1 - sum(trained) / (actor.ppo_epochs * int(rows.lengths.sum()))
        if not rows.trained.any():
            reason = "no prompt has an advantage" if drops and step.rows.trained.any() else "no response has a score"
            self._recurring(reason, f"step {step.number}: {reason}; the weights are not updated")
        if "actor/kl_loss" in metrics:
            metrics["actor/kl_coef"] = actor.kl_loss_coef
        return metrics

    def mini_batches(self, whole: Experience, size: int, epochs: int, loss_agg_mode: str) -> MiniBatches:
        """The mini-batches of all epochs, each with the loss weights of its own tokens.

        One without a trained token is left out: its gradient is 0, and yet momentum and decay would move the weights.
        """
        numbers = whole.numbers()
        for _ in range(epochs):
            for rows in mini_batches(numbers.group_ids, size):
                own = numbers.select(rows)
                if own.trained.any():
                    yield rows, weighed(whole.select(rows), own, self._config, loss_agg_mode)

    def _prepared(self, cut: MiniBatches, step: int, measured: list[Mapping[str, Measure]]) -> MiniBatches:
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
                mini_batch = weighed(mini_batch, mini_batch.numbers(), self._config, self._config.actor.loss_agg_mode)
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
                    metrics.append(annotator.annotate(mini_batch, rows, step.scored.rollouts))
            yield rows, mini_batch

    def _updated(
        self, update: Callable[[Experience], dict[str, Mean]], cut: MiniBatches, step: Step
    ) -> Iterator[dict[str, Mean]]:
        """The metrics of each optimizer step; one whose loss or gradient is not finite is not taken."""
        for rows, mini_batch in cut:
            try:
                metrics = update(mini_batch)
            except NonFiniteError as error:
                named = (rows[list(error.rows)] if error.rows else rows).tolist()
                self._batch.refuse(step.number, error, named)
                metrics = {}
            yield metrics | {"skipped_updates": Mean(float(not metrics), 1.0)}


def _trained(cut: MiniBatches, trained: list[int], *, by_mask: bool) -> MiniBatches:
    """The mini-batches without rows that have no gradient; one without any other keeps its shortest row.

    An update with a gradient of 0 still moves the weights, by momentum and decay.

    Args:
        trained: gets the number of tokens in each.
        by_mask: rows without a trained token, in place of rows without an advantage.
    """
    for rows, mini_batch in cut:
        numbers = mini_batch.numbers()
        has_gradient = numbers.trained > 0 if by_mask else numbers.has_advantage.clone()
        if not has_gradient.any():
            has_gradient[numbers.lengths.argmin()] = True
        kept = has_gradient.nonzero().squeeze(1)
        trained.append(int(numbers.lengths[kept].sum()))
        yield rows[kept], mini_batch.select(kept)
