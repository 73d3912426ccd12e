"""Log-probs of the reference for parts of a step, each as soon as its groups are complete.

The parts are fixed: part p of P has the groups from ⌊p · G / P⌋ to ⌊(p + 1) · G / P⌋ of the step's G, in the order of
training. The order of responses decides the moment in which a part is read, and not its rows, so it changes no bit.
"""

import time
from collections.abc import Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from corerl.contracts.experience import Experience
from corerl.contracts.token_outputs import TokenOutputs, Wanted
from corerl.rollout.scored import ScoredRollouts

ENDING = 90.0
"""seconds in which a part that is read ends when the run does"""


class Reads(Protocol):
    """A model with a forward pass."""

    def forward(self, batch: Experience, wanted: Collection[Wanted]) -> TokenOutputs: ...


@dataclass(frozen=True)
class Reading:
    """A part that is read, or is to be read.

    Attributes:
        log_probs: (b, T), of the part's rows in the order of the step.
    """

    groups: Sequence[ScoredRollouts]
    log_probs: Future[Tensor]

    def is_of(self, groups: Sequence[ScoredRollouts]) -> bool:
        return all(own is group for own, group in zip(self.groups, groups, strict=True))


class PartwiseReference:
    """A :class:`corerl.trainer.models.EarlyReference`: a thread reads the parts one after the other.

    Args:
        reference: the model.
        groups: of a step.
        parts: of a step; at most one for each group.
    """

    def __init__(self, reference: Reads, groups: int, parts: int) -> None:
        self.seconds = 0.0
        self._reference = reference
        parts = min(parts, groups)
        self._cuts = [(groups * part // parts, groups * (part + 1) // parts) for part in range(parts)]
        self._readings: dict[int, Reading] = {}
        self._read_seconds = 0.0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="corerl-reference")

    def finished(self, groups: Sequence[ScoredRollouts | None]) -> None:
        """Begin to read the parts that are complete; one whose groups have changed is read again."""
        for part, (first, last) in enumerate(self._cuts):
            own = [group for group in groups[first:last] if group is not None]
            known = self._readings.get(part)
            if len(own) == last - first and (known is None or not known.is_of(own)):
                if known is not None:
                    known.log_probs.cancel()
                self._readings[part] = Reading(own, self._thread.submit(self._read, own))

    def forward(self, batch: Experience, wanted: Collection[Wanted]) -> TokenOutputs:
        """Wait for the log-probs of all parts; the other outputs are None.

        Raises:
            RunError: of the model.
        """
        log_probs = torch.zeros(batch.response_mask.shape)
        for part, (first, last) in enumerate(self._cuts):
            read = self._readings[part].log_probs.result()  # the forward pass of a runtime's workers has a deadline
            rows = (batch.group_ids >= first) & (batch.group_ids < last)
            log_probs[rows, : read.shape[1]] = read
        self._readings.clear()
        self.seconds, self._read_seconds = self._read_seconds, 0.0
        return TokenOutputs(log_probs=log_probs)

    def close(self) -> None:
        """Read no further part, and wait for the one that is read."""
        for reading in self._readings.values():
            reading.log_probs.cancel()
        with suppress(TimeoutError):
            self._thread.submit(int).result(ENDING)
        self._thread.shutdown(wait=False)

    def _read(self, groups: Sequence[ScoredRollouts]) -> Tensor:
        start = time.perf_counter()
        tokens = ScoredRollouts.join(groups).without_media().experience().tokens()
        log_probs = self._reference.forward(tokens, ["log_probs"]).log_probs
        assert log_probs is not None
        self._read_seconds += time.perf_counter() - start
        return log_probs
