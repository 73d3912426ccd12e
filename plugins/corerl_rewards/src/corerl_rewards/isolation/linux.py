"""What Linux offers to contain a process; elsewhere these do nothing."""

import contextlib
import ctypes
import functools
import os
import resource
import signal
import sys
from pathlib import Path

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


@functools.cache
def libc() -> ctypes.CDLL:
    """The C library, errno kept."""
    return ctypes.CDLL(None, use_errno=True)


def die_with_parent() -> None:
    """The kernel ends this process when the thread that forked it ends."""
    if sys.platform == "linux":
        libc().prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def adopt_orphans() -> None:
    """Processes whose parents ended become children of this one, where they can be found."""
    if sys.platform == "linux":
        libc().prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def children() -> list[int]:
    """The processes whose parent is this one's main thread."""
    with contextlib.suppress(OSError):
        return [int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]
    return []


def prefer_for_oom_killer() -> None:
    """Let a machine that runs out of memory end this process before any other."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def stand_back(pid: int | None) -> None:
    """Let all others go first; with SCHED_IDLE, which is still less, a process could not even be ended soon."""
    if pid is not None:
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, pid, 19)


def waited(pid: int | None) -> float:
    """Seconds for which a process has waited for a processor so far, as far as that is known."""
    # called for every chunk; a Path would fill the interpreter's table of interned texts with its parts each time
    with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{pid}/schedstat") as file:  # noqa: PTH123
        return int(file.read().split()[1]) / 1e9
    return 0.0


def limit_memory(more: int) -> None:
    """Let this process have ``more`` bytes of address space than it has now."""
    with contextlib.suppress(OSError, ValueError):
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * os.sysconf("SC_PAGE_SIZE") + more
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
