"""When each stage of a pipeline runs a call that all of them answer together; imports no SGLang."""

from typing import Any


class StagedCalls:
    """The calls of one stage, which wait for rounds of SGLang's loop (``event_loop_pp``).

    In each round a stage gets the calls of the same round of the stage before. It also reads tokens, and waits for
    them, that the stage before sends in its next round. So a stage that waits for the others in the round of the call
    stops them: the last stage answers in that round, each stage before it a round later than the next one.

    Args:
        rank: of the stage, from 0.
        size: number of stages.
    """

    def __init__(self, rank: int, size: int) -> None:
        self._rounds = size - 1 - rank
        self._waiting: list[list[Any]] = []

    def add(self, call: Any) -> None:
        """A call that came in this round."""
        self._waiting.append([self._rounds, call])

    def due(self) -> list[Any]:
        """The calls to answer in this round; to be asked once a round, after the stage has sent its calls on."""
        due = [call for rounds, call in self._waiting if not rounds]
        self._waiting = [[rounds - 1, call] for rounds, call in self._waiting if rounds]
        return due
