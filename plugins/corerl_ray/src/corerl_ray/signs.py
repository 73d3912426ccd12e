"""Signs of life: on a signal, a worker's process writes the position of its main thread, even if it is busy.

The signal is handled in C, so no wait in a library and no lock of Python keeps a process from answering. A process
that is stopped, or stuck in the kernel, does not answer.
"""

import contextlib
import faulthandler
import os
import re
import signal
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from corerl_ray.processes import stat

SIGNAL = signal.SIGRTMIN + 11 if hasattr(signal, "SIGRTMIN") else None
"""a signal without another use"""

STATES = {"T": "it is stopped (SIGSTOP, or a debugger)", "D": "it waits in the kernel (a disk, a device)"}


class Asked(NamedTuple):
    """A process that can be asked for a sign of life.

    Attributes:
        started: start in ticks since the machine's boot; distinguishes the process from a later one with its id.
        stacks: the file for its answers.
    """

    pid: int
    started: str
    stacks: str


class Answer(NamedTuple):
    """The text written since the last request, '' if none; and the process's state, '' if there is no such process."""

    stacks: str
    state: str


def answer_signals(folder: Path | None) -> Asked:
    """In a worker's process: answer from now on, into a file of its own in this folder.

    The answer holds only the frames of the main thread: reading the frames of running threads would crash the process
    with SIGSEGV.
    """
    descriptor, path = tempfile.mkstemp(prefix=f"stacks-{os.getpid()}-", suffix=".txt", dir=folder)
    os.close(descriptor)
    if SIGNAL is not None:
        keeps_errno = threading.current_thread() is threading.main_thread()  # required by signal
        if keeps_errno:
            signal.signal(SIGNAL, signal.SIG_IGN)  # faulthandler chains to it, and restores errno only then
        answers = os.open(path, os.O_WRONLY | os.O_APPEND)
        faulthandler.register(SIGNAL, file=answers, all_threads=False, chain=keeps_errno)
    return Asked(os.getpid(), stat(os.getpid()).started, path)


def ask(processes: Sequence[Asked], anew: Sequence[bool]) -> list[Answer]:
    """The answers of processes of this machine; requests new answers if ``anew``."""
    answers = []
    for process, again in zip(processes, anew, strict=True):
        state, started = stat(process.pid)
        if started != process.started or SIGNAL is None:
            answers.append(Answer("", ""))
            continue
        answers.append(Answer(Path(process.stacks).read_text(errors="replace"), state))
        if again:
            os.truncate(process.stacks, 0)
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, SIGNAL)
    return answers


def end(process: Asked) -> None:
    """Kill a process of this machine."""
    if stat(process.pid).started == process.started:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)


def place_in(stacks: str) -> str:
    """The innermost function of the main thread, which handled the signal; '' if it waits for a call."""
    frame = re.search(r'File "([^"]*)", line (\d+) in (\S+)', stacks)
    if frame is None or frame[3] == "main_loop":
        return ""
    return f"in {frame[3]} ({frame[1]}, line {frame[2]})"


@dataclass
class Signs:
    """Requests signs of life of workers' processes, on any machine, from the controller.

    Attributes:
        node: the controller's node.
        timeout: seconds in which each process must answer.
        places: position of each process at its last answer (:func:`place_in`).
        states: state of each process that has not answered.
    """

    node: str
    timeout: float
    places: dict[Asked, str] = field(default_factory=dict)
    states: dict[Asked, str] = field(default_factory=dict)
    _since: dict[Asked, float] = field(default_factory=dict)
    _coming: "dict[str, tuple[list[Asked], list[bool], ray.ObjectRef[Any]]]" = field(default_factory=dict)
    _next: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def silent(self, processes: Sequence[tuple[str, Asked]]) -> list[Asked]:
        """The processes among (node, process) without an answer for ``timeout`` seconds; then asks again.

        Does not wait: answers of other machines arrive with a later call.
        """
        with self._lock:
            return self._silent(processes)

    def _silent(self, processes: Sequence[tuple[str, Asked]]) -> list[Asked]:
        now = time.monotonic()
        late = self._collect(now)
        if now < self._next:
            return late
        self._next = now + min(self.timeout / 4, 10.0)
        for node in {node for node, _ in processes} - self._coming.keys():
            asked = [process for own, process in processes if own == node]
            anew = [process not in self._since for process in asked]
            if node == self.node:
                late += self._judge(asked, anew, ask(asked, anew), now)
            else:
                self._coming[node] = asked, anew, on(node, ask).remote(asked, anew)
        return late

    def _collect(self, now: float) -> list[Asked]:
        late: list[Asked] = []
        for node, (asked, anew, reference) in list(self._coming.items()):
            if ray.wait([reference], timeout=0)[0]:
                del self._coming[node]
                with contextlib.suppress(RayError, OSError):  # the death of a machine is detected elsewhere
                    late += self._judge(asked, anew, ray.get(reference), now)
        return late

    def _judge(self, asked: list[Asked], anew: list[bool], answers: list[Answer], now: float) -> list[Asked]:
        late = []
        for process, again, answer in zip(asked, anew, answers, strict=True):
            if again:
                self._since[process] = now
            elif not answer.state:  # the death of a process is detected elsewhere
                del self._since[process]
            elif answer.stacks:
                self.places[process] = place_in(answer.stacks)
                del self._since[process]
            elif now - self._since[process] > self.timeout:
                self.states[process] = STATES.get(answer.state, "")
                late.append(process)
        return late


def on(node: str, function: Any) -> Any:
    """A task on this machine, which needs no place."""
    there = NodeAffinitySchedulingStrategy(node, soft=False)
    return ray.remote(function).options(num_cpus=0, scheduling_strategy=there, max_retries=0, enable_task_events=False)
