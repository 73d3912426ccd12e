"""The training loop."""

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import torch

from corerl.batch.cuts import mini_batches
from corerl.batch.rollouts import Episode
from corerl.checkpoint.store import CheckpointStore
from corerl.contracts.advantage_estimators import AdvantageEstimator, AdvantageInputs
from corerl.contracts.evaluations import ValidationSample
from corerl.contracts.experience import Experience
from corerl.contracts.losses import Mean
from corerl.contracts.policy_losses import TokenSelector
from corerl.contracts.reward_managers import RewardResult
from corerl.contracts.rollout_backends import SamplingParams
from corerl.contracts.rollout_correctors import Correction, RolloutCorrector
from corerl.contracts.throughput import ModelShape
from corerl.contracts.token_outputs import Output
from corerl.contracts.tokenizers import ChatTokenizer
from corerl.data.prompts import Prompt
from corerl.errors import EngineDeadError, NonFiniteError, RunError
from corerl.objective import loss_weights, policy_loss_inputs
from corerl.rollout.engines import Engines
from corerl.rollout.episodes import episode_metrics
from corerl.rollout.scored import ScoredRollouts
from corerl.rollout.scoring import Notices
from corerl.rollout.stream import Stream
from corerl.seeding import Seeds
from corerl.telemetry.metrics import merge_means, policy_metrics
from corerl.telemetry.metrics_log import MetricsLog
from corerl.telemetry.timers import Timers
from corerl.terminal.notices import say
from corerl.trainer.correction import present_log_probs
from corerl.trainer.device_sharing import DeviceSharing
from corerl.trainer.evaluation import sample_table, validation_metrics, validation_samples
from corerl.trainer.kl import KLPenalty, VocabularyReference
from corerl.trainer.nonfinite import NonFiniteGuard
from corerl.trainer.run import Run
from corerl.trainer.stopping import Stopping
from corerl.trainer.workers import CriticWorker, PolicyWorker, ReferenceWorker


