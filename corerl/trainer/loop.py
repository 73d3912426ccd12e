"""The training step on one page: take groups, ask the models, estimate advantages, update, hand over, report."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from corerl.contracts.dispatch import Done, Future, begin
from corerl.contracts.evaluations import Evaluation
from corerl.contracts.kl_controllers import KLPenalty
from corerl.contracts.token_outputs import Output, TokenOutputs
from corerl.errors import EngineDeadError, RunError
from corerl.objective.own_pass import OUTPUTS
from corerl.rollout.engines import Engines
from corerl.rollout.stream import Stream
from corerl.trainer.batch import Batch
from corerl.trainer.device_sharing import DeviceSharing
from corerl.trainer.models import EarlyReference, Models
from corerl.trainer.records import Records
from corerl.trainer.run import Run
from corerl.trainer.step import Step
from corerl.trainer.stopping import Stopping
from corerl.trainer.updates import Updates


@dataclasses.dataclass
class Trainer:
    """One controller: it calls the workers and holds nothing that they hold.

    Attributes:
        batch: the rows of the step, here or in other processes.
        kl_penalty: in the reward; None unless ``algorithm.use_kl_in_reward``.
        evaluation: None without validation prompts.
        early_reference: reads groups while others generate; None: the reference reads the step after generation.
        workers: role -> workers, for the hook ``around_step``.
        restarts: times that the workers were lost and started again.
        step: the present one; at the start, the last that is done.
        is_changed: the step has changed what a checkpoint holds, and is not done.
        ending: the last step frees its rows.
        failure: of checkpoint, engines or evaluation, after the step has changed the policy; raised once the step is
            recorded.
    """

    run: Run
    models: Models
    stream: Stream
    engines: Engines
    devices: DeviceSharing
    batch: Batch
    kl_penalty: KLPenalty | None
    updates: Updates
    evaluation: Evaluation | None
    records: Records
    stopping: Stopping
    total_steps: int
    early_reference: EarlyReference | None = None
    workers: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    restarts: int = 0
    step: int = 0
    is_changed: bool = False
    ending: Future | None = None
    failure: RunError | None = None

    def train_step(self, save: Callable[[], None] | None = None) -> dict[str, float]:
        """Train one step; its metrics. A signal abandons the step only before the models change.

        Args:
            save: copies what a checkpoint of this step holds, while the models have the device.
        """
        hook = self.run.plugins.hook
        with Step(self.step, self.stopping) as step:
            for each in hook.around_step(run=self.run, step=self.step, workers=self.workers):
                step.hold(each)
            with step.abandonable():
                self.take_groups(step)
                self.ask_models(step)
            self.estimate_advantages(step)
            self.update(step)
            if save is not None:
                with step.part("save"):
                    save()
            self.hand_over(step)
            self.report(step)
        for more in hook.time_metrics(
            experience=step.rows,
            seconds=step.seconds,
            background=step.background,
            shape=self.models.shape,
            passes=self.run.config.actor.ppo_epochs,
        ):
            step.metrics |= more
        return step.metrics

    def take_groups(self, step: Step) -> None:
        """Prompts with their responses and scores, generated now or ahead of training; the models get the device."""
        step.groups = self.stream.take(step.number)
        step.hold(self.engines.actor_in_use)
        step.metrics |= step.groups.metrics
        step.background |= step.groups.background
        with step.part("batch"):
            if self.ending is not None:
                self.ending.result()
            step.tokens = self.batch.take(step.scored.without_media())
            step.rows = step.tokens.numbers()
        with step.part("handover"):
            self.devices.to_training()

    def ask_models(self, step: Step) -> None:
        """Log-probs of the policy and the reference, and values of the critic, before the update."""

        def put(role: str, outputs: TokenOutputs | None) -> None:
            step.begun.append(begin(self.batch.put, role, outputs))

        tokens = step.tokens
        with step.part("old_log_prob"):
            if self.run.config.algorithm.rollout_correction.bypass_mode:
                put("actor", None)
            elif not self.updates.give_old_log_probs(step.number):
                wanted: list[Output] = ["log_probs", "entropy"]
                if "sum_pi_squared" in self.run.parts.adv_estimator.entry.needs:
                    wanted.append("sum_pi_squared")
                put("actor", self.models.actor.forward(tokens, wanted))
        reference = self.early_reference or self.models.reference
        if reference is not None and self.run.parts.needs_ref_log_probs:
            with step.part("ref"):
                put("ref", reference.forward(tokens, ["log_probs"]))
            if self.early_reference is not None:
                step.background["ref"] = self.early_reference.seconds
        if self.models.critic is not None:
            with step.part("values"):
                put("critic", self.models.critic.forward(tokens, ["values"]))

    def estimate_advantages(self, step: Step) -> None:
        """Advantages of the rewards, less the KL penalty; measures of the batch; rows of the updates.

        All calls on the batch are begun before the first wait.
        """
        with step.part("adv"):
            estimated = begin(self.batch.estimate, step.number, step.lag, self.kl_penalty)
        with step.part("metrics"):
            measures = not self.updates.give_old_log_probs(step.number)
            measured = begin(self.batch.measure) if measures else Done({})
        with step.part("adv"):
            self.begin_updates(step)
            for each in step.begun:
                each.result()
            step.rows = estimated.result()
        with step.part("metrics"):
            step.metrics |= measured.result()

    def begin_updates(self, step: Step) -> None:
        """Ask for the rows of the updates: those of the critic before the policy's are corrected."""
        if self.models.critic is not None:
            step.of_critic = begin(self.batch.rows)
        if step.number > self.run.config.trainer.critic_warmup:
            step.of_policy = begin(self.batch.correct, drops=self.run.config.actor.zero_advantage == "drop")

    def update(self, step: Step) -> None:
        """All optimizer steps: of the critic, and after its warm-up of the policy."""
        self.is_changed = True
        if self.models.critic is not None:
            with step.part("update_critic"):
                step.metrics |= self.updates.of_critic(step)
        if step.number > self.run.config.trainer.critic_warmup:
            with step.part("update_actor"):
                step.metrics |= self.updates.of_policy(step)
        if self.updates.give_old_log_probs(step.number):
            with step.part("metrics"):
                self.measure_update(step)

    def measure_update(self, step: Step) -> None:
        """Measures of the batch with the log-probs before the update, which the update has computed."""
        actor = self.models.actor
        if step.rows.trained.any():
            outputs = actor.outputs_of_update(step.tokens)
        else:  # there was no update
            outputs = actor.forward(step.tokens, OUTPUTS)
        calls = begin(self.batch.put, "actor", outputs), begin(self.batch.compare, step.lag)
        measured = begin(self.batch.measure)
        for each in calls:
            each.result()
        step.metrics |= measured.result()

    def hand_over(self, step: Step) -> None:
        """Send the weights to the engines; if the engines have ended for good, the step is done all the same."""
        try:
            with step.part("handover"):
                self.devices.to_weights()
            with step.part("update_weights"):
                verify = self.is_due_by(self.run.config.rollout.verify_weights_freq)
                self.engines.send_weights(step.number, verify=verify)
            with step.part("handover"):
                self.devices.to_generation()
        except EngineDeadError as error:
            self.failure = self.failure or error

    def report(self, step: Step) -> None:
        """Counts, notices about the scores, sample rollouts."""
        step.metrics |= self.models.actor.measured() | {
            "training/global_step": float(step.number),
            "rollout/restarts": float(self.engines.restarts),
            "rollout/workers_lost": float(len(self.engines.lost)),
        }
        with step.part("metrics"):
            self.run.plugins.hook.batch_scored(
                run=self.run,
                step=step.number,
                results=step.scored.results,
                rollouts=step.scored.rollouts,
                experience=step.rows,
            )
            frequency = self.run.config.trainer.log_rollouts_freq
            if frequency > 0 and self.is_due(frequency):
                self.records.write_rollouts(step.number, self.batch)
            self.ending = begin(self.batch.end)

    def is_due(self, frequency: int) -> bool:
        """Every so many steps, and after the last."""
        return self.step == self.total_steps or self.is_due_by(frequency)

    def is_due_by(self, frequency: int) -> bool:
        """Every so many steps; never, unless the number is positive."""
        return frequency > 0 and self.step % frequency == 0
