"""The optimizer steps of a training step: mini-batches, their loss weights, and updates that are not finite."""

from collections.abc import Callable, Iterator, Sequence

import torch

from corerl.batch.cuts import mini_batches
from corerl.contracts.annotators import Annotator
from corerl.contracts.config import TrainConfig
from corerl.contracts.experience import Experience
from corerl.contracts.losses import Mean, Measure, add_means
from corerl.contracts.policy_losses import TokenSelector
from corerl.contracts.rollout_correctors import RolloutCorrector
from corerl.errors import NonFiniteError
from corerl.objective import policy_loss_inputs
from corerl.registry.parts import Parts, update_gives_old_log_probs
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
        reads_before = annotators or not corrector.only_measures
        self._gives_old = update_gives_old_log_probs(config, parts) and not reads_before
        self._select_tokens: TokenSelector | None = parts.policy_loss.load_fact("select_tokens")
        exact = parts.kl_loss is None and not config.actor.entropy_coeff
        exact = exact and parts.policy_loss.entry.facts.zero_at_zero_advantage
        zero = config.actor.zero_advantage
        self._leaves_out = zero == "drop" or (exact and zero == "skip")
        self._reads_present = corrector.acts_on_mini_batches or self._select_tokens is not None

    def give_old_log_probs(self, step: int) -> bool:
        """The only update of this step gives the log-probs and the entropy of the policy before it."""
        return self._gives_old and step > self._config.trainer.critic_warmup

    def of_critic(self, step: Step) -> dict[str, float]:
        """All updates of the critic; their metrics."""
        worker = self._models.critic
        assert worker is not None
        actor, critic = self._config.actor, self._config.critic
        size, epochs = critic.ppo_mini_batch_size or actor.ppo_mini_batch_size, critic.ppo_epochs or actor.ppo_epochs
        updates: dict[str, Mean] = {}
        for rows, mini_batch in self.mini_batches(step.of_critic.result(), size, epochs, critic.loss_agg_mode):
            add_means(updates, self._update(worker.update, rows, mini_batch, step))
        return merge_means([updates], "critic")

    def of_policy(self, step: Step) -> dict[str, float]:
        """All updates of the policy; their metrics."""
        actor, worker = self._config.actor, self._models.actor
        update = worker.update_once if self.give_old_log_probs(step.number) else worker.update
        whole = step.of_policy.result()
        numbers, trained = whole.numbers(), 0
        updates: dict[str, Mean] = {}
        annotations: dict[str, Mean] = {}
        corrections: dict[str, Measure] = {}
        cut = self.mini_batches(whole, actor.ppo_mini_batch_size, actor.ppo_epochs, actor.loss_agg_mode)
        for number, (rows, mini_batch) in enumerate(cut):
            present = self._models.present_log_probs(mini_batch) if self._reads_present else None
            if present is not None and self._corrector.acts_on_mini_batches:
                add_means(corrections, self._corrector.of_mini_batch(mini_batch, present))
                if not mini_batch.response_mask.any():
                    continue
                mini_batch = weighed(mini_batch, mini_batch.numbers(), self._config, actor.loss_agg_mode)
            if present is not None and self._select_tokens is not None:
                inputs = policy_loss_inputs(mini_batch.at_trained(present), mini_batch.trained_only())
                uniforms = torch.from_numpy(self._seeds.uniforms(step.number, number, tuple(present.shape)))
                mini_batch.selected = self._select_tokens(inputs, uniforms)
            if self._leaves_out:
                kept = self._rows_with_gradient(mini_batch)
                rows, mini_batch = rows[kept], mini_batch.select(kept)
                trained += int(mini_batch.numbers().lengths.sum())
            for annotator in self._annotators:
                with step.part(annotator.part):
                    add_means(annotations, annotator.annotate(mini_batch, rows, step.scored.rollouts))
            add_means(updates, self._update(update, rows, mini_batch, step))
        metrics = merge_means([updates], "actor") | merge_means([annotations], "actor")
        metrics |= merge_means([corrections], "rollout_corr")
        if self._leaves_out:
            metrics["actor/skipped_tokens"] = 1 - trained / (actor.ppo_epochs * int(numbers.lengths.sum()))
        if not numbers.trained.any():
            has_score = actor.zero_advantage == "drop" and step.rows.trained.any()
            reason = "no prompt has an advantage" if has_score else "no response has a score"
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

    def _rows_with_gradient(self, mini_batch: Experience) -> torch.Tensor:
        """(K,) rows that are trained: those with an advantage, or under ``drop`` those with a trained token.

        Without any it is the shortest row, because an update with a gradient of 0 still moves the weights, by momentum
        and decay.
        """
        numbers = mini_batch.numbers()
        dropped = self._config.actor.zero_advantage == "drop"
        kept = numbers.trained > 0 if dropped else numbers.has_advantage.clone()
        if not kept.any():
            kept[numbers.lengths.argmin()] = True
        return kept.nonzero().squeeze(1)

    def _update(
        self, update: Callable[[Experience], dict[str, Mean]], rows: torch.Tensor, mini_batch: Experience, step: Step
    ) -> dict[str, Mean]:
        """The metrics of an optimizer step; one whose loss or gradient is not finite is not taken."""
        try:
            metrics = update(mini_batch)
        except NonFiniteError as error:
            named = (rows[list(error.rows)] if error.rows else rows).tolist()
            self._batch.refuse(step.number, error, named)
            metrics = {}
        return metrics | {"skipped_updates": Mean(float(not metrics), 1.0)}
