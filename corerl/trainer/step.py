"""A training step on its way: its responses, the numbers of their rows, its clock, its metrics."""

from contextlib import AbstractContextManager, ExitStack
from typing import Any, Self

from corerl.contracts.dispatch import Future
from corerl.contracts.experience import Experience, RowNumbers
from corerl.rollout.scored import ScoredRollouts
from corerl.rollout.stream import StepGroups
from corerl.telemetry.timers import Timers
from corerl.trainer.stopping import Stopping


class Step:
    """What the verbs of a training step hand on. Inside ``with step:``, the time counts as ``timing_s/step``.

    Attributes:
        number: 1, 2, …
        metrics: so far.
        begun: calls on the batch whose end nobody has seen.
        background: by part, the time of threads beside the step.
        part: ``with step.part("adv"):`` counts the time as ``timing_s/adv``.
        abandonable: within ``with step.abandonable():``, a signal ends the step at once.
        groups, rows: the batch, once it is taken.
        tokens: what models read of the rows.
        of_critic, of_policy: the rows of the updates, once the advantages are estimated.
    """

    groups: StepGroups
    rows: RowNumbers
    tokens: Experience
    of_critic: Future
    of_policy: Future

    def __init__(self, number: int, stopping: Stopping) -> None:
        self.number = number
        self.metrics: dict[str, float] = {}
        self.begun: list[Future] = []
        self.background: dict[str, float] = {}
        self.part = Timers()
        self.abandonable = stopping.abandonable
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
    def scored(self) -> ScoredRollouts:
        """The responses with their scores."""
        return self.groups.scored

    @property
    def lag(self) -> int:
        """The largest staleness of the responses."""
        return max(self.scored.staleness(self.number), default=0)

    @property
    def seconds(self) -> dict[str, float]:
        """Part -> seconds, once the step has ended."""
        return {**self.part.seconds, **self.groups.seconds}
