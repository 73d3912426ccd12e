"""Scorers that do their worst, for tests: worker processes import them from here."""

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any


def _loop() -> None:
    while True:
        pass


def _hold_the_interpreter() -> None:
    str(9**9**9)


def _allocate() -> None:
    bytearray(8 << 30)


def _grow() -> None:
    kept = []
    while True:
        kept.append(bytearray(8 << 20))


def _crash() -> None:
    ctypes.string_at(0)


def _close_everything() -> None:
    os.closerange(0, 1000)


def _fork_and_return() -> None:
    os.fork()


def _leave_children() -> None:
    """One of them in a session of its own; the file gets their pids."""
    sleeper = [sys.executable, "-c", "import time; time.sleep(600)"]
    children = [subprocess.Popen(sleeper), subprocess.Popen(sleeper, start_new_session=True)]
    Path(os.environ["CORERL_TEST_PIDS"]).write_text(" ".join(str(child.pid) for child in children))
    os._exit(0)


def _nest() -> None:
    """Folders in folders, in the worker's TMPDIR, deeper than Python's stack."""
    here = os.open(os.environ["TMPDIR"], os.O_RDONLY)
    for _ in range(3_000):
        os.mkdir("d", dir_fd=here)
        inner = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os._exit(0)


def _print_much() -> None:
    for _ in range(100):
        print("x" * 1_000_000)
        print("x" * 1_000_000, file=sys.stderr)


def _talk_into_the_connection() -> None:
    for descriptor in range(3, 50):
        try:
            os.write(descriptor, b"1.0\n")
        except OSError:
            continue


def _recurse() -> None:
    _recurse()


ATTACKS: dict[str, Callable[[], object]] = {
    "loop": _loop,
    "hold": _hold_the_interpreter,
    "allocate": _allocate,
    "grow": _grow,
    "crash": _crash,
    "close": _close_everything,
    "fork": _fork_and_return,
    "children": _leave_children,
    "nest": _nest,
    "print": _print_much,
    "talk": _talk_into_the_connection,
    "recurse": _recurse,
    "sys.exit": lambda: sys.exit(3),
    "os._exit": lambda: os._exit(0),
    "abort": os.abort,
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "interrupt": lambda: os.kill(os.getpid(), signal.SIGINT),
    "sleep": lambda: time.sleep(600),
}


def score(response: str, ground_truth: Any, data_source: str, extra_info: Mapping[str, Any]) -> float:
    """The number in the response, or an attack."""
    if response in ATTACKS:
        ATTACKS[response]()
        return 1.0
    return float(response)


def slow(response: str, ground_truth: Any, data_source: str, extra_info: Mapping[str, Any]) -> float:
    time.sleep(float(response))
    return float(response)


async def coroutine(response: str, ground_truth: Any, data_source: str, extra_info: Mapping[str, Any]) -> float:
    return float(response)


_LEAK: list[bytes] = []


def leaking(response: str, ground_truth: Any, data_source: str, extra_info: Mapping[str, Any]) -> dict[str, float]:
    _LEAK.append(b"x" * 1000)
    return {"score": 1.0, "kept": float(len(_LEAK)), "pid": float(os.getpid())}


def whereabouts(response: str, ground_truth: Any, data_source: str, extra_info: Mapping[str, Any]) -> dict[str, float]:
    return {"score": 1.0, "pid": float(os.getpid()), "threads": float(threading.active_count())}
