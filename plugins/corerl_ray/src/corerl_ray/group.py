"""The workers of one role, used like one worker."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import ray

from corerl.contracts.dispatch import Dispatch, Future, Place, dispatch_of
from corerl.contracts.rollout_backends import EngineLoad, GenerationRequest, OnFinished
from corerl.contracts.workers import Requests
from corerl.errors import EngineDeadError, NonFiniteError
from corerl.terminal import say
from corerl_ray.calls import Call, Member, Waiter
from corerl_ray.exchange import Exchange
from corerl_ray.kept import KeptRows
from corerl_ray.relay import Relays
from corerl_ray.shares import Split, split
from corerl_ray.spread import Loads

LATE = 1.0
"""seconds for the result of a call whose deadline passed before its caller waited"""


@dataclass
class Pending:
    """A running call: the future of corerl.contracts.dispatch."""

    waiter: Waiter
    calls: Sequence[Call]
    what: str
    deadline: float
    join: Callable[[list[Any]], Any]
    done: bool = False
    value: Any = None
    error: Exception | None = None

    def result(self) -> Any:
        if not self.done:
            try:
                deadline = max(self.deadline, time.monotonic() + LATE)  # it may be over since long ago
                self.value = self.join(self.waiter.wait(self.calls, deadline, self.what))
            except Exception as error:
                self.error = error
            self.done, self.calls = True, ()
        if self.error is not None:
            raise self.error
        return self.value


@dataclass(frozen=True)
class GroupMethod:
    """One method of the group; a call waits for the result, :meth:`submit` does not.

    A method with dispatch ``spread`` is a coroutine function, ``method(requests, on_finished)``.
    """

    group: "Group"
    name: str
    declared: Dispatch

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        if self.declared.mode == "spread":
            return self._spread(*args)
        return self.submit(*args, **keywords).result()

    def submit(self, *args: Any, **keywords: Any) -> Future:
        """Start the call.

        Raises:
            TypeError: the method's dispatch is ``spread``, so it is a coroutine function.
        """
        if self.declared.mode == "spread":
            raise TypeError(f"{self.group.role}.{self.name} is a coroutine function: await its call")
        return getattr(self, f"_{self.declared.mode}")(args, keywords)  # type: ignore[no-any-return]

    def _all(self, args: Sequence[Any], keywords: Mapping[str, Any]) -> Pending:
        group, calls = self.group, list[Call]()
        if group.relays.members:
            calls += group.relays.call("call", self.name, args, keywords, group.timeout)[0]
        else:
            calls += [call(member, self.name, args, keywords) for member in group.members]
        return self._pending(calls, _agreed)

    def _revive(self, args: Sequence[Any], keywords: Mapping[str, Any]) -> Pending:
        self.group.revive()
        return self._all(args, keywords)

    def _rank_zero(self, args: Sequence[Any], keywords: Mapping[str, Any]) -> Pending:
        return self._pending([call(self.group.members[0], self.name, args, keywords)], _agreed)

    def _split(self, args: Sequence[Any], keywords: Mapping[str, Any]) -> Pending:
        if self.group.shared_gpus is not None:
            self.group.shared_gpus.use(self.group)
        whole = split(args[0], self.group.places[0].data_parallel_size)
        takes_first, is_kept = self.declared.merge == "rank_zero", isinstance(whole.whole, KeptRows)
        shares = [
            None if share.is_empty else share.value if is_kept else ray.put(share.value) for share in whole.shares
        ]
        given = [place.data_parallel_rank for place in self.group.places]
        given = [rank if shares[rank] is not None else -1 for rank in given]
        ranks = [rank for rank in given if rank >= 0]
        calls, values = self._on_shares(shares, given, args[1:], keywords, is_kept and not takes_first, takes_first)
        return self._pending(calls, lambda results: _together(whole, ranks, results, takes_first, values))

    def _on_shares(
        self,
        shares: Sequence[Any],
        given: Sequence[int],
        args: Sequence[Any],
        keywords: Mapping[str, Any],
        keeps: bool,
        takes_first: bool,
    ) -> tuple[list[Call], list[Any]]:
        """The calls, and references of kept results: of each share, in the order of the ranks that have it first.

        Args:
            given: by rank, its share, or -1: it is not called.
        """
        group, calls, values = self.group, list[Call](), list[Any]()
        firsts = {share: rank for rank, share in reversed(list(enumerate(given))) if share >= 0}
        wanted = {0} if takes_first else {*firsts.values()}
        if group.relays.members:
            relayed, values = group.relays.call(
                "keep" if keeps else "call",
                self.name,
                args,
                keywords,
                group.timeout,
                first=shares,
                given=given,
                wanted=wanted,
            )
            return [*relayed], values
        for rank, (member, share) in enumerate(zip(group.members, given, strict=True)):
            if share < 0:
                continue
            if keeps:
                own, value = keep(member, self.name, [shares[share], *args], keywords)
                values += [value] if rank in wanted else []
            else:
                own = call(member, self.name, [shares[share], *args], keywords)
            calls.append(own)
        return calls, values

    async def _spread(
        self, requests: Sequence[GenerationRequest], on_finished: OnFinished, engines: Requests | None = None
    ) -> None:
        await self.group.exchange.generate(self.name, requests, on_finished, what(self.group, self.name), engines)

    def _pending(self, calls: Sequence[Call], join: Callable[[list[Any]], Any]) -> Pending:
        return pending(self.group, self.name, calls, join)


def what(group: "Group", name: str) -> str:
    """The name of a call and of its deadline's key, for messages."""
    return f"{group.role}.{name} (runtime.options.timeout)"


