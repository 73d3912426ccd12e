"""The end of an engine: of all its processes, and of their shared memory."""

import contextlib
import os
import signal
import time
from pathlib import Path

GRACE = 3.0
"""seconds for multiprocessing's resource trackers"""


def end_others() -> None:
    """Kill this process's group, except this process.

    Resource trackers of multiprocessing end by themselves: when no process holds their pipe, they remove shared memory
    and semaphores left behind by other processes, which would otherwise stay until the machine restarts. Trackers that
    take more than ``GRACE`` are killed too.
    """
    group, end = os.getpgid(0), time.monotonic() + GRACE
    while (others := members(group) - {os.getpid()}) and time.monotonic() < end:
        for process in others:
            if not _is_tracker(process):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
        time.sleep(0.02)
    for process in members(group) - {os.getpid()}:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def members(group: int) -> set[int]:
    """The living processes of a group; none if there is no /proc."""
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, its_group = stat.read_text().rsplit(")", 1)[1].split()[:3]
            if int(its_group) == group and state not in "ZX":
                found.add(int(stat.parent.name))
    return found


def _is_tracker(process: int) -> bool:
    try:
        return b"multiprocessing.resource_tracker" in Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return False
