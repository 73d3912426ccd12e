"""Waiting for workers: each wait has a deadline; a dead worker ends it at once, unless its group can continue."""

import copy
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import ActorDiedError, GetTimeoutError, RayActorError, RayError

from corerl.errors import (
    CoreRLError,
    DeadlineError,
    EngineDeadError,
    NonFiniteError,
    RunError,
    SaveError,
    WorkerDiedError,
    WorkerLateError,
)
from corerl_ray.answers import Answers
from corerl_ray.ends import DEAD, LOST_WAIT, UNREACHABLE, dead_rank, exit_cause, last_said, place, printed
from corerl_ray.host import Failure, ProcessFacts, last_lines
from corerl_ray.signs import Signs, end, on
from corerl_ray.watcher import Health

POLL = 1.0
"""seconds between two checks of all workers"""
GATHER = 0.01
"""seconds in which further results are gathered after one has come: each look at all calls costs as much as they are"""
GRACE = 30.0
"""seconds for the other ranks to agree, after one rank found a non-finite value"""
LOG_WAIT = 8.0
"""seconds for the log of a worker on another machine, where a process must start to read it"""
SIGN_WAIT = 5.0
"""seconds for signs of life of the other ranks, after one rank reported a late one"""


@dataclass(frozen=True)
class Member:
    """One worker of a group, or the relay of some; ``facts`` is None until its process has started.

    Attributes:
        ranks: of a relay: the workers that it calls, of consecutive ranks.
    """

    role: str
    rank: int
    world_size: int
    host: Any
    facts: ProcessFacts | None = None
    ranks: "tuple[Member, ...]" = ()

    def __str__(self) -> str:
        if self.ranks:
            first, last = self.ranks[0].rank, self.ranks[-1].rank
            return f"relay of the {self.role} workers {first} to {last} of {self.world_size}"
        return f"{self.role} worker {self.rank} of {self.world_size}" if self.world_size > 1 else f"{self.role} worker"


@dataclass(eq=False)
class Call:
    """A call on one worker, and the reference of its result; None for requests, whose results are collected."""

    member: Member
    reference: "ray.ObjectRef[Any] | None"

    def take(self, wait: "Wait", value: Any) -> list[Any] | None:
        """The results of the call, from the value at the reference; None: the rest is at another reference."""
        return [value]

    def called(self) -> list[Member]:
        """The workers, in the order of the results."""
        return [self.member]

    def waiting(self, until: float) -> list[Member]:
        """The workers that have not answered, as far as that is known before this time of ``time.monotonic``."""
        return [self.member]


