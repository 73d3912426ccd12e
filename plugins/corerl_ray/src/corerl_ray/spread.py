"""Requests divided among replicas, each sent to the replica with the least remaining work.

If the engine or the process of a replica ends, the others take its unfinished requests; the error is raised at the end.
"""

import threading
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from corerl.contracts.rollout_backends import GenerationRequest
from corerl.errors import EngineDeadError
from corerl_ray.calls import EXHAUSTED, Call, Wait

PIECES = 16
"""pieces that fill a replica, if not all requests fit at a time"""


@dataclass
class Loads:
    """The open work of each replica, over all running calls.

    Attributes:
        most: largest number of samples of one replica, if there are others.
        samples, tokens: of each replica; tokens are the largest possible number.
    """

    most: int
    samples: list[int]
    tokens: list[int]
    lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def of(cls, replicas: int, most: int) -> "Loads":
        return cls(most, [0] * replicas, [0] * replicas)

    def add(self, replica: int, piece: "Piece", sign: int = 1) -> None:
        self.samples[replica] += sign * piece.samples
        self.tokens[replica] += sign * piece.tokens

    def choose(self, piece: "Piece", *, at_once: bool, without: Collection[int] = ()) -> int | None:
        """The replica with the least work among those with room; with ``at_once`` all have room.

        Args:
            without: replicas that get no work.
        """
        room = [
            replica
            for replica, samples in enumerate(self.samples)
            if replica not in without and (at_once or not samples or samples + piece.samples <= self.most)
        ]
        return min(room, key=lambda replica: self.tokens[replica], default=None)


@dataclass(frozen=True)
class Piece:
    """Some of the requests, by position."""

    positions: tuple[int, ...]
    samples: int
    tokens: int


class Spread:
    """One call on all replicas: an iterator of their results, which sends out waiting requests when it is advanced.

    Args:
        call: starts the call of a replica on some requests.
        wait: the wait of the whole call.
        absent: replicas that get no work at the moment.
        news: errors of replicas that were lost without a waiting call; also raised at the end.
    """

    def __init__(
        self,
        requests: Sequence[GenerationRequest],
        loads: Loads,
        call: Callable[[int, list[GenerationRequest]], Call],
        wait: Wait,
        absent: Callable[[], Collection[int]] = frozenset,
        news: Callable[[], dict[int, EngineDeadError]] = dict,
    ) -> None:
        self._requests, self._loads, self._call, self._wait = requests, loads, call, wait
        self._running: dict[Call, tuple[int, Piece]] = {}
        self._finished: set[int] = set()
        self._absent, self._news = absent, news
        self._dead = news()
        with loads.lock:
            self._waiting = deque(_cut(requests, loads))
        self._hand_out()
        self._results = self._yield()

    def __iter__(self) -> Iterator[dict[int, Any]]:
        return self._results

    def _yield(self) -> Iterator[dict[int, Any]]:
        """Position of a request -> a replica's result for it."""
        try:
            while self._running:
                for call, result in self._wait.some(list(self._running)).items():
                    if isinstance(result, EngineDeadError):
                        self._died(call, result)
                    elif isinstance(result, Exception):
                        raise result
                    elif result is EXHAUSTED:
                        self._ended(call)
                    else:
                        positions = self._running[call][1].positions
                        finished = {positions[index]: value for index, value in result.items()}
                        self._finished |= finished.keys()
                        yield finished
                self._hand_out()
            if errors := list((self._news() | self._dead).values()):
                raise as_one(errors)
            if self._waiting:
                raise EngineDeadError("no rollout worker with the policy's weights is left")
        finally:
            for call in list(self._running):
                self._ended(call)

    def _hand_out(self) -> None:
        with self._loads.lock:
            while self._waiting:
                without = {*self._dead, *self._absent()}
                replica = self._loads.choose(self._waiting[0], at_once=not self._running, without=without)
                if replica is None:
                    return
                piece = self._waiting.popleft()
                self._loads.add(replica, piece)
                call = self._call(replica, [self._requests[position] for position in piece.positions])
                self._running[call] = replica, piece

    def _died(self, call: Call, error: EngineDeadError) -> None:
        """Divide the open work of this replica among the others, one piece each."""
        replica, piece = self._running[call]
        self._ended(call)
        self._dead[replica] = error
        left = [position for position in piece.positions if position not in self._finished]
        living = len(self._loads.samples) - len({*self._dead, *self._absent()})
        if living:
            self._waiting.extendleft(_balanced(self._requests, left, living))

    def _ended(self, call: Call) -> None:
        replica, piece = self._running.pop(call)
        with self._loads.lock:
            self._loads.add(replica, piece, -1)


def as_one(errors: Sequence[EngineDeadError]) -> EngineDeadError:
    """One error for all lost workers; without any, the first error of an ended engine."""
    lost = [error for error in errors if error.workers]
    if len(lost) < 2:
        return [*lost, *errors][0]
    together = EngineDeadError("\n".join(map(str, lost)))
    together.workers = tuple(worker for error in lost for worker in error.workers)
    return together


def _cut(requests: Sequence[GenerationRequest], loads: Loads) -> list[Piece]:
    """One piece for each replica if all have room; otherwise small pieces, so that a replica gets the next in time."""
    replicas = len(loads.samples)
    if replicas == 1 or sum(loads.samples) + sum(request.sampling.n for request in requests) <= replicas * loads.most:
        return _balanced(requests, range(len(requests)), replicas)
    pieces, positions = [], list[int]()
    for position in range(len(requests)):
        positions.append(position)
        if sum(requests[chosen].sampling.n for chosen in positions) * PIECES >= loads.most:
            pieces.append(_piece(requests, positions))
            positions = []
    return [*pieces, _piece(requests, positions)] if positions else pieces


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
