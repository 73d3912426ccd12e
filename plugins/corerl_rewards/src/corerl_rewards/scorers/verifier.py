r"""math-verify in worker processes.

A response such as ``\boxed{\prod_{k=1}^{10^8} k}`` causes one multiplication of big integers in sympy that takes hours
and never releases the interpreter lock, so no deadline within this process could stop it. A worker process can be
killed: before each comparison it sets an alarm in processor time, which does not depend on the machine's load. One
worker serves one thread at a time, so comparisons also run in parallel.
In a worker of the reward manager ``parallel``, which can itself be killed, the comparison runs in place.
"""

import atexit
import functools
import json
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from corerl_rewards import isolation

_COMMAND = [sys.executable, "-P", "-m", "corerl_rewards.scorers.verifier_worker"]


@dataclass
class Budget:
    """Seconds of processor time for all comparisons of one answer."""

    seconds: float
    used: float = 0.0


class Verifier:
    """Compares answers with math-verify; safe to call from several threads."""

    def __init__(self) -> None:
        self._idle: deque[subprocess.Popen[str]] = deque()
        atexit.register(self.close)

    def equal(self, truth: str, answer: str, budget: Budget) -> bool:
        """Whether two LaTeX answers are the same mathematical object.

        Args:
            budget: the start of a worker, about one second, is not counted.

        Raises:
            TimeoutError: the comparison took longer than the rest of the budget.
            RuntimeError: math-verify cannot be imported, or its process was ended from outside.
        """
        timeout = budget.seconds - budget.used
        if timeout <= 0:
            raise _late(answer, budget)
        if isolation.in_worker:
            return _equal_here(truth, answer, timeout, budget)
        try:
            worker = self._idle.pop()
        except IndexError:
            worker = _start()
        reply = _ask(worker, {"truth": truth, "answer": answer, "timeout": timeout})
        if reply is None:
            code = worker.wait()
            _end(worker)
            if code == -signal.SIGPROF:
                raise _late(answer, budget)
            raise RuntimeError(f"the math-verify process ended with code {code}")
        self._idle.append(worker)
        if "error" in reply:
            raise RuntimeError(str(reply["error"]))
        budget.used += float(reply["seconds"])
        return bool(reply["equal"])

    def close(self) -> None:
        """Stop the idle workers."""
        while self._idle:
            _end(self._idle.pop())


@functools.cache
def load() -> Callable[[str, str], bool] | None:
    """Import math-verify in this process; None if the import fails."""
    from corerl_rewards.scorers import verifier_worker

    try:
        return verifier_worker.load()
    except ImportError:
        return None


def _equal_here(truth: str, answer: str, timeout: float, budget: Budget) -> bool:
    """As :meth:`Verifier.equal`, in this process: after ``timeout`` the alarm ends the process."""
    equal = load()
    if equal is None:
        raise RuntimeError("math-verify cannot be imported")
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_PROF, timeout)
    start = time.process_time()
    try:
        return equal(truth, answer)
    except MemoryError:
        raise
    except Exception as error:
        raise RuntimeError(f"math-verify: {type(error).__name__}: {error}") from error
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        budget.used += time.process_time() - start


def _late(answer: str, budget: Budget) -> TimeoutError:
    return TimeoutError(f"math-verify took longer than {budget.seconds:g} s to compare {answer[:60]!r}")


def _start() -> subprocess.Popen[str]:
    return subprocess.Popen(
        _COMMAND,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        encoding="utf-8",
        start_new_session=True,  # the run handles Ctrl-C
    )


def _ask(worker: subprocess.Popen[str], request: dict[str, str | float]) -> dict[str, str | bool | float] | None:
    """The worker's reply, or None if it ended without one."""
    assert worker.stdin is not None and worker.stdout is not None
    try:
        worker.stdin.write(json.dumps(request) + "\n")
        worker.stdin.flush()
    except BrokenPipeError:
        return None
    line = worker.stdout.readline()
    reply: dict[str, str | bool | float] | None = json.loads(line) if line else None
    return reply


def _end(worker: subprocess.Popen[str]) -> None:
    worker.kill()
    worker.wait()
    for pipe in (worker.stdin, worker.stdout):
        if pipe is not None:
            try:
                pipe.close()
            except BrokenPipeError:  # a request is still in the buffer
                continue
