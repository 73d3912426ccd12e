"""A run, step after step: evaluations, records, checkpoints, and how it ends before its last step."""

import contextlib
import functools

from corerl.contracts.evaluations import Evaluation
from corerl.errors import EngineDeadError, LostError, RunError, Stopped, WorkerDiedError, WorkerLateError
from corerl.trainer.loop import Trainer
from corerl.trainer.saving import Saving


def fit(trainer: Trainer) -> None:
    """Train from ``trainer.step`` to ``trainer.total_steps``.

    Raises:
        Stopped: a signal asked for it; a checkpoint is saved.
        RunError: engines end too often, or something else went wrong; likewise, where the step that failed had not
            changed the policy yet.
    """
    saving = Saving(trainer)
    workers_ended = False
    trainer.stopping.saves = True
    try:
        _begin(trainer)
        while trainer.step < trainer.total_steps:
            _do_step(trainer, saving)
    except (Stopped, EngineDeadError):
        saving.save_done()
        raise
    except (WorkerDiedError, WorkerLateError):
        workers_ended = True
        raise
    except RunError:
        if not trainer.is_changed:
            with contextlib.suppress(RunError):  # the first error matters more
                saving.save_done()
        raise
    finally:
        saving.end(workers_ended=workers_ended)
        trainer.stopping.saves = False


def _begin(trainer: Trainer) -> None:
    trainer.engines.send_weights(trainer.step, verify=True)
    trainer.devices.to_generation(asleep=False)
    if trainer.step == 0 and trainer.run.config.trainer.val_before_train and trainer.evaluation:
        with trainer.stopping.abandonable():
            metrics = trainer.evaluation.metrics(step=0)
        trainer.records.log.write(metrics, step=0)


def _do_step(trainer: Trainer, saving: Saving) -> None:
    """One step, its evaluation, its record and its checkpoint."""
    saving.settle(wait=False)
    trainer.step += 1
    config = trainer.run.config.trainer
    try:
        due = trainer.is_due(config.save_freq)
        metrics = trainer.train_step(functools.partial(_copy, trainer, saving) if due else None)
        if trainer.failure is None and trainer.evaluation and trainer.is_due(config.test_freq):
            metrics |= _evaluate(trainer, trainer.evaluation)
            metrics["timing_s/step"] += metrics.get("timing_s/testing", 0.0)
    except RunError as error:
        raise _of_step(trainer.step, error) from error.__cause__
    metrics["training/restarts"] = float(trainer.restarts)
    trainer.records.log.write(metrics, step=trainer.step)
    trainer.run.plugins.hook.step_ended(run=trainer.run, step=trainer.step, metrics=metrics)
    saving.done(metrics)
    trainer.is_changed = False
    if due:
        saving.write()
    if trainer.failure is not None:
        raise _of_step(trainer.step, trainer.failure)
    if trainer.step < trainer.total_steps:
        trainer.stopping.check()


def _copy(trainer: Trainer, saving: Saving) -> None:
    """Where the state cannot be saved, the step is still to be recorded."""
    try:
        saving.copy()
    except LostError:  # of workers that are to do so
        raise
    except RunError as error:
        trainer.failure = error


def _evaluate(trainer: Trainer, evaluation: Evaluation) -> dict[str, float]:
    """Of a policy that is still to be saved."""
    try:
        return evaluation.metrics(trainer.step)
    except (WorkerDiedError, WorkerLateError):  # there is nobody to save it
        raise
    except RunError as error:
        trainer.failure = error
        return {}


def _of_step(step: int, error: RunError) -> RunError:
    """The same error, which says in what step it was."""
    error.args = (f"step {step}: {error}", *error.args[1:])
    return error
