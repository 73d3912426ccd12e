"""Waiting for workers: every wait has a deadline, and a dead worker ends it at once."""

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from corerl.errors import CoreRLError, DeadlineError, NonFiniteError, RunError
from corerl_ray.host import Facts, Failure, last_lines

POLL = 1.0
"""seconds between two looks at the workers that nobody waits for"""
GRACE = 30.0
"""seconds that the other ranks have to agree, after one found something that is not finite"""
LOG_WAIT = 8.0


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


@dataclass(frozen=True)
class Call:
    """A call on one worker, and the reference of its result."""

    member: Member
    reference: "ray.ObjectRef[Any]"


@dataclass
class Waiter:
    """Waits for calls, and watches all workers meanwhile.

    Attributes:
        node: the controller's own.
        stop: ends all workers.
        members: every worker that was started.
        failed: something went wrong, so that workers may be stuck.
    """

    node: str
    stop: Callable[[], None]
    members: list[Member] = field(default_factory=list)
    failed: bool = False

    def wait(self, calls: Sequence[Call], deadline: float, what: str) -> list[Any]:
        """The result of each call; a NonFiniteError is one too, because all ranks may have rows to name.

        Args:
            deadline: on the clock of ``time.monotonic``.
            what: is called, for messages.

        Raises:
            CoreRLError: what a worker raised, with the worker named.
            RunError: a worker died.
            DeadlineError: it took too long.
        """
        started = time.monotonic()
        results: dict[int, Any] = {}
        pending = {call.reference: index for index, call in enumerate(calls)}
        while pending:
            left = deadline - time.monotonic()
            if left <= 0:
                self.failed = True
                for result in results.values():
                    if isinstance(result, NonFiniteError):  # which the others are late to agree with
                        raise result
                waiting = ", ".join(str(calls[index].member) for index in pending.values())
                raise DeadlineError(f"{what} took longer than {deadline - started:.0f} s: no answer from {waiting}")
            ready, _ = ray.wait(list(pending), num_returns=1, timeout=min(POLL, left))
            if not ready:
                self._look(deadline)
            for reference in ready:
                index = pending.pop(reference)
                results[index] = self._result(calls[index], deadline)
                if isinstance(results[index], NonFiniteError):
                    deadline = min(deadline, time.monotonic() + GRACE)
        return [results[index] for index in range(len(calls))]

    def _result(self, call: Call, deadline: float) -> Any:
        try:
            value = ray.get(call.reference, timeout=max(POLL, deadline - time.monotonic()))
        except RayActorError as error:
            raise self._died(call.member, error) from None
        except GetTimeoutError:
            self.failed = True
            raise DeadlineError(f"the result of {call.member} did not arrive in time") from None
        except RayError as error:
            self.failed = True
            raise RunError(f"{call.member}: {str(error).strip().splitlines()[-1]}") from None
        if isinstance(value, Failure):
            raised = value.error(str(call.member))
            if isinstance(raised, NonFiniteError):
                return raised
            self.failed = True
            raise raised
        return value

    def _look(self, deadline: float) -> None:
        """Notice the death of a worker on this machine that nobody is waiting for."""
        for member in self.members:
            if member.facts is None or member.facts.node != self.node or is_alive(member.facts.pid):
                continue
            try:
                ray.get(member.host.facts.remote(), timeout=LOG_WAIT)
            except RayError as error:
                raise self._died(member, error) from None

    def _died(self, member: Member, error: Exception) -> CoreRLError:
        """The error of a worker that is no more; the others are ended."""
        self.failed = True
        cause = exit_cause(str(error))
        lines: list[str] = []
        where = ""
        if member.facts is not None:
            lines, oom_kills = self._last_lines(member.facts)
            if oom_kills > member.facts.oom_kills:
                cause = "the kernel's out-of-memory killer was at work on its machine"
            where = f" (process {member.facts.pid} on {member.facts.address})"
        self.stop()
        tail = "".join(f"\n    {line}" for line in lines)
        printed = f"; the last that it printed:{tail}" if lines else "; it printed nothing"
        return RunError(f"the {member}{where} died: {cause}{printed}")

    def _last_lines(self, facts: Facts) -> tuple[list[str], int]:
        try:
            if facts.node == self.node:
                return last_lines(facts.logs)
            there = NodeAffinitySchedulingStrategy(facts.node, soft=False)
            read = ray.remote(last_lines).options(num_cpus=0, scheduling_strategy=there, max_retries=0)
            lines: tuple[list[str], int] = ray.get(read.remote(facts.logs), timeout=LOG_WAIT)
        except (RayError, OSError):  # the machine itself may be gone
            return [f"(its log cannot be read: {', '.join(facts.logs)} on {facts.address})"], facts.oom_kills
        return lines


def exit_cause(message: str) -> str:
    """Why a process ended, from what Ray says about it."""
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
