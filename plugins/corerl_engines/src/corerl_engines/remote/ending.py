"""The end of an engine: of all its processes, and of what they shared."""

import contextlib
import os
import signal
import time
from pathlib import Path

GRACE = 3.0
"""seconds that multiprocessing's resource trackers have"""


def end_others() -> None:
    """Kill this process's group, except for this process.

    Resource trackers of multiprocessing end by themselves: when nobody is left who holds their pipe, they remove the
    shared memory and the semaphores that the others left behind, which would stay until the machine is restarted. Those
    that take more than ``GRACE`` are killed, too.
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
    """The processes of a group that are alive; none where there is no /proc."""
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
