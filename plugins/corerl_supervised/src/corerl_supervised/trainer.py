"""A training, step after step: the loop on one page."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from corerl.checkpoint.store import CheckpointStore
from corerl.contracts.experience import Experience
from corerl.contracts.losses import Mean
from corerl.contracts.objective import Objective
from corerl.contracts.throughput import ModelShape
from corerl.errors import LostError, NonFiniteError, RunError, Stopped
from corerl.telemetry.metrics import merge_means
from corerl.telemetry.metrics_log import MetricsLog
from corerl.telemetry.timers import Timers
from corerl.trainer.models import BaseOfPolicy
from corerl.trainer.stopping import Stopping
from corerl_supervised.plan import Parts, Plan
from corerl_supervised.saving import Saving
from corerl_supervised.tasks import check_units
from corerl_supervised.workers import ReferenceModel, TrainedModel


@dataclass(frozen=True)
class Run:
    """What life-cycle hooks are given."""

    config: Any
    parts: Parts
    plugins: Any
    folder: Any


@dataclass(frozen=True)
class Records:
    """What a run writes beside its configuration."""

    log: MetricsLog
    checkpoints: CheckpointStore


@dataclass
class Trainer:
    """One controller: it calls the workers and holds nothing that they hold.

    Attributes:
        objective: of the validation, whose outputs come from the workers.
        step: the present one; at the start, the last that is done.
    """

    run: Run
    plan: Plan
    model: TrainedModel
    reference: ReferenceModel | BaseOfPolicy | None
    objective: Objective
    shape: ModelShape
    records: Records
    stopping: Stopping
    step: int = 0

    def train_step(self) -> dict[str, float]:
        """One optimizer step; its metrics.

        Raises:
            NonFiniteError: the loss or the gradient is not finite; the rows at fault are named.
        """
        part = Timers()
        with part("step"):
            rows = [self.plan.train.rows[index] for index in next(self.plan.sampler)]
            batch = self.batch(rows, part)
            with part("update_actor"):
                try:
                    means = self.model.update(batch)
                except NonFiniteError as error:
                    raise _named(error, rows, len(batch) // len(rows)) from error
        check_units(batch, means, self.plan.parts.strategy.entry.name)
        return merge_means([means], "train") | self._times(batch, part.seconds)

    def validate(self) -> dict[str, float]:
        """Loss and metrics of the validation rows; none without such rows."""
        if self.plan.val is None:
            return {}
        batch = self.batch(self.plan.val.rows, Timers())
        output = self.objective(self.model.forward(batch.tokens(), sorted(self.objective.wanted, key=str)), batch)
        parts = {name: Mean(float(value), 1.0) for name, value in output.parts.items()}
        return merge_means([{**parts, **output.metrics}], "val")

    def batch(self, rows: Sequence[Any], part: Timers) -> Experience:
        """The rows as a batch, with the log-probs of the reference if there is one."""
        batch = self.plan.task.batch(rows)
        if self.reference is not None:
            with part("ref"):
                batch.ref_log_probs = self.reference.forward(batch.tokens(), ["log_probs"]).log_probs
        return batch

    def _times(self, batch: Experience, seconds: Mapping[str, float]) -> dict[str, float]:
        metrics: dict[str, float] = {}
        given = {"experience": batch.numbers(), "seconds": seconds, "background": {}, "shape": self.shape, "passes": 1}
        for more in self.run.plugins.hook.time_metrics(**given):
            metrics |= more
        return metrics


def fit(trainer: Trainer) -> None:
    """Train from ``trainer.step`` to the last step; a signal ends the training after a step, with a checkpoint.

    Raises:
        Stopped: a signal asked for it.
        RunError: a step failed, or a checkpoint could not be written.
    """
    saving = Saving(trainer.plan, trainer.run, trainer.model, trainer.records)
    config, last = trainer.plan.config.trainer, trainer.plan.total_steps
    trainer.stopping.saves = True
    try:
        while trainer.step < last:
            trainer.step += 1
            try:
                metrics = trainer.train_step()
                if trainer.step == last or _is_due(trainer.step, config.test_freq):
                    metrics |= trainer.validate()
            except RunError as error:
                error.args = (f"step {trainer.step}: {error}", *error.args[1:])
                raise
            trainer.records.log.write(metrics, trainer.step)
            trainer.run.plugins.hook.step_ended(run=trainer.run, step=trainer.step, metrics=metrics)
            if _is_due(trainer.step, config.save_freq):
                saving.save(trainer.step)
            if trainer.step < last:
                trainer.stopping.check()
        saving.settle()
    except Stopped:
        saving.save_done(trainer.step)
        raise
    except LostError:
        trainer.records.checkpoints.give_up()
        raise
    finally:
        trainer.stopping.saves = False
        saving.end()


def _is_due(step: int, frequency: int) -> bool:
    return frequency > 0 and step % frequency == 0


def _named(error: NonFiniteError, rows: Sequence[Any], rows_each: int) -> NonFiniteError:
    """The error with the places of its rows in the files."""
    places = dict.fromkeys(str(rows[row // rows_each].location) for row in error.rows)
    return NonFiniteError(f"{error}; rows: {'; '.join(places) or 'unknown'}", error.rows)
