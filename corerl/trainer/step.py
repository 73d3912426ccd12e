"""A training step on its way: its batch, its clock, its metrics, and the samples that it leaves out."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any, Self

from corerl.contracts.experience import Experience
from corerl.contracts.rollout_correctors import Correction
from corerl.errors import NonFiniteError
from corerl.rollout.scored import ScoredRollouts
from corerl.rollout.stream import StepGroups
from corerl.telemetry.timers import Timers
from corerl.trainer.nonfinite import NonFiniteGuard
from corerl.trainer.stopping import Stopping


class Step:
    """What the verbs of a training step hand on. Inside ``with step:``, the time counts as ``timing_s/step``.

    Attributes:
        number: 1, 2, …
        metrics: so far.
        part: ``with step.part("adv"):`` counts the time as ``timing_s/adv``.
        abandonable: within ``with step.abandonable():``, a signal ends the step at once.
        groups, experience: the batch, once it is taken.
        correction: of the batch by rollout correction, once its advantages are estimated.
    """

    groups: StepGroups
    experience: Experience
    correction: Correction | None = None

    def __init__(self, number: int, stopping: Stopping, guard: NonFiniteGuard) -> None:
        self.number = number
        self.metrics: dict[str, float] = {}
        self.part = Timers()
        self.abandonable = stopping.abandonable
        self._guard = guard
        self._masked = 0
        self._open = ExitStack()

    def __enter__(self) -> Self:
        self._open.enter_context(self.part("step"))
        return self

    def __exit__(self, *error: Any) -> None:
        self._open.__exit__(*error)

    def hold(self, lock: AbstractContextManager[Any]) -> None:
        """Hold a lock until the step ends."""
        self._open.enter_context(lock)

    @property
    def batch(self) -> ScoredRollouts:
        """The responses with their scores."""
        return self.groups.scored

    def mask_nonfinite(self) -> None:
        """Take samples with a number that is not finite out of the batch.

        Raises:
            NonFiniteError: there are some, and ``trainer.on_nonfinite`` is not ``skip``.
        """
        self._masked += self._guard.mask_samples(self.number, self.experience, self.batch)
        self.metrics["training/nonfinite_samples"] = float(self._masked)

    def skip_update(self, error: NonFiniteError, rows: Sequence[int]) -> None:
        """Leave out an update of these rows of the batch.

        Raises:
            NonFiniteError: ``trainer.on_nonfinite`` is not ``skip``.
        """
        self._guard.handle(self.number, error, rows, self.experience, self.batch)

    @property
    def seconds(self) -> dict[str, float]:
        """Part -> seconds, once the step has ended."""
        return {**self.part.seconds, **self.groups.seconds}
