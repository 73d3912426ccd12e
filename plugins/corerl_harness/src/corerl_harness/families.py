"""The processes that a process has started, children of children included (proc(5)).

The keeper imports this file alone, so it imports nothing of CoreRL.
"""
# ruff: noqa: PTH123, PTH208 - called often

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass

END_SECONDS = 10.0
"""for the end of a whole family"""
MARK_BYTES = 1 << 20
"""of a process' environment that are searched"""


@dataclass
class Use:
    """What processes hold together.

    Attributes:
        memory: bytes of anonymous and shared memory; a page that two processes share counts twice.
        tasks: processes and threads.
    """

    memory: int = 0
    tasks: int = 0


def family(root: int) -> set[int]:
    """All descendants of a process, without itself; ended ones that nobody has waited for included."""
    found: set[int] = set()
    todo = [root]
    while todo:
        new = set(_children(todo.pop())) - found - {root}
        found |= new
        todo += new
    return found


def use(pids: set[int]) -> Use:
    """The memory and the tasks of processes; ended ones count nothing."""
    total = Use()
    for pid in pids:
        with contextlib.suppress(OSError, ValueError, IndexError):
            fields = dict(line.split(":", 1) for line in _read(f"/proc/{pid}/status").splitlines() if ":" in line)
            for name in ("RssAnon", "RssShmem"):
                total.memory += int(fields.get(name, "0 kB").split()[0]) * 1024
            total.tasks += int(fields.get("Threads", "0"))
    return total


def end(root: int, *, reap: bool = False) -> int:
    """Kill all descendants of a process, and those that they start meanwhile; returns their number.

    All are stopped first, so a program that forks as fast as it can does not outrun the killing.

    Args:
        reap: this process is the root, and waits for its children.
    """
    ended: set[int] = set()
    until = time.monotonic() + END_SECONDS
    while time.monotonic() < until:
        if reap:
            _reap()
        pids = _alive(family(root))
        if not pids:
            break
        stopped: set[int] = set()
        while pids - stopped and time.monotonic() < until:
            _signal(pids - stopped, signal.SIGSTOP)
            stopped |= pids
            pids = _alive(family(root))
        _signal(stopped, signal.SIGKILL)
        ended |= stopped
        time.sleep(0.001)
    return len(ended)


def end_marked(mark: str) -> int:
    """Kill the processes with a text, of 8 characters or more, in their environment; returns their number."""
    if len(mark) < 8:
        return 0
    marked = set()
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/environ", "rb") as file:
            if mark.encode() in file.read(MARK_BYTES) and int(pid) != os.getpid():
                marked.add(int(pid))
    _signal(marked, signal.SIGKILL)
    return len(marked)


def _children(pid: int) -> Iterator[int]:
    with contextlib.suppress(OSError, ValueError):
        for task in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                yield from map(int, _read(f"/proc/{pid}/task/{task}/children").split())


def _alive(pids: set[int]) -> set[int]:
    def lives(pid: int) -> bool:
        with contextlib.suppress(OSError, IndexError):
            return _read(f"/proc/{pid}/stat").rpartition(")")[2].split()[0] not in "ZX"
        return False

    return set(filter(lives, pids))


def _signal(pids: set[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _read(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()