@dataclass
class Waiter:
    """Waits for calls, from any thread, and watches all workers during the wait.

    Attributes:
        node: the controller's own.
        stop: ends all workers.
        signs: asks the workers' processes for signs of life.
        cluster: of the processes without which no worker works.
        members: every worker that was started.
        replicas: role -> what takes a worker that is lost out of its group, with the reason, and returns the error of
            its loss; None: the group cannot do without.
        engines: role -> what takes a worker out of its group whose engine has ended; it returns the error.
        failure: the first error that may leave workers stuck; it ends every wait, also those begun later.
        stuck: some ranks have not agreed with another's NonFiniteError.
        closing: waits are for workers to close, whatever has failed.
        looked: when, on the clock of ``time.monotonic``.
    """

    node: str
    stop: Callable[[], None]
    signs: Signs
    cluster: Health | Answers
    members: list[Member] = field(default_factory=list)
    replicas: dict[str, Callable[[Member, str], EngineDeadError | None]] = field(default_factory=dict)
    engines: dict[str, Callable[[Member, EngineDeadError], EngineDeadError]] = field(default_factory=dict)
    failure: CoreRLError | None = None
    stuck: bool = False
    closing: bool = False
    looked: float = 0.0
    _lock: threading.RLock = field(default_factory=threading.RLock)
    _lost: dict[Member, EngineDeadError] = field(default_factory=dict)

    @property
    def failed(self) -> bool:
        return self.stuck or self.failure is not None

    @property
    def has_named_logs(self) -> bool:
        """An error or a notice has."""
        return self.failed or bool(self._lost)

    def wait(self, calls: Sequence[Call], deadline: float, what: str, *, beside: Sequence[Call] = ()) -> list[Any]:
        """:meth:`Wait.all` of a new wait."""
        return Wait(self, deadline, what, beside).all(calls)

    def fail(self, error: CoreRLError, known: CoreRLError | None) -> CoreRLError:
        """The error to raise: ``error``, or an error of another thread's wait that is newer than ``known``."""
        with self._lock:
            if self.failure is known:
                self.failure = error
            assert self.failure is not None
            return self.failure

    def look(self, known: CoreRLError | None) -> None:
        """Notice the death of a worker without a waiting call, on any machine."""
        self.looked = time.monotonic()
        if lost := self.cluster.look():
            raise self._lost_with(lost, known)
        for member in list(self.members):
            if member.facts is None or member.host._get_local_state() != DEAD:
                continue
            died = self.died(member, last_said(member), known)
            if not isinstance(died, EngineDeadError):
                raise died

    def listen(self, known: CoreRLError | None) -> None:
        """Notice workers whose processes give no sign of life; :class:`Signs` holds the limit."""
        processes = {member.facts.asked: member for member in list(self.members) if member.facts is not None}
        silent = self.signs.silent([(member.facts.node, asked) for asked, member in processes.items() if member.facts])
        for asked in silent:
            hung = self.hung(processes[asked], self.signs.timeout, known)
            if not isinstance(hung, EngineDeadError):
                raise hung

    def blame(self, error: CoreRLError, member: Member, known: CoreRLError | None) -> CoreRLError:
        """The error of a rank that waited for another one; or the error of that other rank, if it is dead or hangs."""
        others = [other for other in self.members if other.role == member.role and other.host is not member.host]
        signs, deadline = Signs(self.node, SIGN_WAIT), time.monotonic() + 2 * SIGN_WAIT
        processes = {other.facts.asked: other for other in others if other.facts is not None}
        while time.monotonic() < deadline and len(signs.places) < len(processes):
            self.look(known)
            left = [(other.facts.node, asked) for asked, other in processes.items() if other.facts]
            for asked in signs.silent([each for each in left if each[1] not in signs.places]):
                self.signs.states[asked] = signs.states[asked]
                self.signs.places |= signs.places
                return self.hung(processes[asked], SIGN_WAIT, known, f"; {error}")
            time.sleep(0.1)
        return error

    def hung(self, member: Member, seconds: float, known: CoreRLError | None, also: str = "") -> CoreRLError:
        """The error of a worker without a sign of life; as :meth:`died`."""
        with self._lock:
            if member in self._lost:
                return copy.copy(self._lost[member])  # each waiting thread raises its own copy
            if self.failure is not known and self.failure is not None:
                return self.failure
            facts = member.facts
            assert facts is not None
            state = self.signs.states.get(facts.asked)
            lines, _ = self._last_lines(facts, LOG_WAIT)
            reason = f"the {member} (process {facts.pid} on {facts.address}) gives no sign of life for {seconds:.0f} s"
            reason += f": {state}" if state else ""
            reason += f"{also}{self._places(member)}{printed(member, lines)}"
            self.end(facts)
            return self._without(member, reason, known)

    def late(self, member: Member, why: str, known: CoreRLError | None) -> CoreRLError:
        """End a worker that does not do its work; the error as of :meth:`died`."""
        with self._lock:
            if member in self._lost:
                return copy.copy(self._lost[member])
            if self.failure is not known and self.failure is not None:
                return self.failure
            facts = member.facts
            assert facts is not None
            lines, _ = self._last_lines(facts, LOG_WAIT)
            self.end(facts)
            reason = f"the {member} (process {facts.pid} on {facts.address}) {why}{printed(member, lines)}"
            return self._without(member, reason, known)

    def end(self, facts: ProcessFacts) -> None:
        """Kill a process that may be stopped."""
        if facts.node == self.node:
            end(facts.asked)
        else:
            on(facts.node, end).remote(facts.asked)

    def busy(self, member: Member) -> str:
        """`` in a function (file, line)``, if the worker was asked for a sign of life."""
        place = self.signs.places.get(member.facts.asked) if member.facts is not None else ""
        return f" {place}" if place else ""

    def _places(self, member: Member) -> str:
        """The functions in which the other ranks of its role are."""
        others = (other for other in self.members if other.role == member.role)
        return "".join(f"; the {other} is{place}" for other in others if (place := self.busy(other)))

    def died(self, member: Member, said: str, known: CoreRLError | None) -> CoreRLError:
        """The error of a dead worker: an EngineDeadError if its group continues; otherwise all workers are killed."""
        with self._lock:
            if member in self._lost:
                return copy.copy(self._lost[member])  # each waiting thread raises its own copy
            if self.failure is not known and self.failure is not None:  # this death is its consequence
                return self.failure
            dead = dead_rank(member)
            if dead is not None:
                return self.died(dead, last_said(dead), known)
            cause = exit_cause(said)
            if cause == ActorDiedError.BASE_ERROR_MSG and member.facts and member.facts.node != self.node:
                cause = UNREACHABLE  # Ray knows no more if the machine is silent
            if cause == UNREACHABLE and (lost := self.cluster.look(patiently=False)):
                self.stop()
                return self._lost_with(lost, known)
            lines: list[str] = []
            where = ""
            if member.facts is not None:
                seconds = LOST_WAIT if cause == UNREACHABLE else LOG_WAIT
                lines, oom_kills = self._last_lines(member.facts, seconds)
                if oom_kills > member.facts.oom_kills:
                    cause = "the kernel's out-of-memory killer killed a process on its machine"
                where = f" (process {member.facts.pid} on {member.facts.address})"
            return self._without(member, f"the {member}{where} died: {cause}{printed(member, lines)}", known)

    def _lost_with(self, cluster: str, known: CoreRLError | None) -> CoreRLError:
        return self.fail(WorkerDiedError(f"{cluster}, and all workers with it"), known)

    def engine_ended(self, member: Member, error: EngineDeadError) -> EngineDeadError:
        """The error of a worker whose engine has ended, marked if its group goes on without."""
        ended = self.engines.get(member.role)
        return error if ended is None else ended(member, error)

    def _without(self, member: Member, reason: str, known: CoreRLError | None) -> CoreRLError:
        lose = self.replicas.get(member.role)
        lost = None if lose is None else lose(member, reason)
        if lost is None:
            error = self.fail(WorkerDiedError(reason), known)
            self.stop()
            return error
        self._lost[member] = lost
        self.members = [other for other in self.members if other.host is not member.host]
        return lost

    def _last_lines(self, facts: ProcessFacts, seconds: float) -> tuple[list[str], int]:
        try:
            if facts.node == self.node:
                return last_lines(facts.logs)
            lines: tuple[list[str], int] = ray.get(on(facts.node, last_lines).remote(facts.logs), timeout=seconds)
        except (RayError, OSError):  # the machine may have failed
            return [f"(its log cannot be read: {', '.join(facts.logs)} on {facts.address})"], facts.oom_kills
        return lines


