"""Relays of a group of many ranks: one call of the controller becomes a call on each rank of a relay.

A call of Ray costs its caller half a millisecond. The relay gathers the answers of its ranks; it answers before all are
there if one of them is an error, because the other ranks may wait for the failed one.
"""

import contextlib
import itertools
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import ray
import torch
from ray.exceptions import RayActorError, RayError
from torch import Tensor

from corerl_ray.calls import GATHER, POLL, Call, Member, Wait
from corerl_ray.ends import LOST_WAIT
from corerl_ray.host import Failure, WorkerHost
from corerl_ray.kept import KeptShare

RELAY_THREADS = {"asked": 1}
"""thread groups of a relay's process; all calls but ``waiting`` have one thread, so they reach the ranks in order"""

Method = Literal["call", "keep", "apply"]
"""of :class:`corerl_ray.host.WorkerHost`"""

MOST = 32
"""ranks of a relay, which may be on several nodes: of 1,024 ranks, controller and relays have 32 calls each"""


class Ended(NamedTuple):
    """Ray's error of a rank's call, as a value."""

    said: str
    is_dead: bool

    @classmethod
    def of(cls, error: RayError) -> "Ended":
        return cls(str(error), isinstance(error, RayActorError))

    def error(self) -> RayError:
        return RayActorError(error_msg=self.said) if self.is_dead else RayError(self.said)


class Order(NamedTuple):
    """Calls on ranks of one relay.

    Attributes:
        number: of the calls, for :meth:`Relay.rest` and :meth:`Relay.waiting`.
        first: the first argument of each called rank, by its position; None: ``args`` are all arguments.
        given: position of each rank in ``first``, or -1: it is not called. Ranks may share an argument.
        wanted: positions of the ranks whose results are returned; of others, errors alone.
        seconds: until no answer is needed any more.
    """

    number: int
    method: Method
    name: Any
    keywords: Mapping[str, Any]
    first: "Sequence[Any] | PackedShares | None"
    args: Sequence[Any]
    given: Sequence[int]
    wanted: frozenset[int]
    seconds: float


class Answer(NamedTuple):
    """Results of ranks, by position: those wanted, errors, and None for others."""

    results: Mapping[int, Any]
    is_over: bool


@dataclass(frozen=True)
class PackedShares:
    """Several :class:`corerl_ray.kept.KeptShare` of one batch; their rows end to end are tensors to send."""

    references: "Sequence[ray.ObjectRef[Any]]"
    rows: Tensor
    counts: Sequence[int]
    trims: bool
    factors: Tensor | None = None

    @classmethod
    def of(cls, shares: Sequence[KeptShare]) -> "PackedShares":
        first, counts = shares[0], [share.places.shape[0] for share in shares]
        factors = [share.factors for share in shares if share.factors is not None]
        joined = torch.cat(factors) if factors else None
        rows = torch.stack([torch.cat([getattr(share, name) for share in shares]) for name in ("shards", "places")])
        return cls(first.references, rows, counts, first.trims, joined)

    def shares(self) -> list[KeptShare]:
        factors: Sequence[Tensor | None] = [None] * len(self.counts)
        if self.factors is not None:
            factors = torch.split(self.factors, [*self.counts])
        own = zip(torch.split(self.rows, [*self.counts], dim=1), factors, strict=True)
        return [KeptShare(self.references, rows[0], rows[1], self.trims, factor) for rows, factor in own]


class Relay(WorkerHost):
    """The Ray actor of a relay."""

    def know(self, hosts: Sequence[Any]) -> None:
        """Take the actors of the ranks."""
        self.hosts = hosts
        self._open: dict[int, dict[ray.ObjectRef[Any], int]] = {}
        self._wanted: dict[int, frozenset[int]] = {}

    def pass_on(self, order: Order) -> Any:
        """Call the ranks: an :class:`Answer`; of ``keep``, also the list of results, if there is no error."""
        answer: Answer | Failure
        try:
            answer, values = self._pass_on(order)
        except Exception as error:
            answer, values = Failure.of(error), None
        return (answer, values) if order.method == "keep" else answer

    def _pass_on(self, order: Order) -> tuple[Answer, list[Any] | None]:
        own, kept = self._open.setdefault(order.number, {}), dict[int, Any]()
        self._wanted[order.number] = order.wanted
        first = order.first.shares() if isinstance(order.first, PackedShares) else order.first
        for position, given in enumerate(order.given):
            if given < 0:
                continue
            args = order.args if first is None else [first[given], *order.args]
            method = getattr(self.hosts[position], order.method)
            if order.method == "apply":
                own[method.remote(order.name, *args)] = position
            elif order.method == "call":
                own[method.remote(order.name, order.keywords, *args)] = position
            else:
                known, kept[position] = method.options(num_returns=2).remote(order.name, order.keywords, *args)
                own[known] = position
        answer = self.rest(order.number, order.seconds)
        if order.method != "keep" or not answer.is_over or any(map(is_error, answer.results.values())):
            return answer, None
        return answer, ray.get([kept[position] for position in sorted(order.wanted)], timeout=order.seconds)

    def rest(self, number: int, seconds: float) -> Answer:
        """Wait for the results that no answer has had: for all, or until one is an error; at most so many seconds."""
        own, results, end = self._open[number], dict[int, Any](), time.monotonic() + seconds
        while own and not any(map(is_error, results.values())) and (left := end - time.monotonic()) > 0:
            ready, others = ray.wait([*own], num_returns=1, timeout=min(POLL, left))
            if ready and others:
                ready += ray.wait(others, num_returns=len(others), timeout=GATHER)[0]
            for reference in ready:
                position = own.pop(reference)
                results[position] = self._result(reference, position in self._wanted[number])
        if not own:
            del self._open[number], self._wanted[number]
        return Answer(results, not own)

    def _result(self, reference: "ray.ObjectRef[Any]", is_wanted: bool) -> Any:
        try:
            result = ray.get(reference, timeout=LOST_WAIT)
        except RayError as error:
            return Ended.of(error)
        return result if is_wanted or is_error(result) else None

    def waiting(self, number: int) -> list[int]:
        """Positions of the ranks that have not answered."""
        return [*self._open.get(number, {}).values()]


