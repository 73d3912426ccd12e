"""A run, step after step: evaluations, records, checkpoints, and how it ends before its last step."""

from corerl.errors import EngineDeadError, RunError, Stopped
from corerl.trainer.loop import Trainer
from corerl.trainer.saving import Saving


def fit(trainer: Trainer) -> None:
    """Train from ``trainer.step`` to ``trainer.total_steps``.

    Raises:
        Stopped: a signal asked for it; a checkpoint is saved.
        EngineDeadError: engines end too often; likewise.
    """
    saving = Saving(trainer)
    with trainer.stopping.listen():
        try:
            _begin(trainer)
            while trainer.step < trainer.total_steps:
                _do_step(trainer, saving)
        except (Stopped, EngineDeadError):
            saving.save_done()
            raise
        finally:
            saving.end()


def _begin(trainer: Trainer) -> None:
    with trainer.devices.to_generation(asleep=False):
        trainer.engines.send_weights(trainer.step, verify=True)
    if trainer.step == 0 and trainer.run.config.trainer.val_before_train and trainer.val_prompts:
        with trainer.stopping.abandonable():
            metrics = trainer.evaluate()
        trainer.log.write(metrics, step=0)


def _do_step(trainer: Trainer, saving: Saving) -> None:
    """One step, its evaluation, its record and its checkpoint."""
    saving.settle(wait=False)
    trainer.step += 1
    config = trainer.run.config.trainer
    try:
        metrics = trainer.train_step()
        if trainer.failure is None and trainer.val_prompts and trainer.is_due(config.test_freq):
            metrics |= _evaluate(trainer)
            metrics["timing_s/step"] += metrics.get("timing_s/testing", 0.0)
    except RunError as error:
        error.args = (f"step {trainer.step}: {error}", *error.args[1:])
        raise
    due = trainer.is_due(config.save_freq)
    if due:
        metrics["timing_s/save"] = saving.copy()
        metrics["timing_s/step"] += metrics["timing_s/save"]
    trainer.log.write(metrics, step=trainer.step)
    saving.done(metrics)
    trainer.run.plugins.hook.step_ended(run=trainer.run, step=trainer.step, metrics=metrics)
    if due:
        saving.write()
    if trainer.failure is not None:
        raise EngineDeadError(f"step {trainer.step}: {trainer.failure}") from trainer.failure
    if trainer.step < trainer.total_steps:
        trainer.stopping.check()


def _evaluate(trainer: Trainer) -> dict[str, float]:
    """Of a policy that is still to be saved."""
    try:
        return trainer.evaluate()
    except EngineDeadError as error:
        trainer.failure = error
        return {}
