"""Linux functions that contain a process; on other systems they do nothing."""

import contextlib
import ctypes
import fcntl
import functools
import os
import resource
import signal
import sys
from collections import deque
from pathlib import Path

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
TICKS = os.sysconf("SC_CLK_TCK")
WANTING = "RD"
"""states of a process that runs, or waits for a processor or the disk"""
STOPPED = "Tt"
MOST_RELATIVES = 100
"""largest number of processes examined for one call"""


@functools.cache
def libc() -> ctypes.CDLL:
    """The C library, with errno."""
    return ctypes.CDLL(None, use_errno=True)


def die_with_parent() -> None:
    """Let the kernel kill this process when the thread that forked it ends."""
    if sys.platform == "linux":
        libc().prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def continue_without_parent() -> None:
    """If this process is stopped when its parent thread ends, let the kernel continue it."""
    if sys.platform == "linux":
        libc().prctl(PR_SET_PDEATHSIG, signal.SIGCONT, 0, 0, 0)


def adopt_orphans() -> None:
    """Make processes whose parents ended children of this one, so that they can be found."""
    if sys.platform == "linux":
        libc().prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def children() -> list[int]:
    """The processes whose parent is this one's main thread."""
    with contextlib.suppress(OSError):
        return [int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]
    return []


def prefer_for_oom_killer() -> None:
    """Let a machine without free memory kill this process first."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def activity(pid: int, *, family: bool = True) -> tuple[float, bool]:
    """Seconds of processor time that a process has used, and whether it runs, or waits for a processor or the disk.

    Args:
        family: include descendants whose parents still run; at most 100 processes.
    """
    seconds, wants, todo = 0.0, False, deque([pid])
    for _ in range(MOST_RELATIVES):
        if not todo:
            break
        process = todo.popleft()
        with contextlib.suppress(OSError, ValueError, IndexError):  # the process ended
            state, used, threads = _stat(f"/proc/{process}/stat")
            seconds += used
            wants |= state in WANTING
            tasks = os.listdir(f"/proc/{process}/task") if threads > 1 else [str(process)]  # noqa: PTH208
            for task in tasks:
                wants = wants or (threads > 1 and _stat(f"/proc/{process}/task/{task}/stat")[0] in WANTING)
                if family:
                    todo += map(int, _read(f"/proc/{process}/task/{task}/children").split())
    return seconds, wants


def is_stopped(pid: int) -> bool:
    """Whether a process is stopped, until another process continues it."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return _stat(f"/proc/{pid}/stat")[0] in STOPPED
    return False


def _stat(path: str) -> tuple[str, float, int]:
    """State, seconds of processor time including ended children, and number of threads."""
    fields = _read(path).rpartition(")")[2].split()
    return fields[0], sum(map(int, fields[11:15])) / TICKS, int(fields[17])


def _read(path: str) -> str:
    # called often; a Path would add its parts to the interpreter's table of interned strings each time
    with open(path) as file:  # noqa: PTH123
        return file.read()


def limits() -> object:
    """The resource limits, priority and processors that children of this process inherit."""
    names = [name for name in dir(resource) if name.startswith("RLIMIT_")]
    processors = os.sched_getaffinity(0) if sys.platform == "linux" else None
    return [resource.getrlimit(getattr(resource, name)) for name in names], os.getpriority(0, 0), processors


def out_of_reach(descriptor: int) -> int:
    """A copy of a descriptor at a rarely used number; child programs do not inherit it."""
    try:
        return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 300 + os.urandom(1)[0])
    except OSError:  # the limit of open files is lower
        return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 3)


def end_all_of(folder: str) -> None:
    """End the processes that have a folder's path in their environment."""
    if sys.platform != "linux":
        return
    for pid in filter(str.isdecimal, os.listdir("/proc")):  # noqa: PTH208
        with contextlib.suppress(OSError):
            if folder.encode() in Path(f"/proc/{pid}/environ").read_bytes():
                os.kill(int(pid), signal.SIGKILL)


def limit_memory(more: int) -> None:
    """Limit this process to ``more`` bytes of address space beyond its current use."""
    with contextlib.suppress(OSError, ValueError):
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * os.sysconf("SC_PAGE_SIZE") + more
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
