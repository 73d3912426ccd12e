"""Waiting for workers: every wait has a deadline, and a dead worker ends it at once."""

import re
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import ActorDiedError, GetTimeoutError, RayActorError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

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
from corerl_ray.host import Facts, Failure, last_lines

POLL = 1.0
"""seconds between two looks at all workers"""
DEAD = 4
"""of Ray's ActorTableData.ActorState"""
EXHAUSTED = object()
"""what a generator gives last"""
GRACE = 30.0
"""seconds that the other ranks have to agree, after one found something that is not finite"""
LOG_WAIT = 8.0
"""seconds for the log of a worker on another machine, where a process starts to read it"""
LOST_WAIT = 2.0
"""seconds for it where the machine does not answer, and for what Ray knows about a death"""
UNREACHABLE = "it cannot be reached: its machine is gone, or the way there"


@dataclass(frozen=True)
class Member:
    """One worker of a group; ``facts`` are None until its process has started."""

    role: str
    rank: int
    world_size: int
    host: Any
    facts: Facts | None = None

    def __str__(self) -> str:
        return f"{self.role} worker {self.rank} of {self.world_size}" if self.world_size > 1 else f"{self.role} worker"


@dataclass(frozen=True, eq=False)
class Call:
    """A call on one worker, and the reference of its result; of a generator, of what it yields one after the other."""

    member: Member
    reference: "ray.ObjectRef[Any] | ray.ObjectRefGenerator"


@dataclass
class Waiter:
    """Waits for calls, from any thread, and watches all workers meanwhile.

    Attributes:
        node: the controller's own.
        stop: ends all workers.
        members: every worker that was started.
        failure: the first error that may leave workers stuck; it ends every wait, also those begun later.
        stuck: some ranks have not agreed with another's NonFiniteError.
        closing: waits are for workers to close, whatever has failed.
        looked: when, on the clock of ``time.monotonic``.
    """

    node: str
    stop: Callable[[], None]
    members: list[Member] = field(default_factory=list)
    failure: CoreRLError | None = None
    stuck: bool = False
    closing: bool = False
    looked: float = 0.0
    _lock: threading.RLock = field(default_factory=threading.RLock)

    @property
    def failed(self) -> bool:
        return self.stuck or self.failure is not None

    def wait(self, calls: Sequence[Call], deadline: float, what: str, *, beside: Sequence[Call] = ()) -> list[Any]:
        """:meth:`Wait.all` of a new wait."""
        return Wait(self, deadline, what, beside).all(calls)

    def fail(self, error: CoreRLError, known: CoreRLError | None) -> CoreRLError:
        """The error to raise: ``error``, or what another thread's wait has met since ``known`` was the last."""
        with self._lock:
            if self.failure is known:
                self.failure = error
            assert self.failure is not None
            return self.failure

    def look(self, known: CoreRLError | None) -> None:
        """Notice the death of a worker that nobody is waiting for, on whatever machine."""
        self.looked = time.monotonic()
        for member in list(self.members):
            if member.facts is None or member.host._get_local_state() != DEAD:
                continue
            said = ActorDiedError.BASE_ERROR_MSG
            try:
                ray.get(member.host.facts.remote(), timeout=LOST_WAIT)
            except GetTimeoutError:
                pass
            except RayError as error:
                said = str(error)
            raise self.died(member, said, known)

    def died(self, member: Member, said: str, known: CoreRLError | None) -> CoreRLError:
        """The error of a worker that is no more; the others are ended."""
        with self._lock:
            if self.failure is not known and self.failure is not None:  # this death is its consequence
                return self.failure
            cause = exit_cause(said)
            if cause == ActorDiedError.BASE_ERROR_MSG and member.facts and member.facts.node != self.node:
                cause = UNREACHABLE  # Ray says no more where it has heard nothing from there
            lines: list[str] = []
            where = ""
            if member.facts is not None:
                seconds = LOST_WAIT if cause == UNREACHABLE else LOG_WAIT
                lines, oom_kills = self._last_lines(member.facts, seconds)
                if oom_kills > member.facts.oom_kills:
                    cause = "the kernel's out-of-memory killer was at work on its machine"
                where = f" (process {member.facts.pid} on {member.facts.address})"
            tail = "".join(f"\n    {line}" for line in lines)
            printed = f"; the last that it printed{_place(member)}:{tail}" if lines else "; it printed nothing"
            error = self.fail(WorkerDiedError(f"the {member}{where} died: {cause}{printed}"), known)
        self.stop()
        return error

    def _last_lines(self, facts: Facts, seconds: float) -> tuple[list[str], int]:
        try:
            if facts.node == self.node:
                return last_lines(facts.logs)
            there = NodeAffinitySchedulingStrategy(facts.node, soft=False)
            read = ray.remote(last_lines).options(num_cpus=0, scheduling_strategy=there, max_retries=0)
            lines: tuple[list[str], int] = ray.get(read.remote(facts.logs), timeout=seconds)
        except (RayError, OSError):  # the machine itself may be gone
            return [f"(its log cannot be read: {', '.join(facts.logs)} on {facts.address})"], facts.oom_kills
        return lines


