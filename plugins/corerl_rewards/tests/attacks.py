"""Scorers that do their worst, for tests: worker processes import them from here."""

import ctypes
import os
import re
import resource
import signal
import stat
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


FORGED = b"[7.0, {}, null, null, null, 0.0]\n"


def _connections() -> list[int]:
    """Descriptors of sockets that this process has open."""
    found = []
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208
        try:
            if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                found.append(int(name))
        except OSError:  # that of the listing itself
            continue
    return found


def _forge(seconds: float = 0.0) -> None:
    """Results of other calls, into every connection of this process."""
    end = time.monotonic() + seconds
    while True:
        for descriptor in _connections():
            os.write(descriptor, 20 * FORGED)
        if time.monotonic() >= end:
            return
        time.sleep(0.01)


def _forge_without_end() -> None:
    while True:
        for descriptor in _connections():
            os.write(descriptor, b"x" * (1 << 16) + b"\n")


def _leave_a_forger() -> None:
    if not os.fork():
        try:
            _forge(0.5)
        finally:
            os._exit(0)


def _print_to_low_descriptors() -> None:
    """As a library does that takes a number for its own."""
    for descriptor in range(3, 256):
        try:
            os.write(descriptor, FORGED)
        except OSError:
            continue


def _let_the_child_answer() -> None:
    if pid := os.fork():
        os.waitpid(pid, 0)


def _limit_the_parent() -> None:
    resource.prlimit(os.getppid(), resource.RLIMIT_FSIZE, (0, 0))
    resource.prlimit(os.getppid(), resource.RLIMIT_CPU, (5, 5))
    os.setpriority(os.PRIO_PROCESS, os.getppid(), 19)


def _leave_a_killer() -> None:
    """That kills a later call."""
    signal.signal(signal.SIGUSR1, signal.SIG_DFL)
    if not os.fork():
        time.sleep(0.05)
        os.kill(os.getppid(), signal.SIGUSR1)
        os._exit(0)


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
    "forge": _forge,
    "forge without end": _forge_without_end,
    "leave a forger": _leave_a_forger,
    "leave a killer": _leave_a_killer,
    "print low": _print_to_low_descriptors,
    "child": _let_the_child_answer,
    "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "stop parent": lambda: os.kill(os.getppid(), signal.SIGSTOP),
    "kill parent": lambda: os.kill(os.getppid(), signal.SIGKILL),
    "limit parent": _limit_the_parent,
    "backtrack": lambda: re.match("(a+)+$", "a" * 64 + "b"),
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


def burn(response: str, ground_truth: Any, data_source: str, extra_info: Mapping[str, Any]) -> float:
    """Takes so many seconds of processor time."""
    end = time.process_time() + float(response)
    while time.process_time() < end:
        pass
    return float(response)


def long(response: str, ground_truth: Any, data_source: str, extra_info: Mapping[str, Any]) -> dict[str, Any]:
    """A result of nearly 1 MiB, of which the extracted text is cut."""
    parts = {f"{number:0200}": 1.0 for number in range(900)}
    return {"score": float(response), "extracted": "x" * 700_000, **parts}


async def coroutine(response: str, ground_truth: Any, data_source: str, extra_info: Mapping[str, Any]) -> float:
    return float(response)


_LEAK: list[bytes] = []


def leaking(response: str, ground_truth: Any, data_source: str, extra_info: Mapping[str, Any]) -> dict[str, float]:
    _LEAK.append(b"x" * 1000)
    return {"score": 1.0, "kept": float(len(_LEAK)), "pid": float(os.getpid())}


def whereabouts(response: str, ground_truth: Any, data_source: str, extra_info: Mapping[str, Any]) -> dict[str, float]:
    return {
        "score": 1.0,
        "pid": float(os.getpid()),
        "threads": float(threading.active_count()),
        "niceness": float(os.getpriority(os.PRIO_PROCESS, 0)),
        "file_size": float(resource.getrlimit(resource.RLIMIT_FSIZE)[0]),
    }
