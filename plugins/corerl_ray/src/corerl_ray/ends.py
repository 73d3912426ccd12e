"""How a worker ended: its process's exit, its last output."""

import re
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import ray
from ray.exceptions import ActorDiedError, GetTimeoutError, RayError

if TYPE_CHECKING:
    from corerl_ray.calls import Member

DEAD = 4
"""value in Ray's ActorTableData.ActorState"""
LOST_WAIT = 2.0
"""seconds for an answer of a machine that may be lost, and for Ray's information about a death"""
UNREACHABLE = "it cannot be reached: its machine or the network failed"


def last_said(member: "Member") -> str:
    """Ray's message about the death of a worker."""
    try:
        ray.get(member.host.facts.remote(), timeout=LOST_WAIT)
    except GetTimeoutError:
        pass
    except RayError as error:
        return str(error)
    return ActorDiedError.BASE_ERROR_MSG


def dead_rank(member: "Member") -> "Member | None":
    """Of a dead relay: a rank that is dead, too, as after the loss of a machine."""
    deadline = time.monotonic() + LOST_WAIT
    while member.ranks and time.monotonic() < deadline:
        for rank in member.ranks:
            if rank.host._get_local_state() == DEAD:
                return rank
        time.sleep(0.1)
    return None


def place(member: "Member") -> str:
    """`` (log: …)``, if known."""
    facts = member.facts
    return f" (log on {facts.address}: {', '.join(facts.logs)})" if facts is not None and facts.logs else ""


def printed(member: "Member", lines: Sequence[str]) -> str:
    tail = "".join(f"\n    {line}" for line in lines)
    return f"; its last output{place(member)}:{tail}" if lines else "; it printed nothing"


def exit_cause(message: str) -> str:
    """The reason for the end of a process, from Ray's message."""
    if "is unavailable" in message:
        return UNREACHABLE
    detail = re.search(r"Worker exit detail: ([^\n]*)", message)
    if detail is None:
        return _first_line(message)
    code = re.search(r"exit code (-?\d+)", detail[1])
    if code is not None:
        return f"it exited with code {code[1]}"
    if "connection error code 2" in detail[1]:
        return "killed (SIGKILL, for example when out of memory), crashed, or ended by os._exit"
    return detail[1].split(". ")[0].strip()


def _first_line(error: object) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