@dataclass
class Wait:
    """One wait for one or more calls.

    Attributes:
        deadline: on the clock of ``time.monotonic``.
        what: is called, for messages.
        beside: calls under way whose failure ends the wait.
        known: what had failed before it began, of one that closes workers.
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

    def all(self, calls: Sequence[Call]) -> list[Any]:
        """The result of each call; a NonFiniteError is one too, because all ranks may have rows to name.

        Raises:
            EngineDeadError, SaveError: of a worker that itself goes on, once all have answered.
            CoreRLError: what a worker raised, with the worker named, or what went wrong in another thread's wait.
            RunError: a worker died.
            DeadlineError: it took too long.
        """
        results: dict[Call, Any] = {}
        pending = list(calls)
        while pending:
            done = self.some(pending)
            results.update(done)
            pending = [call for call in pending if call not in done]
        for result in results.values():
            if isinstance(result, EngineDeadError | SaveError):
                raise result
        return [results[call] for call in calls]

    def some(self, calls: Sequence[Call]) -> dict[Call, Any]:
        """The results of those that are ready, one at least; an EngineDeadError or SaveError is one, too."""
        waiter, own = self.waiter, {call.reference: call for call in calls}
        while True:
            if waiter.failure is not self.known and waiter.failure is not None:
                raise waiter.failure
            left = self.deadline - time.monotonic()
            if left <= 0:
                raise self._too_late(calls)
            beside = {call.reference: call for call in self.beside}
            ready, _ = ray.wait([*own, *beside], num_returns=1, timeout=min(POLL, left))
            if time.monotonic() - waiter.looked >= POLL:  # also while results come in quick succession
                waiter.look(self.known)
            for reference in ready:
                if reference in beside:
                    self._result(beside[reference])
                    self.beside = [call for call in self.beside if call.reference != reference]
                else:
                    return {own[reference]: self._result(own[reference])}

    def _too_late(self, calls: Sequence[Call]) -> CoreRLError:
        if self._late is not None:  # which the others are late to agree with
            self.waiter.stuck = True
            return self._late
        seconds = self.deadline - self.started
        waiting = ", ".join(f"{call.member}{_place(call.member)}" for call in calls)
        error = WorkerLateError(f"{self.what} took longer than {seconds:.0f} s: no answer from {waiting}")
        return self.waiter.fail(error, self.known)

    def _result(self, call: Call) -> Any:
        waiter, reference = self.waiter, call.reference
        try:
            if isinstance(reference, ray.ObjectRefGenerator):
                reference = next(reference)
            value = ray.get(reference, timeout=max(POLL, self.deadline - time.monotonic()))
        except StopIteration:
            return EXHAUSTED
        except RayActorError as error:
            raise waiter.died(call.member, str(error), self.known) from None
        except GetTimeoutError:
            late = WorkerLateError(
                f"{self.what}: the result of {call.member}{_place(call.member)} did not arrive in time"
            )
            raise waiter.fail(late, self.known) from None
        except RayError as error:
            failed = RunError(f"{call.member}: {str(error).strip().splitlines()[-1]}")
            raise waiter.fail(failed, self.known) from None
        if isinstance(value, Failure):
            raised = value.error(str(call.member))
            if isinstance(raised, EngineDeadError | SaveError):
                return raised
            if isinstance(raised, DeadlineError):
                raised.args = (f"{raised}{_place(call.member)}",)
            if not isinstance(raised, NonFiniteError):
                raise waiter.fail(raised, self.known)
            self._late = raised
            self.deadline = min(self.deadline, time.monotonic() + GRACE)
            return raised
        return value


def _place(member: Member) -> str:
    """`` (log: …)``, where that is known."""
    facts = member.facts
    return f" (log on {facts.address}: {', '.join(facts.logs)})" if facts is not None and facts.logs else ""


def exit_cause(message: str) -> str:
    """Why a process ended, from what Ray says about it."""
    if "is unavailable" in message:
        return UNREACHABLE
    detail = re.search(r"Worker exit detail: ([^\n]*)", message)
    if detail is None:
        return _first_line(message)
    code = re.search(r"exit code (-?\d+)", detail[1])
    if code is not None:
        return f"it exited with code {code[1]}"
    if "connection error code 2" in detail[1]:
        return "killed (SIGKILL, for example for want of memory), crashed, or ended by os._exit"
    return detail[1].split(". ")[0].strip()


def is_alive(pid: int) -> bool:
    """Whether there is such a process on this machine that is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def _first_line(error: object) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