def call(member: Member, name: str, args: Sequence[Any], keywords: Mapping[str, Any]) -> Call:
    """A call of a method of one worker."""
    return Call(member, member.host.call.remote(name, dict(keywords), *args))


def keep(
    member: Member, name: str, args: Sequence[Any], keywords: Mapping[str, Any]
) -> "tuple[Call, ray.ObjectRef[Any]]":
    """A call whose result stays in the object store, and the reference of the result."""
    known, value = member.host.keep.options(num_returns=2).remote(name, dict(keywords), *args)
    return Call(member, known), value


def pending(group: "Group", name: str, calls: Sequence[Call], join: Callable[[list[Any]], Any]) -> Pending:
    """The future of calls of one method on workers of a group."""
    return Pending(group.waiter, calls, what(group, name), time.monotonic() + group.timeout, join)


@dataclass
class SharedGpus:
    """GPUs shared by roles: the last group keeps unused memory there, which the next group needs."""

    last: "Group | None" = None

    def use(self, group: "Group") -> None:
        """Free the cache of the last group, if another group works now."""
        if self.last is not None and self.last is not group:
            self.last.free_cache()
        self.last = group


@dataclass(eq=False)
class Group:
    """All workers of a role, with those methods of the worker that declare a dispatch.

    A group of replicas (rollout workers) goes on without one that is lost, as long as another can generate; with a
    listener (:class:`corerl.contracts.runtimes.Replicas`) also without one whose engine has ended.

    Attributes:
        worker: class of the workers.
        members: the present workers, by rank.
        places: by rank, the worker's share of split work.
        timeout: largest duration of a call, in seconds.
        loads: each worker's open requests of spread work.
        is_concurrent: the processes take calls while others run; the workers are replicas.
        shared_gpus: of the training roles; None without GPUs.
        relays: pass on the calls on all workers.
        restart_member: starts a worker of this rank again; None if it cannot be.
        latest: by rank, the worker that is there, or was last.
        takes_weights: the workers have weights of the policy.
        without_weights: ranks of workers that were started again and have not got the policy's weights yet.
        aside: by rank, workers that are there, and whose engines have ended.
        starts: number of times that what had ended was started again.
        exchange: the calls of spread methods.
    """

    role: str
    worker: type
    members: tuple[Member, ...]
    places: tuple[Place, ...]
    waiter: Waiter
    timeout: float
    loads: Loads
    is_concurrent: bool = False
    shared_gpus: SharedGpus | None = None
    relays: Relays = field(default_factory=Relays)
    restart_member: Callable[[int], Member | None] = lambda rank: None
    takes_weights: bool = True
    latest: dict[int, Member] = field(init=False)
    without_weights: set[int] = field(default_factory=set)
    aside: dict[int, Member] = field(default_factory=dict)
    starts: int = 0
    exchange: Exchange = field(init=False)
    _news: dict[int, EngineDeadError] = field(default_factory=dict)
    _listener: Callable[[EngineDeadError], None] | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)
    reviving: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.latest = {member.rank: member for member in self.members}
        self.exchange = Exchange(self)

    def apply(self, function: Callable[..., Any], *args: Any) -> list[Call]:
        """Calls of ``function(host, *args)`` in the processes of all workers: a step of a transport of weights."""
        if self.relays.members:
            wanted = range(len(self.members))
            return [*self.relays.call("apply", function, args, {}, self.timeout, wanted=wanted)[0]]
        return [Call(member, member.host.apply.remote(function, *args)) for member in self.members]

    def engine_load(self) -> EngineLoad | None:
        """For :class:`corerl.contracts.rollout_backends.LoadReporting`: of the replicas that take requests."""
        absent = self.absent()
        return EngineLoad.join(load for rank, load in list(self.exchange.engines.items()) if rank not in absent)

    def absent(self) -> set[int]:
        """Ranks that take no requests."""
        return (self.latest.keys() - {member.rank for member in self.members}) | self.without_weights

    def has(self, member: Member) -> bool:
        """Its process is there."""
        return any(other.host is member.host for other in (*self.members, *self.aside.values()))

    def on_loss(self, listener: Callable[[EngineDeadError], None]) -> None:
        """For :class:`corerl.contracts.runtimes.Replicas`."""
        self._listener = listener

    def lose(self, member: Member, reason: str) -> EngineDeadError | None:
        """Go on without a worker that is lost; the error of its loss. None: no other can generate."""
        error = EngineDeadError(reason)
        facts = member.facts
        error.workers = ((facts.address, facts.pid),) if facts is not None else ()
        with self._lock:
            if not self._goes_on_without(member):
                return None
            self.aside.pop(member.rank, None)
            if self._listener is None:
                self._news[member.rank] = error
        ray.kill(member.host, no_restart=True)
        self._report(error)
        return error

    def set_aside(self, member: Member, error: EngineDeadError) -> EngineDeadError:
        """Go on without a worker whose engine has ended, if there is a listener and another can generate."""
        if self._listener is None:
            return error
        with self._lock:
            if not any(other is member for other in self.members):  # another call has met the same end
                error.is_handled = bool(self._able())
                return error
            if not self._goes_on_without(member):
                return error
            self.aside[member.rank] = member
        self._report(error)
        return error

    def _goes_on_without(self, member: Member) -> bool:
        left = tuple(other for other in self.members if other.host is not member.host)
        if not {other.rank for other in left} - self.without_weights:
            return False
        self.members = left
        self.without_weights.discard(member.rank)
        return True

    def _able(self) -> set[int]:
        """Ranks that take requests."""
        return {member.rank for member in self.members} - self.without_weights

    def _report(self, error: EngineDeadError) -> None:
        if self._listener is not None:
            error.is_handled = True
            self._listener(error)

    def dies_at_start(self, member: Member, reason: str) -> bool:
        """Report a worker that died while it was started again; False: there is no listener, which would start it."""
        if self._listener is None:
            return False
        self._report(EngineDeadError(f"the {member} died while it was started again: {reason}"))
        return True

    def take_news(self) -> dict[int, EngineDeadError]:
        """Errors of workers that were lost without a waiting call; each is returned once."""
        with self._lock:
            news, self._news = self._news, {}
        return news

    def restart_lost(self) -> None:
        """For :class:`corerl.contracts.runtimes.Replicas`."""
        self.revive()

    def revive(self) -> None:
        """Start again what has ended, one after the other; it takes no requests before :meth:`have_weights`."""
        with self.reviving:
            self.starts += 1
            for rank in sorted(self.latest.keys() - {member.rank for member in self.members}):
                aside = self.aside.get(rank)
                member = self.restart_member(rank) if aside is None else self._start_engine(aside)
                with self._lock:
                    self._news.pop(rank, None)
                    if member is None or (aside is not None and rank not in self.aside):  # lost meanwhile
                        continue
                    self.aside.pop(rank, None)
                    if self.takes_weights:
                        self.without_weights.add(rank)
                    self.latest[rank] = member
                    self.members = tuple(sorted((*self.members, member), key=lambda one: one.rank))

    def _start_engine(self, member: Member) -> Member | None:
        """Start the engine of a worker whose process is there; None if it does not start."""
        call = Call(member, member.host.call.remote("restart", {}))
        try:
            self.waiter.wait([call], time.monotonic() + self.timeout, f"{self.role}.restart (runtime.options.timeout)")
        except EngineDeadError as error:
            say(f"{error}; the run continues with {len(self.members)} of {len(self.latest)}")
            return None
        return replace(member)  # late news of the engine of before are of another member

    def newcomers(self) -> tuple[Member, ...]:
        """Those that were started again and have no weights of the policy."""
        return tuple(member for member in self.members if member.rank in self.without_weights)

    def have_weights(self, members: Sequence[Member]) -> None:
        """Record that these workers have the policy's weights."""
        self.without_weights -= {member.rank for member in members}

    def __getattr__(self, name: str) -> GroupMethod:
        if name.startswith("__"):
            raise AttributeError(name)
        return GroupMethod(self, name, dispatch_of(self.worker, name))


def _agreed(results: list[Any]) -> Any:
    for result in results:
        if isinstance(result, NonFiniteError):
            raise result
    return results[0]


def _together(
    whole: Split, ranks: Sequence[int], results: Sequence[Any], takes_first: bool, kept: Sequence[Any]
) -> Any:
    """The joined result of the called workers; ``ranks`` are their data-parallel ranks.

    Args:
        kept: references of results that stay, of each data-parallel rank once, one or a list at each reference.
    """
    if not results:
        return []
    errors = [result if isinstance(result, NonFiniteError) else None for result in results]
    by_rank = {rank: index for index, rank in reversed(list(enumerate(ranks)))}
    if any(errors):
        raise whole.merge_nonfinite(
            [errors[by_rank[rank]] if rank in by_rank else None for rank in range(len(whole.shares))]
        )
    if takes_first:
        return results[0]
    by_rank = dict(sorted(by_rank.items(), key=lambda item: item[1]))
    shares = Split(whole.whole, tuple(whole.shares[rank] for rank in by_rank))
    return shares.keep(kept) if kept else shares.join([results[index] for index in by_rank.values()])
