"""When a checkpoint is saved, what is in it, and what happens when it cannot be written."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corerl.checkpoint import random_state
from corerl.checkpoint.store import step_of
from corerl.errors import DeadlineError, RunError, SaveError
from corerl.models import DTYPES, compute_dtype, resolve_device
from corerl.rollout.scored import FinishedGroup
from corerl.terminal.notices import Recurring, say

if TYPE_CHECKING:
    from corerl.trainer.loop import Trainer


class Saving:
    """Saves what ``trainer`` has done; at most one checkpoint is being written."""

    def __init__(self, trainer: "Trainer") -> None:
        self._trainer, self._config = trainer, trainer.run.config.trainer
        config = trainer.run.config
        dtype = compute_dtype(config.model, resolve_device(config.actor.device))
        self._fixed = {
            "config": asdict(config),
            "versions": trainer.run.parts.versions(),
            "digests": trainer.run.digests,
            "dtype": next(name for name, each in DTYPES.items() if each is dtype),
        }
        self._done = self._saved = trainer.step
        self._ends = False
        """training does not continue after this checkpoint"""
        self._state: Mapping[str, Any] = {}
        self._random_states: dict[str, Any] = {}
        self._finished: Sequence[FinishedGroup] = ()
        self._recurring = Recurring()

    def copy(self) -> None:
        """Copy the state of the present step, once the checkpoint before is written."""
        step = self._trainer.step
        self._ends = step == self._trainer.total_steps
        self.settle(wait=True)
        self._copy(step, last=self._ends)

    def done(self, metrics: Mapping[str, float]) -> None:
        """The step is over, and recorded: from now on a checkpoint is of it."""
        trainer = self._trainer
        self._done = trainer.step
        best, stream = self._config.keep_best, trainer.stream.state()
        self._finished = stream.finished
        self._state = {
            "sampler": stream.sampler,
            "kl_coef": None if trainer.kl_penalty is None else trainer.kl_penalty.coef,
            "trackers": trainer.records.log.state(),
            "score": metrics.get(best) if best else None,
        }
        self._random_states = random_state.present()

    def write(self) -> None:
        """Write the copy, in the background unless it is the last."""
        best, score = self._config.keep_best, self._state["score"]
        if best and (score is None or not math.isfinite(score)):
            why = f"no metric '{best}'" if score is None else f"'{best}' is {score}"
            notice = f"step {self._done}: {why} in this step, so its checkpoint cannot be the best"
            self._recurring("best", notice)
        self._write()
        self.settle(wait=self._ends or not self._config.async_save, must=self._ends)

    def save_done(self) -> None:
        """Save the last step that was done, unless it is saved; then the run ends, and nothing more is generated."""
        self._ends = True
        self.settle(wait=True)
        if self._saved != self._done:
            self._trainer.stream.close()
            self._trainer.devices.to_last_checkpoint()
            self._copy(self._done)
            self._write()
            self.settle(wait=True, must=True)

    def settle(self, *, wait: bool, must: bool = False) -> None:
        """Report the written checkpoint to plugins; an error of writing is printed.

        Raises:
            SaveError, DeadlineError: it could not be written, and ``must`` be or ``trainer.on_save_error`` is ``stop``.
        """
        trainer = self._trainer
        try:
            path = trainer.records.checkpoints.settle(wait=wait)
        except (SaveError, DeadlineError) as error:
            self._failed(error, must=must)
            return
        if path is not None:
            self._saved = step_of(path)
            trainer.run.plugins.hook.checkpoint_saved(run=trainer.run, step=step_of(path), path=path)

    def end(self, *, workers_ended: bool = False) -> None:
        """Wait for what is being written, however the run ends, unless those who write it have ended before."""
        self._ends = True
        self._trainer.records.checkpoints.drop(wait=not workers_ended)
        if workers_ended:
            self._trainer.records.checkpoints.give_up()
        try:
            self.settle(wait=True)
        except RunError as error:
            say(str(error))

    def _copy(self, step: int, *, last: bool = False) -> None:
        trainer, models = self._trainer, self._trainer.models
        export = self._config.save_huggingface == "always" or (last and self._config.save_huggingface == "last")
        try:
            with trainer.engines.actor_in_use:
                trainer.records.checkpoints.copy(step, models.trained, models.actor.export if export else None)
        except SaveError as error:
            self._failed(error, must=last)

    def _write(self) -> None:
        finished, hook = self._finished, self._trainer.run.plugins.hook

        def write_finished(folder: Path) -> None:
            if finished and not hook.write_groups(folder=folder, groups=finished):
                notice = f"{len(finished)} finished groups are not in the checkpoint (pip install corerl-tools)"
                self._recurring("groups", notice)

        self._trainer.records.checkpoints.write({**self._state, **self._fixed}, self._random_states, write_finished)

    def _failed(self, error: RunError, *, must: bool) -> None:
        if must or self._config.on_save_error == "stop":
            raise error
        goes_on = "" if self._ends else "; training continues (trainer.on_save_error=continue)"
        self._recurring("save", f"{error}{goes_on}")