@dataclass
class Wait:
    """One wait for one or more calls.

    Attributes:
        deadline: on the clock of ``time.monotonic``.
        what: name of the wait, for messages.
        beside: running calls whose failure ends the wait.
        known: the failure before the wait began, for a wait that closes workers.
    """

    waiter: Waiter
    deadline: float
    what: str
    beside: Sequence[Call] = ()
    started: float = field(default_factory=time.monotonic)
    known: CoreRLError | None = None

    def __post_init__(self) -> None:
        self.known = self.waiter.failure if self.waiter.closing else None
        self._late: NonFiniteError | None = None
        self._heard = self.started

    def all(self, calls: Sequence[Call]) -> list[Any]:
        """The result of each call; a NonFiniteError counts as a result, because all ranks may have rows to name.

        Raises:
            EngineDeadError, SaveError: from a worker that continues, after all have answered.
            CoreRLError: from a worker, with the worker named, or from another thread's wait.
            RunError: a worker died.
            DeadlineError: the deadline passed.
        """
        results: dict[Call, list[Any]] = {}
        pending = list(calls)
        while pending:
            results.update(self.some(pending))
            pending = [call for call in pending if call not in results]
        joined = [result for call in calls for result in results[call]]
        for result in joined:
            if isinstance(result, EngineDeadError | SaveError):
                raise result
        return joined

    def some(self, calls: Sequence[Call]) -> dict[Call, list[Any]]:
        """The results of the ready calls, at least one; an EngineDeadError or SaveError counts as a result."""
        waiter = self.waiter
        while True:
            own = {call.reference: call for call in calls}
            left = self.left(calls)
            beside = {call.reference: call for call in self.beside}
            ready, others = ray.wait([*own, *beside], num_returns=1, timeout=min(POLL, left))
            if ready and others:
                ready += ray.wait(others, num_returns=len(others), timeout=GATHER)[0]
            if time.monotonic() - waiter.looked >= POLL:  # also during quick successions of results
                waiter.look(self.known)
            now = time.monotonic()
            self._heard = now if ready else self._heard
            if now - self._heard > waiter.signs.timeout / 2:
                waiter.listen(self.known)
            for reference in ready:
                if reference in beside:
                    self._result(beside[reference])
                    self.beside = [call for call in self.beside if call.reference != reference]
            found = [own[reference] for reference in ready if reference in own]
            values = ((call, call.take(self, self._result(call))) for call in found)
            if results := {call: taken for call, taken in values if taken is not None}:
                return results

    def left(self, calls: Sequence[Call]) -> float:
        """Seconds until the deadline.

        Raises:
            CoreRLError: it has passed, or another wait has failed.
        """
        failure = self.waiter.failure
        if failure is not self.known and failure is not None:
            raise failure
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise self._too_late(calls)
        return left

    def _too_late(self, calls: Sequence[Call]) -> CoreRLError:
        if self._late is not None:  # the other ranks are late to agree
            self.waiter.stuck = True
            return self._late
        seconds = self.deadline - self.started
        until = time.monotonic() + LOST_WAIT
        late = [member for call in calls for member in call.waiting(until)]
        waiting = ", ".join(f"{member}{self.waiter.busy(member)}{place(member)}" for member in late)
        error = WorkerLateError(f"{self.what} took longer than {seconds:.0f} s: no answer from {waiting}")
        return self.waiter.fail(error, self.known)

    def _result(self, call: Call) -> Any:
        seconds = max(POLL, self.deadline - time.monotonic())
        reference = call.reference
        assert reference is not None
        return self.result(call, lambda: ray.get(reference, timeout=seconds))

    def result(self, call: Call, get: Callable[[], Any]) -> Any:
        """What ``get`` returns for the call; an EngineDeadError or SaveError counts as a result.

        Raises:
            CoreRLError: what ``get`` returns or raises, as an error of the worker.
        """
        waiter = self.waiter
        try:
            value = get()
        except RayActorError as error:
            died = waiter.died(call.member, str(error), self.known)
            if isinstance(died, EngineDeadError):
                return died
            raise died from None
        except GetTimeoutError:
            late = WorkerLateError(
                f"{self.what}: the result of {call.member}{place(call.member)} did not arrive in time"
            )
            raise waiter.fail(late, self.known) from None
        except RayError as error:
            failed = RunError(f"{call.member}: {str(error).strip().splitlines()[-1]}")
            raise waiter.fail(failed, self.known) from None
        if isinstance(value, Failure):
            raised = value.error(str(call.member))
            if isinstance(raised, EngineDeadError):
                return waiter.engine_ended(call.member, raised)
            if isinstance(raised, SaveError):
                return raised
            if isinstance(raised, DeadlineError):
                raised.args = (f"{raised}{place(call.member)}",)
                if call.reference is None:  # rollout.timeout; the others can save
                    return raised
            if (
                type(raised) in (RunError, DeadlineError)
                and call.member.world_size > 1
                and call.member.role not in waiter.replicas
            ):
                raised = waiter.blame(raised, call.member, self.known)
            if not isinstance(raised, NonFiniteError):
                raise waiter.fail(raised, self.known)
            self._late = raised
            self.deadline = min(self.deadline, time.monotonic() + GRACE)
            return raised
        return value
