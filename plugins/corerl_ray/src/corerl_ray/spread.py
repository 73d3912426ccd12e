"""Requests handed out to replicas: of a known session to the one that has its prefix, else to the least loaded.

If the engine or the process of a replica ends, the others take its unfinished requests; the error is raised at the end.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from corerl.contracts.rollout_backends import GenerationRequest
from corerl.errors import EngineDeadError

PIECES = 16
"""of which a replica has its fill, if not all requests fit at a time"""
SESSIONS = 65_536
"""the latest, whose replicas are known"""

T = TypeVar("T")


@dataclass
class Loads:
    """The open work of each replica, over all running calls; one thread changes it.

    Attributes:
        most: samples of one replica, as far as there are others.
        samples, tokens: of each replica; tokens are the most that may come.
        sessions: name -> the replica that has its prefix; the latest comes last.
    """

    most: int
    samples: list[int]
    tokens: list[int]
    sessions: "OrderedDict[str, int]" = field(default_factory=OrderedDict)

    @classmethod
    def of(cls, replicas: int, most: int) -> "Loads":
        return cls(most, [0] * replicas, [0] * replicas)

    def add(self, replica: int, piece: "Piece", sign: int = 1) -> None:
        self.samples[replica] += sign * piece.samples
        self.tokens[replica] += sign * piece.tokens

    def choose(self, piece: "Piece", *, at_once: bool, without: Collection[int] = ()) -> int | None:
        """The piece's home if it has room; else the replica with the fewest tokens among those that have.

        Args:
            at_once: any has room, but for the preference of a home.
            without: replicas that get nothing.
        """
        living = [replica for replica in range(len(self.samples)) if replica not in without]
        room = [replica for replica in living if self.has_room(replica, piece.samples)]
        if piece.home in room:
            return piece.home
        return min(living if at_once else room, key=lambda replica: self.tokens[replica], default=None)

    def has_room(self, replica: int, samples: int) -> bool:
        """For so many more; an idle one has for any number."""
        return not self.samples[replica] or self.samples[replica] + samples <= self.most

    def remember(self, replica: int, sessions: Sequence[str]) -> None:
        """The replica serves these; the oldest of more than ``SESSIONS`` are forgotten."""
        for session in filter(None, sessions):
            self.sessions[session] = replica
            self.sessions.move_to_end(session)
        while len(self.sessions) > SESSIONS:
            self.sessions.popitem(last=False)


@dataclass(frozen=True)
class Piece:
    """Some of the requests, by their positions; ``home`` is the replica that has the prefixes of their sessions."""

    positions: tuple[int, ...]
    samples: int
    tokens: int
    home: int | None = None


class Spread:
    """The requests of one call on all replicas: waiting, running, finished.

    Args:
        call: starts the call of a replica on some requests; returns its number.
        absent: replicas that get no work at the moment.
        news: errors of replicas that were lost without a running call; also raised at the end.

    Attributes:
        running: number of a call -> its replica and its piece.
    """

    def __init__(
        self,
        requests: Sequence[GenerationRequest],
        loads: Loads,
        call: Callable[[int, list[GenerationRequest]], int],
        absent: Callable[[], Collection[int]] = frozenset,
        news: Callable[[], dict[int, EngineDeadError]] = dict,
    ) -> None:
        self._requests, self._loads, self._call = requests, loads, call
        self.running: dict[int, tuple[int, Piece]] = {}
        self._finished: set[int] = set()
        self._absent, self._news = absent, news
        self._dead = news()
        self._waiting = deque(_cut(requests, loads, absent()))

    def hand_out(self) -> None:
        """Start calls on waiting requests, as far as replicas have room."""
        while self._waiting:
            without = {*self._dead, *self._absent()}
            replica = self._loads.choose(self._waiting[0], at_once=not self.running, without=without)
            if replica is None:
                return
            piece = self._waiting.popleft()
            requests = [self._requests[position] for position in piece.positions]
            self._loads.add(replica, piece)
            self._loads.remember(replica, [request.session for request in requests])
            self.running[self._call(replica, requests)] = replica, piece

    def finished(self, call: int, results: Mapping[int, T]) -> dict[int, T]:
        """The results of a call, by their positions among all requests."""
        positions = self.running[call][1].positions
        finished = {positions[index]: value for index, value in results.items()}
        self._finished |= finished.keys()
        return finished

    def ended(self, call: int) -> None:
        """A call has ended."""
        replica, piece = self.running.pop(call)
        self._loads.add(replica, piece, -1)

    def died(self, calls: Iterable[int], error: EngineDeadError) -> None:
        """Divide the open work of these calls on one replica among the others, one piece each."""
        left: list[int] = []
        for call in calls:
            replica, piece = self.running[call]
            self.ended(call)
            if not error.is_handled:
                self._dead[replica] = error
            left += [position for position in piece.positions if position not in self._finished]
        living = len(self._loads.samples) - len({*self._dead, *self._absent()})
        self._waiting.extendleft(_balanced(self._requests, left, max(1, living)))

    def check(self) -> None:
        """Once nothing is running:

        Raises:
            EngineDeadError: an engine was lost, or requests are left and no replica.
        """
        if errors := list((self._news() | self._dead).values()):
            raise as_one(errors)
        if self._waiting:
            raise EngineDeadError("no rollout worker with the policy's weights is left")


def as_one(errors: Sequence[EngineDeadError]) -> EngineDeadError:
    """One error for all lost workers; without any, the first error of an ended engine."""
    lost = [error for error in errors if error.workers]
    if len(lost) < 2:
        return [*lost, *errors][0]
    together = EngineDeadError("\n".join(map(str, lost)))
    together.workers = tuple(worker for error in lost for worker in error.workers)
    together.is_handled = all(error.is_handled for error in lost)
    return together


def _cut(requests: Sequence[GenerationRequest], loads: Loads, absent: Collection[int]) -> list[Piece]:
    """Those with a home, by home; of the others one piece for each replica where all have room, else small ones."""
    replicas = len(loads.samples)
    if replicas == 1:
        return _balanced(requests, range(len(requests)), replicas)
    homes: dict[int | None, list[int]] = {}
    for position, request in enumerate(requests):
        home = loads.sessions.get(request.session)
        homes.setdefault(None if home in absent else home, []).append(position)
    others = homes.pop(None, [])
    pieces = [piece for home, positions in homes.items() for piece in _of_home(requests, positions, loads, home)]
    if sum(loads.samples) + sum(request.sampling.n for request in requests) <= replicas * loads.most:
        return [*pieces, *_balanced(requests, others, replicas)]
    return [*pieces, *_small(requests, others, loads.most)]


def _of_home(
    requests: Sequence[GenerationRequest], positions: Sequence[int], loads: Loads, home: int | None
) -> list[Piece]:
    """One piece if the home has room for it; else small ones, of which others may get some."""
    assert home is not None
    piece = _piece(requests, positions)
    fits = loads.samples[home] + piece.samples <= loads.most
    pieces = [piece] if fits else _small(requests, positions, loads.most)
    return [replace(piece, home=home) for piece in pieces]


def _small(requests: Sequence[GenerationRequest], positions: Sequence[int], most: int) -> list[Piece]:
    """So that a replica gets the next in time."""
    pieces, together = [], list[int]()
    for position in positions:
        together.append(position)
        if sum(requests[chosen].sampling.n for chosen in together) * PIECES >= most:
            pieces.append(_piece(requests, together))
            together = []
    return [*pieces, _piece(requests, together)] if together else pieces


def _balanced(requests: Sequence[GenerationRequest], positions: Sequence[int], replicas: int) -> list[Piece]:
    """Assign each of these requests, the longest first, to the piece with the fewest tokens."""
    chosen: list[list[int]] = [[] for _ in range(replicas)]
    tokens = [0] * replicas
    for position in sorted(positions, key=lambda position: -_tokens(requests[position])):
        replica = tokens.index(min(tokens))
        chosen[replica].append(position)
        tokens[replica] += _tokens(requests[position])
    return [_piece(requests, sorted(positions)) for positions in chosen if positions]


def _piece(requests: Sequence[GenerationRequest], positions: Sequence[int]) -> Piece:
    chosen = [requests[position] for position in positions]
    samples = sum(request.sampling.n for request in chosen)
    return Piece(tuple(positions), samples, sum(map(_tokens, chosen)))


def _tokens(request: GenerationRequest) -> int:
    return request.sampling.n * request.sampling.max_tokens
