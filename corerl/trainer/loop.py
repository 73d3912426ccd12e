"""The training loop."""

import dataclasses
from collections.abc import Iterator, Sequence

from corerl.batch.experience import Experience
from corerl.batch.micro_batches import mini_batches
from corerl.batch.rollouts import Rollouts
from corerl.checkpoint.store import CheckpointStore
from corerl.data.prompts import Prompt, PromptDataset
from corerl.data.sampler import PromptSampler
from corerl.data.tokenizer import ChatTokenizer
from corerl.errors import RunError
from corerl.objective import loss_weights, masked_mean
from corerl.registry.advantage_estimators import AdvantageEstimator
from corerl.registry.kl_types import KLType
from corerl.registry.policy_losses import Mean
from corerl.registry.reward_managers import RewardManager, RewardResult
from corerl.registry.rollout_backends import SamplingParams
from corerl.seeding import Seeds
from corerl.telemetry.metrics import entropy_metric, merge_means, performance_metrics, step_metrics
from corerl.telemetry.metrics_log import MetricsLog
from corerl.telemetry.notices import say
from corerl.telemetry.throughput import ModelShape
from corerl.telemetry.timers import Timers
from corerl.trainer.evaluation import ValidationSample, validation_metrics, validation_samples
from corerl.trainer.requests import make_requests
from corerl.trainer.run import Run
from corerl.trainer.samples import write_rollouts
from corerl.trainer.scoring import Notices, advantage_inputs, assign_scores
from corerl.trainer.workers import PolicyWorker, ReferenceWorker, RolloutWorker


