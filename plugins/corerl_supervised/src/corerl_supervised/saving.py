"""Checkpoints of a training."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from corerl.checkpoint import random_state
from corerl.errors import RunError
from corerl.models import DTYPES, compute_dtype, resolve_device
from corerl.terminal import say
from corerl_supervised.plan import Plan
from corerl_supervised.workers import TrainedModel

if TYPE_CHECKING:
    from corerl_supervised.trainer import Records, Run


class Saving:
    """Saves the model, its optimizer and the place in the data; at most one checkpoint is being written."""

    def __init__(self, plan: Plan, run: "Run", model: TrainedModel, records: "Records") -> None:
        self._plan, self._run, self._model, self._records = plan, run, model, records
        config = plan.config
        dtype = compute_dtype(config.model, resolve_device(config.trainer.device, "trainer.device"))
        self._fixed: Mapping[str, Any] = {
            "config": asdict(config),
            "versions": plan.parts.versions(),
            "digests": plan.digests,
            "dtype": next(name for name, each in DTYPES.items() if each is dtype),
            "kl_coef": None,
        }
        self._saved = 0 if plan.checkpoint is None else plan.checkpoint.step

    def save(self, step: int) -> None:
        """Copy the state of this step and write it, in the background with ``trainer.async_save``.

        Raises:
            SaveError, DeadlineError: it, or the one before, could not be written.
        """
        self.settle()
        checkpoints = self._records.checkpoints
        checkpoints.copy(step, {"actor": self._model})
        state = {"sampler": self._plan.sampler.state_dict(), "trackers": self._records.log.state(), **self._fixed}
        checkpoints.write(state, random_state.present())
        self._saved = step
        if not self._plan.config.trainer.async_save:
            self.settle()

    def save_done(self, step: int) -> None:
        """Save the last step, unless it is saved; then the run ends."""
        if self._saved != step:
            self.save(step)
        self.settle()

    def end(self) -> None:
        """Wait for the checkpoint that is being written, however the run ends; an error of writing is printed."""
        try:
            self.settle()
        except RunError as error:
            say(str(error))

    def settle(self) -> None:
        """Wait for the checkpoint that is being written, and report it to plugins."""
        path = self._records.checkpoints.settle(wait=True)
        if path is not None:
            step = int(path.name.rpartition("_")[2])
            self._run.plugins.hook.checkpoint_saved(run=self._run, step=step, path=path)
