"""Runs whose workers are lost are started again in this process, from their last checkpoint."""

import copy
import dataclasses
import gc
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from corerl.checkpoint.resume import Checkpoint, newest_whole, taken
from corerl.errors import CoreRLError, LostError, RunError
from corerl.terminal.notices import say
from corerl.trainer.plan import Plan
from corerl.trainer.stopping import Stopping
from corerl_check.run_status import StatusFile, recorded

if TYPE_CHECKING:
    from corerl.trainer.loop import Trainer

BACKOFF = 10.0
"""seconds before the first restart; twice as long before each further one that counts"""
LONGEST = 300.0

STEADY = 3600.0
"""seconds without a loss after which, with a later checkpoint, earlier restarts count no more"""


class Restarts:
    """What outlives the workers of a run: its folder with lock and status, and how often they were started again.

    Args:
        stack: holds lock and status until the run ends.

    Attributes:
        count: of all restarts, also those that count no more towards ``trainer.max_restarts`` and the wait.
    """

    def __init__(self, plan: Plan, stopping: Stopping, stack: ExitStack) -> None:
        self._stopping = stopping
        self._stack, self._most = stack, plan.config.trainer.max_restarts
        self._first_prompts = plan.sampler.state_dict()
        self._folder: Path | None = None
        self._status: StatusFile | None = None
        self._failed: dict[str, str] = {}
        """where -> what was said, since the last checkpoint; no exceptions, whose traces would hold the models"""
        self._said = ""
        self._recent = 0
        """restarts that count"""
        self._began, self._began_at = time.monotonic(), 0
        """when the present workers were started, and from which step"""
        self.count = 0

    def take(self, folder: Path) -> None:
        """Create the run's folder and lock it."""
        if self._folder is None:
            folder.mkdir(parents=True, exist_ok=True)
            self._stack.enter_context(taken(folder))
            self._folder = folder

    def record(self, total_steps: int) -> None:
        """Write the run's status, now and when it ends."""
        assert self._folder is not None
        if self._status is None:
            self._status = self._stack.enter_context(recorded(self._folder, total_steps))

    def after(self, error: CoreRLError, plan: Plan, trainer: "Trainer | None") -> Plan:
        """How the run goes on after the loss of its workers; any other error is raised.

        Args:
            plan: what was going on.
            trainer: None: its workers were being started.

        Raises:
            LostError: ``trainer.max_restarts`` allows no further start, or workers cannot be started again.
            RunError: the same step has failed twice, and no checkpoint was saved in between.
        """
        if not isinstance(error, LostError):
            if trainer is None and self.count:
                raise LostError(f"{self._said}; its workers cannot be started again: {error}") from error
            raise error
        where, said = "the start" if trainer is None else f"step {trainer.step}", str(error)
        checkpoint, run_ids = plan.checkpoint, plan.run_ids
        if trainer is not None:
            run_ids = trainer.records.log.state()
            if (
                trainer.records.checkpoints.newest is not None
            ):  # else there may be newer ones, of a run that went another way
                checkpoint = newest_whole(trainer.run.folder) or checkpoint
                self._failed.clear()
        if where in self._failed:
            first = self._failed[where]
            raise RunError(
                f"{where} has failed twice without progress: first: {first}; after the restart: {said}"
            ) from error
        self._failed[where] = self._said = said
        self._forget(checkpoint)
        if self._recent == self._most:
            if not self._most:
                raise error
            raise LostError(f"trainer.max_restarts = {self._most} allows no further restart: {said}") from error
        self._recent += 1
        self.count += 1
        if self._status is not None:
            self._status.restarted()
        sampler = copy.deepcopy(plan.sampler)  # a stream of the lost workers may still read theirs
        sampler.load_state_dict(self._first_prompts if checkpoint is None else checkpoint.sampler)
        return dataclasses.replace(plan, checkpoint=checkpoint, folder=self._folder, run_ids=run_ids, sampler=sampler)

    def _forget(self, checkpoint: Checkpoint | None) -> None:
        """Count from 0 if the workers have worked for long, up to a later checkpoint than the one they began with."""
        reached = 0 if checkpoint is None else checkpoint.step
        if reached > self._began_at and time.monotonic() - self._began >= STEADY:
            self._recent = 0
        self._began_at = reached

    def wait(self, plan: Plan) -> None:
        """Free what the lost workers held here, and give the machines time.

        Raises:
            Stopped: a signal came.
        """
        gc.collect()
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.empty_cache()
        seconds = min(LONGEST, BACKOFF * 2 ** (self._recent - 1))
        source = "the start (there is no checkpoint)" if plan.checkpoint is None else plan.checkpoint.path
        say(
            f"{self._said}\nthe workers are started again from {source} in {seconds:g} s ({self._recent} of "
            f"trainer.max_restarts = {self._most})"
        )
        with self._stopping.abandonable():
            time.sleep(seconds)
        self._began = time.monotonic()
