"""Loaded into every process of the run of chaos.py: it notes whose process it is, and the steps that were done.

``CHAOS_NOTES`` names the folder: ``pids/<pid>`` holds a role and when the process was started, ``steps`` a line a step,
``pace`` the seconds that a step takes at least.
"""

import ctypes
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from corerl import hookimpl
from corerl_torch import restarts

NOTES = Path(os.environ["CHAOS_NOTES"])
PR_SET_PDEATHSIG = 1
ROLES = {"PolicyWorker": "actor", "RolloutWorker": "rollout"}

ended = 0.0

restarts.BACKOFF = restarts.LONGEST = 0.5  # a machine that comes back needs time, and these processes do not


def _frames() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        yield frame
        frame = frame.f_back


def _note_role() -> None:
    """A worker loads the plugins while it is built."""
    built = [type(frame.f_locals.get("self")).__name__ for frame in _frames() if frame.f_code.co_name == "__init__"]
    for role in (ROLES[name] for name in built if name in ROLES):
        started = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
        (NOTES / "pids" / str(os.getpid())).write_text(f"{role} {started}")


_note_role()
if os.getppid() == int(os.environ["CHAOS_DRIVER"]):  # the controller's process: it ends with the benchmark
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


@hookimpl
def step_ended(step: int) -> None:
    """Note it, and keep the pace: else the run would be over before its faults."""
    global ended
    with (NOTES / "steps").open("a") as file:
        file.write(f"{step} {time.monotonic()}\n")
    pace = NOTES / "pace"
    if pace.is_file():
        time.sleep(max(0.0, ended + float(pace.read_text()) - time.monotonic()))
    ended = time.monotonic()