@dataclasses.dataclass
class Trainer:
    """One controller: it calls the workers and holds nothing that they hold."""

    run: Run
    actor: PolicyWorker
    rollout: RolloutWorker
    reference: ReferenceWorker | None
    reward: RewardManager
    estimate_advantages: AdvantageEstimator
    kl_penalty: KLType | None
    tokenizer: ChatTokenizer
    train_prompts: PromptDataset
    val_prompts: list[Prompt]
    sampler: PromptSampler
    notices: Notices
    log: MetricsLog
    checkpoints: CheckpointStore
    seeds: Seeds
    training_sampling: SamplingParams
    validation_sampling: SamplingParams
    shape: ModelShape
    total_steps: int
    step: int = 0

    def fit(self) -> None:
        """Train from ``step`` to ``total_steps``."""
        config = self.run.config.trainer
        self.rollout.update_weights(self.actor.weights(), version=self.step)
        if self.step == 0 and config.val_before_train and self.val_prompts:
            self.log.write(self.evaluate(), step=0)
        batches = iter(self.sampler)
        while self.step < self.total_steps:
            self.step += 1
            try:
                metrics = self.train_step([self.train_prompts[index] for index in next(batches)])
            except RunError as error:
                raise type(error)(f"step {self.step}: {error}") from error
            if self.val_prompts and self._is_due(config.test_freq):
                metrics |= self.evaluate()
            self.log.write(metrics, step=self.step)
            self.run.plugins.hook.step_ended(run=self.run, step=self.step, metrics=metrics)
            if self._is_due(config.save_freq):
                path = self.checkpoints.save(self.step, self.actor, self.sampler.state_dict())
                self.run.plugins.hook.checkpoint_saved(run=self.run, step=self.step, path=path)

    def train_step(self, prompts: Sequence[Prompt]) -> dict[str, float]:
        """One step: generate, score, estimate advantages, update, hand the new weights to the rollout backend."""
        timers = Timers()
        with timers("step"):
            with timers("gen"):
                seeds = self.seeds.training_requests(self.step, len(prompts))
                rollouts = self.generate(prompts, self.training_sampling, seeds, f"train-{self.step}")
            with timers("reward"):
                results = self.reward.score(rollouts.reward_requests())
                experience = rollouts.experience()
                assign_scores(experience, results)
            with timers("old_log_prob"):
                experience.old_log_probs, entropy = self.actor.log_probs(experience, entropy=True)
            if self.reference is not None:
                with timers("ref"):
                    experience.ref_log_probs = self.reference.log_probs(experience).log_probs
            with timers("adv"):
                penalty = self.penalize_kl(experience)
                experience.advantages, experience.returns = self.estimate_advantages(advantage_inputs(experience))
            with timers("update_actor"):
                updates = [self.actor.update(mini_batch) for mini_batch in self.mini_batches(experience)]
            with timers("update_weights"):
                self.rollout.update_weights(self.actor.weights(), version=self.step)
            if not updates:
                say(f"step {self.step}: no response has a score, so the weights stay as they are")
            self.tell(rollouts, results)
        metrics = {"training/global_step": float(self.step), "training/epoch": float(self.sampler.epoch)} | penalty
        metrics |= merge_means([*updates, entropy_metric(entropy, experience)], "actor")
        metrics |= step_metrics(experience, results, rollouts.truncated, self.run.config.data.max_prompt_length)
        return metrics | performance_metrics(timers.seconds, experience, self.shape)

    def generate(
        self, prompts: Sequence[Prompt], sampling: SamplingParams, seeds: Sequence[int], prefix: str
    ) -> Rollouts:
        """Responses to all prompts, decoded."""
        outputs = self.rollout.generate(make_requests(prompts, sampling, seeds, prefix))
        return Rollouts.collect(prompts, outputs, self.tokenizer.decode)

    def penalize_kl(self, experience: Experience) -> dict[str, float]:
        """With ``algorithm.use_kl_in_reward``, subtract kl_coef · KL from each token's reward."""
        if self.kl_penalty is None:
            return {}
        assert experience.rewards is not None and experience.old_log_probs is not None
        assert experience.ref_log_probs is not None
        kl = self.kl_penalty(experience.old_log_probs, experience.ref_log_probs)
        coef = self.run.config.algorithm.kl_ctrl.kl_coef
        experience.rewards = experience.rewards - coef * kl * experience.response_mask
        mean = masked_mean(kl, experience.response_mask)
        return merge_means([{"reward_kl_penalty": mean, "reward_kl_penalty_coeff": Mean(coef, 1)}], "actor")

    def mini_batches(self, experience: Experience) -> Iterator[Experience]:
        """The mini-batches of all ``ppo_epochs``, each with the loss weights of its own tokens.

        One without a trained token is left out: its gradient is 0, and yet momentum and decay would move the weights.
        """
        actor, data = self.run.config.actor, self.run.config.data
        scale_factor = actor.loss_scale_factor or data.max_response_length
        for _ in range(actor.ppo_epochs):
            for rows in mini_batches(experience.group_ids, actor.ppo_mini_batch_size):
                mini_batch = experience.select(rows)
                if not mini_batch.response_mask.any():
                    continue
                mini_batch.loss_weights = loss_weights(mini_batch.response_mask, actor.loss_agg_mode, scale_factor)
                yield mini_batch

    def evaluate(self) -> dict[str, float]:
        """Generate for the validation prompts and score; the state of training is not touched."""
        timers = Timers()
        values = self.run.config.rollout.val_kwargs
        size = self.run.config.data.val_batch_size or len(self.val_prompts)
        samples: list[ValidationSample] = []
        results: list[RewardResult] = []
        with timers("testing"):
            seeds = self.seeds.validation_requests(len(self.val_prompts))
            for start in range(0, len(self.val_prompts), size):
                part = slice(start, start + size)
                rollouts = self.generate(self.val_prompts[part], self.validation_sampling, seeds[part], f"val-{start}")
                part_results = self.reward.score(rollouts.reward_requests())
                samples += validation_samples(rollouts, part_results)
                results += part_results
        if notice := self.notices.errors(results):
            say(f"step {self.step}, evaluation: {notice}")
        return validation_metrics(samples, values.n) | {"timing_s/testing": timers.seconds["testing"]}

    def tell(self, rollouts: Rollouts, results: Sequence[RewardResult]) -> None:
        """Notices about the scores, and sample rollouts on disk."""
        for notice in (self.notices.errors(results), self.notices.all_zero(rollouts, results)):
            if notice is not None:
                say(f"step {self.step}: {notice}")
        frequency = self.run.config.trainer.log_rollouts_freq
        if frequency > 0 and self._is_due(frequency):
            write_rollouts(self.run.folder / "rollouts" / f"step_{self.step:06d}.parquet", rollouts, results)

    def _is_due(self, frequency: int) -> bool:
        """Every so many steps, and after the last."""
        return self.step == self.total_steps or (frequency > 0 and self.step % frequency == 0)
