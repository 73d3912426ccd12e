"""The time of an episode: requests that wait, requests under way, the agent's own work, scoring."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from corerl.batch.rollouts import RequestRecord

KINDS = ("waiting", "generating", "tool", "scoring")


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
    played = _played(requests, seconds)
    found: list[Phase] = []
    for kind, start, end in [*_stretches(requests, played), ("scoring", played, played + seconds.get("scored", 0.0))]:
        if end > start:
            if found and found[-1].kind == kind:
                start = found.pop().start
            found.append(Phase(kind, start, end))
    return found


def totals(requests: Sequence[RequestRecord], seconds: Mapping[str, float]) -> dict[str, float]:
    """Kind -> seconds, for each of KINDS."""
    sums = dict.fromkeys(KINDS, 0.0) | {"scoring": seconds.get("scored", 0.0)}
    for kind, start, end in _stretches(requests, _played(requests, seconds)):
        sums[kind] += end - start
    return sums


def turns(requests: Sequence[RequestRecord]) -> list[Turn]:
    """The times of each request."""
    found, busy = dict[int, Turn](), 0.0
    for number, each in sorted(enumerate(requests), key=lambda pair: pair[1].asked):
        tool, busy = max(0.0, each.asked - busy), max(busy, each.answered)
        found[number] = Turn(number, tool, each.sent - each.asked, each.answered - each.sent)
    return [found[number] for number in range(len(requests))]


def context(requests: Sequence[RequestRecord]) -> int:
    """The largest number of tokens in a conversation: read and sampled ones from its first request on."""
    tokens = list[int]()
    for each in requests:
        tokens.append((tokens[each.parent] if each.parent >= 0 else 0) + each.read + each.sampled)
    return max(tokens, default=0)


def _played(requests: Sequence[RequestRecord], seconds: Mapping[str, float]) -> float:
    return max([seconds.get("played", 0.0), *(each.answered for each in requests)])


def _stretches(requests: Sequence[RequestRecord], played: float) -> Iterator[tuple[str, float, float]]:
    """(kind, start, end) between each two moments at which a request changes its state."""
    changes = [(played, 0, 0)]
    for each in requests:
        changes += [(each.asked, 1, 0), (each.sent, -1, 1), (each.answered, 0, -1)]
    changes.sort()
    start, waiting, generating = 0.0, 0, 0
    for end, waits, generates in changes:
        yield "generating" if generating else "waiting" if waiting else "tool", start, end
        start, waiting, generating = end, waiting + waits, generating + generates