@dataclasses.dataclass
class Trainer:
    """One controller: it calls the workers and holds nothing that they hold."""

    run: Run
    engines: Engines
    actor: PolicyWorker
    critic: CriticWorker | None
    reference: ReferenceWorker | None
    stream: Stream
    tokenizer: ChatTokenizer
    devices: DeviceSharing
    estimate_advantages: AdvantageEstimator
    select_tokens: TokenSelector | None
    kl_penalty: KLPenalty | None
    vocabulary_reference: VocabularyReference | None
    val_prompts: list[Prompt]
    notices: Notices
    nonfinite: NonFiniteGuard
    log: MetricsLog
    corrector: RolloutCorrector
    checkpoints: CheckpointStore
    seeds: Seeds
    validation_sampling: SamplingParams
    shape: ModelShape
    total_steps: int
    stopping: Stopping
    restarts: int = 0
    """times that the workers were lost and started again"""
    step: int = 0
    """the one that is being done; at the start, the last that was done"""
    is_changed: bool = False
    """the step has changed what a checkpoint holds, and is not done"""
    failure: RunError | None = None
    """of the engines or the evaluation, once the step had changed the policy: it is raised when the step is saved"""

    def train_step(self) -> dict[str, float]:
        """One step: generate, score, estimate advantages, update, hand the new weights to the rollout backend."""
        timers = Timers()
        with timers("step"), ExitStack() as in_use:
            with self.stopping.abandonable():
                taken = self.stream.take(self.step)
                in_use.enter_context(self.engines.actor_in_use)
                batch, metrics = taken.scored, dict(taken.metrics)
                with timers("batch"):
                    experience = batch.experience()
                with timers("handover"):
                    self.devices.to_training()
                metrics |= self.compute(experience, timers)
            with timers("adv"):
                nonfinite = self.nonfinite.mask_samples(self.step, experience, batch)
                if self.kl_penalty is not None:
                    metrics |= self.kl_penalty.subtract(experience)
                correction, measured = self.corrector.of_batch(experience, max(batch.staleness(self.step)))
                metrics |= merge_means([measured], "rollout_corr")
                weights = self.corrector.weights(correction)
                inputs = dataclasses.replace(self.advantage_inputs(experience, batch), rollout_weights=weights)
                experience.advantages, experience.returns = self.estimate_advantages(inputs)
                nonfinite += self.nonfinite.mask_samples(self.step, experience, batch)
            with timers("metrics"):
                metrics["training/nonfinite_samples"] = float(nonfinite)
                for more in self.run.plugins.hook.step_metrics(
                    experience=experience,
                    results=batch.results,
                    truncated=batch.rollouts.truncated,
                    max_prompt_length=self.run.config.data.max_prompt_length,
                    data_parallel_size=self.shape.data_parallel_size,
                ):
                    metrics |= more
            metrics |= self.update(experience, batch, correction, timers)
            self.hand_over(timers)
            metrics["rollout/restarts"] = float(self.engines.restarts)
            metrics["rollout/workers_lost"] = float(len(self.engines.lost))
            with timers("metrics"):
                self.tell(experience, batch)
        metrics["training/global_step"] = float(self.step)
        seconds, passes = {**timers.seconds, **taken.seconds}, self.run.config.actor.ppo_epochs
        metrics |= self.actor.measured()
        for more in self.run.plugins.hook.time_metrics(
            experience=experience, seconds=seconds, background=taken.background, shape=self.shape, passes=passes
        ):
            metrics |= more
        return metrics

    def hand_over(self, timers: Timers) -> None:
        """Give the engines the policy as it is after ``step``; where they have ended for good, the step is done."""
        try:
            with timers("handover"):
                self.devices.to_weights()
            with timers("update_weights"):
                due = self.is_due_by(self.run.config.rollout.verify_weights_freq)
                self.engines.send_weights(self.step, verify=due)
            with timers("handover"):
                self.devices.to_generation()
        except EngineDeadError as error:
            self.failure = error

    def compute(self, experience: Experience, timers: Timers) -> dict[str, float]:
        """What the models say about the responses before the update: old and reference log-probs, values."""
        asked = experience.tokens()
        with timers("old_log_prob"):
            if self.run.config.algorithm.rollout_correction.bypass_mode:
                experience.old_log_probs, metrics = experience.rollout_log_probs, {}
            else:
                outputs = self.actor.forward(asked, self._policy_outputs())
                experience.old_log_probs, experience.sum_pi_squared = outputs.log_probs, outputs.sum_pi_squared
                metrics = policy_metrics(outputs, experience)
        if self.reference is not None and self.run.parts.needs_ref_log_probs:
            with timers("ref"):
                experience.ref_log_probs = self.reference.forward(asked, ["log_probs"]).log_probs
        if self.critic is not None:
            with timers("values"):
                experience.values = self.critic.forward(asked, ["values"]).values
        return metrics

    def _policy_outputs(self) -> list[Output]:
        wanted: list[Output] = ["log_probs", "entropy"]
        if "sum_pi_squared" in self.run.parts.adv_estimator.entry.needs:
            wanted.append("sum_pi_squared")
        return wanted

    def advantage_inputs(self, experience: Experience, batch: ScoredRollouts) -> AdvantageInputs:
        """What the advantage estimator is given."""
        assert experience.rewards is not None
        if experience.values is not None:
            experience.values.masked_fill_(~experience.response_mask, 0.0)
        return AdvantageInputs(
            rewards=experience.rewards,
            response_mask=experience.response_mask,
            group_ids=experience.group_ids,
            values=experience.values,
            greedy_scores=experience.greedy_scores,
            log_probs=experience.old_log_probs,
            sum_pi_squared=experience.sum_pi_squared,
            components=batch.components(),
        )

    def update(
        self, experience: Experience, batch: ScoredRollouts, correction: Correction | None, timers: Timers
    ) -> dict[str, float]:
        """All optimizer steps, of the critic and of the policy."""
        config = self.run.config
        metrics: dict[str, float] = {}
        self.is_changed = True
        if self.critic is not None:
            size = config.critic.ppo_mini_batch_size or config.actor.ppo_mini_batch_size
            epochs = config.critic.ppo_epochs or config.actor.ppo_epochs
            cut = self.mini_batches(experience, size, epochs, config.critic.loss_agg_mode)
            with timers("update_critic"):
                metrics |= merge_means(self.updates(self.critic.update, cut, experience, batch), "critic")
        if self.step <= config.trainer.critic_warmup:
            return metrics
        self.corrector.apply(correction, experience)
        actor = config.actor
        cut = self.mini_batches(experience, actor.ppo_mini_batch_size, actor.ppo_epochs, actor.loss_agg_mode)
        with timers("update_actor"):
            measured: list[dict[str, Mean]] = []
            prepared = self.prepared(cut, measured)
            metrics |= merge_means(self.updates(self.actor.update, prepared, experience, batch), "actor")
            metrics |= merge_means(measured, "rollout_corr")
            if not experience.response_mask.any():
                say(f"step {self.step}: no response has a score; the weights are not updated")
        if "actor/kl_loss" in metrics:
            metrics["actor/kl_coef"] = actor.kl_loss_coef
        return metrics

    def updates(
        self,
        update: Callable[[Experience], dict[str, Mean]],
        cut: Iterator[tuple[torch.Tensor, Experience]],
        experience: Experience,
        batch: ScoredRollouts,
    ) -> Iterator[dict[str, Mean]]:
        """The metrics of each optimizer step; one whose loss or gradient is not finite is not taken."""
        for rows, mini_batch in cut:
            try:
                metrics = update(mini_batch)
            except NonFiniteError as error:
                samples = rows[list(error.rows)] if error.rows else rows
                self.nonfinite.handle(self.step, error, samples.tolist(), experience, batch)
                metrics = {}
            yield metrics | {"skipped_updates": Mean(float(not metrics), 1.0)}

    def mini_batches(
        self, experience: Experience, size: int, epochs: int, loss_agg_mode: str
    ) -> Iterator[tuple[torch.Tensor, Experience]]:
        """(rows, mini-batch) of all epochs, each with the loss weights of its own tokens.

        One without a trained token is left out: its gradient is 0, and yet momentum and decay would move the weights.
        """
        for _ in range(epochs):
            for rows in mini_batches(experience.group_ids, size):
                mini_batch = experience.select(rows)
                if mini_batch.response_mask.any():
                    self.weigh(mini_batch, loss_agg_mode)
                    yield rows, mini_batch

    def weigh(self, mini_batch: Experience, loss_agg_mode: str) -> None:
        """Give a mini-batch the loss weights of its trained tokens."""
        scale_factor = self.run.config.actor.loss_scale_factor or self.run.config.data.max_response_length
        mini_batch.loss_weights = loss_weights(mini_batch.response_mask, loss_agg_mode, scale_factor)

    def prepared(
        self, cut: Iterator[tuple[torch.Tensor, Experience]], measured: list[dict[str, Mean]]
    ) -> Iterator[tuple[torch.Tensor, Experience]]:
        """Mini-batches, each just before its update; ``measured`` takes what rollout correction measures of them."""
        for number, (rows, mini_batch) in enumerate(cut):
            if self.corrector.acts_on_mini_batches:
                measured.append(self.corrector.of_mini_batch(mini_batch, present_log_probs(self.actor, mini_batch)))
                if not mini_batch.response_mask.any():
                    continue
                self.weigh(mini_batch, self.run.config.actor.loss_agg_mode)
            if self.vocabulary_reference is not None and self.run.parts.kl_loss is not None:
                self.vocabulary_reference.add(mini_batch)
            if self.select_tokens is not None:
                present = present_log_probs(self.actor, mini_batch)
                uniforms = torch.from_numpy(self.seeds.uniforms(self.step, number, tuple(present.shape)))
                mini_batch.selected = self.select_tokens(policy_loss_inputs(present, mini_batch), uniforms)
            yield rows, mini_batch

    def evaluate(self) -> dict[str, float]:
        """Generate for the validation prompts and score; the state of training is not touched."""
        timers = Timers()
        values = self.run.config.rollout.val_kwargs
        size = self.run.config.data.val_batch_size or len(self.val_prompts)
        samples: list[ValidationSample] = []
        results: list[RewardResult] = []
        episodes: list[Episode] = []
        with timers("testing"):
            seeds = self.seeds.validation_requests(len(self.val_prompts))
            for start in range(0, len(self.val_prompts), size):
                part = slice(start, start + size)
                scored = self.stream.play(self.val_prompts[part], seeds[part], self.validation_sampling, f"val-{start}")
                samples += validation_samples(scored.rollouts, scored.results)
                results += scored.results
                episodes += scored.rollouts.episodes or ()
        self.log.write_samples(self.step, *sample_table(samples, self.run.config.trainer.log_val_generations))
        if notice := self.notices.errors(results):
            say(f"step {self.step}, evaluation: {notice}")
        metrics = validation_metrics(samples, values.n) | {"timing_s/testing": timers.seconds["testing"]}
        for more in self.run.plugins.hook.validation_metrics(samples=samples, n=values.n):
            metrics |= more
        return metrics | {f"val-aux/{name}": value for name, value in episode_metrics(episodes).items()}

    def tell(self, experience: Experience, batch: ScoredRollouts) -> None:
        """Notices about the scores, and sample rollouts on disk."""
        notices = [self.notices.errors(batch.results), self.notices.all_equal(batch.rollouts, batch.results)]
        if "groups" in self.run.parts.adv_estimator.entry.needs:
            notices.append(self.notices.lone_responses(experience))
        for notice in filter(None, notices):
            say(f"step {self.step}: {notice}")
        frequency = self.run.config.trainer.log_rollouts_freq
        if frequency > 0 and self.is_due(frequency):
            path = self.run.folder / "rollouts" / f"step_{self.step:06d}.parquet"
            try:
                written = self.run.plugins.hook.write_rollouts(
                    path=path,
                    rollouts=batch.rollouts,
                    results=batch.results,
                    experience=experience,
                    tokenizer=self.tokenizer,
                    token_rows=self.run.config.trainer.log_rollouts_tokens,
                )
                if not written:
                    say(f"step {self.step}: no plugin writes the sample rollouts (pip install corerl-tools)")
            except OSError as error:
                say(f"step {self.step}: the sample rollouts could not be written: {error}")

    def is_due(self, frequency: int) -> bool:
        """Every so many steps, and after the last."""
        return self.step == self.total_steps or self.is_due_by(frequency)

    def is_due_by(self, frequency: int) -> bool:
        return frequency > 0 and self.step % frequency == 0