def is_error(result: Any) -> bool:
    return isinstance(result, Failure | Ended)


@dataclass(eq=False)
class Relayed(Call):
    """Calls on ranks; ``member`` is their relay.

    Attributes:
        ranks: the called workers, by position.
        results: by position.
    """

    number: int
    ranks: Mapping[int, Member]
    results: dict[int, Any] = field(default_factory=dict)

    def take(self, wait: Wait, value: Answer) -> list[Any] | None:
        """By position."""
        for position, result in value.results.items():
            call = Call(self.ranks[position], self.reference)
            self.results[position] = wait.result(call, lambda result=result: _raised(result))  # type: ignore[misc]
        if value.is_over:
            return [self.results[position] for position in self.ranks]
        self.reference = self.member.host.rest.remote(self.number, max(POLL, wait.deadline - time.monotonic()))
        return None

    def called(self) -> list[Member]:
        return [*self.ranks.values()]

    def waiting(self, until: float) -> list[Member]:
        left = self.ranks.keys() - self.results.keys()
        reference = self.member.host.waiting.options(concurrency_group="asked").remote(self.number)
        with contextlib.suppress(RayError):  # all are named
            left = left & {*ray.get(reference, timeout=max(0.0, until - time.monotonic()))}
        return [self.ranks[position] for position in sorted(left)]


@dataclass(frozen=True)
class Relays:
    """The relays of a group, by the ranks of their workers; none for a small group."""

    members: tuple[Member, ...] = ()
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def call(
        self,
        method: Method,
        name: Any,
        args: Sequence[Any],
        keywords: Mapping[str, Any],
        seconds: float,
        *,
        first: Sequence[Any] | None = None,
        given: Sequence[int] | None = None,
        wanted: Collection[int] = (0,),
    ) -> "tuple[list[Relayed], list[ray.ObjectRef[Any]]]":
        """The calls, and of ``keep`` references of lists of the wanted results, in their order.

        Args:
            first, given: as of :class:`Order`, for all ranks of the group; None: all are called with ``args`` alone.
            wanted: as of :class:`Order`, ranks of the group.
        """
        calls, values, number = list[Relayed](), [], next(self._numbers)
        for relay in self.members:
            start = relay.ranks[0].rank
            own = [0 if given is None else given[rank.rank] for rank in relay.ranks]
            shares, places = _shares(first, own)
            local = frozenset(position for position in range(len(own)) if start + position in wanted)
            order = Order(number, method, name, keywords, shares, args, places, local, seconds)
            ranks = {position: relay.ranks[position] for position, place in enumerate(places) if place >= 0}
            if not ranks:
                continue
            if method == "keep":
                reference, value = relay.host.pass_on.options(num_returns=2).remote(order)
                values += [value] if local else []
            else:
                reference = relay.host.pass_on.remote(order)
            calls.append(Relayed(relay, reference, number, ranks))
        return calls, values


def divided(ranks: Sequence[Member]) -> list[tuple[Member, ...]]:
    """The ranks of each relay: consecutive ones, at most :data:`MOST`."""
    return [tuple(ranks[start : start + MOST]) for start in range(0, len(ranks), MOST)]


def _shares(first: Sequence[Any] | None, given: Sequence[int]) -> tuple[Sequence[Any] | PackedShares | None, list[int]]:
    """The first arguments of one relay's ranks, and their places among them."""
    if first is None:
        return None, list(given)
    own = {place: index for index, place in enumerate(dict.fromkeys(place for place in given if place >= 0))}
    shares = [first[place] for place in own]
    packed = PackedShares.of(shares) if shares and isinstance(shares[0], KeptShare) else shares
    return packed, [own.get(place, -1) for place in given]


def _raised(result: Any) -> Any:
    if isinstance(result, Ended):
        raise result.error()
    return result
