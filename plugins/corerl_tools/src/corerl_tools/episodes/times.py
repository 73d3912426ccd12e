"""The phases of an episode, one after the other, and the times of its requests."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from corerl.batch.rollouts import RequestRecord
from corerl.batch.times import played_seconds, stretches


@dataclass(frozen=True)
class Phase:
    """A stretch of an episode, in seconds since the episode began.

    Attributes:
        kind: ``generating`` if a request is in the engine, else ``waiting`` if a request is to be sent; otherwise
            ``tool``, the agent's own work, and after the agent has returned ``scoring``.
    """

    kind: str
    start: float
    end: float

    @property
    def seconds(self) -> float:
        """Its length."""
        return self.end - self.start


@dataclass(frozen=True)
class Turn:
    """A request among those of its episode.

    Attributes:
        tool: seconds of the agent's work just before it; 0 if another request was under way.
        waiting, generating: seconds before and after it was sent.
    """

    request: int
    tool: float
    waiting: float
    generating: float


def phases(requests: Sequence[RequestRecord], seconds: Mapping[str, float]) -> list[Phase]:
    """The phases of an episode, one after the other; together they last as long as the episode and its scoring."""
    played = played_seconds(requests, seconds)
    found: list[Phase] = []
    for kind, start, end in [*stretches(requests, played), ("scoring", played, played + seconds.get("scored", 0.0))]:
        if end > start:
            if found and found[-1].kind == kind:
                start = found.pop().start
            found.append(Phase(kind, start, end))
    return found


def turns(requests: Sequence[RequestRecord]) -> list[Turn]:
    """The times of each request."""
    found, busy = dict[int, Turn](), 0.0
    for number, each in sorted(enumerate(requests), key=lambda pair: pair[1].asked):
        tool, busy = max(0.0, each.asked - busy), max(busy, each.answered)
        found[number] = Turn(number, tool, each.sent - each.asked, each.answered - each.sent)
    return [found[number] for number in range(len(requests))]
