"""The choice of a step's groups among those that are open or wait to be trained.

A group that began with version v must be trained by step v + 1 + k, its deadline; k is ``trainer.max_staleness``. A
step may take groups in another order than that of their numbers as long as all others can still meet their deadlines.
"""

import itertools
import math
from collections.abc import Collection, Sequence
from typing import Protocol, TypeVar

from corerl.contracts.config import TrainConfig


class Candidate(Protocol):
    """A group that was admitted.

    Attributes:
        number: in the order of admission.
        version: of the weights that begin it; None: it is not begun.
        finished: how many had finished when it did, itself included; 0: it is open.
    """

    number: int
    version: int | None
    finished: int


C = TypeVar("C", bound=Candidate)


class Choice:
    """Chooses by ``trainer.batch_order``.

    Attributes:
        extra: groups that a step begins beside its own, and ends without training.
    """

    def __init__(self, config: TrainConfig) -> None:
        trainer = config.trainer
        self._size, self._max_staleness = config.data.train_batch_size, trainer.max_staleness
        self._order = trainer.batch_order or ("windowed" if self._max_staleness else "fifo")
        self._window = trainer.batch_window or self._size
        over_samples = self._order == "first_finished" and not self._max_staleness
        self.extra = (trainer.batch_window or 0) if over_samples else 0
        self._awaited: set[int] = set()
        self._lacking = 0
        """so many groups of these numbers have to end before a step has its groups"""

    def begin(self) -> None:
        """Another step begins."""
        self._lacking = 0

    def ended(self, number: int) -> None:
        """A group is finished, or left out."""
        self._lacking -= number in self._awaited

    def of(self, step: int, members: Collection[C]) -> list[C]:
        """The groups of ``step``, by number; none if more have to finish before.

        Args:
            members: by number.
        """
        if self._lacking > 0:
            return []
        if self._order == "fifo":
            due = list(itertools.islice(members, self._size))
            return due if all(member.finished for member in due) else self._wait_for(1, due)
        if self.extra:
            first = sorted((each for each in members if each.finished), key=lambda member: member.finished)
            return sorted(first[: self._size], key=lambda member: member.number)
        chosen: dict[int, C] = {}
        for deadline in range(step, step + self._max_staleness + 1):
            due = [member for member in members if self._deadline(member) <= deadline]
            later = self._size * (deadline - step)  # as many can be trained in the steps between
            lacking = len(due) - later - sum(self._deadline(member) <= deadline for member in chosen.values())
            if lacking > 0:
                ready = [member for member in due if member.finished and member.number not in chosen]
                if len(ready) < lacking:
                    return self._wait_for(lacking - len(ready), due)
                ready.sort(key=lambda member: member.finished)
                chosen |= {member.number: member for member in ready[:lacking]}
        width = len(members) if self._order == "first_finished" else self._size + self._window
        window = [each for each in itertools.islice(members, width) if each.finished and each.number not in chosen]
        window.sort(key=lambda member: member.finished)
        chosen |= {member.number: member for member in window[: self._size - len(chosen)]}
        return [chosen[number] for number in sorted(chosen)] if len(chosen) == self._size else []

    def _wait_for(self, lacking: int, members: Sequence[C]) -> list[C]:
        """No groups before so many of the open ones among these have ended; so few choices look at all members."""
        self._lacking, self._awaited = lacking, {member.number for member in members if not member.finished}
        return []

    def _deadline(self, member: Candidate) -> float:
        """The last step that may train a group."""
        return math.inf if member.version is None else member.version + 1 + self._max_staleness
