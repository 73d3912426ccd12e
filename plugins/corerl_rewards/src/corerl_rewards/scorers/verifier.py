r"""math-verify in processes of its own.

A response such as ``\boxed{\prod_{k=1}^{10^8} k}`` sends sympy into one multiplication of big integers that lasts for
hours and never lets go of the interpreter, so that no deadline of this process could fire. A worker process can be
ended: it sets itself an alarm before each comparison, in processor time, which a busy machine does not shorten. One
worker serves one thread at a time, so the comparisons also run in parallel.
In a worker of the reward manager ``parallel``, which can be ended itself, the comparison runs right there.
"""

import atexit
import functools
import json
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable

from corerl_rewards import isolation

_COMMAND = [sys.executable, "-P", "-m", "corerl_rewards.scorers.verifier_worker"]


class Verifier:
    """Compares answers by math-verify; safe to call from several threads."""

    def __init__(self) -> None:
        self._idle: deque[subprocess.Popen[str]] = deque()
        atexit.register(self.close)

    def equal(self, truth: str, answer: str, timeout: float) -> bool:
        """Whether two LaTeX answers are the same mathematical object.

        Args:
            timeout: seconds of processor time; the start of a worker, about one second, is not counted.

        Raises:
            TimeoutError: the comparison took longer than ``timeout``.
            RuntimeError: math-verify cannot be imported, or its process was ended from outside.
        """
        if isolation.in_worker:
            return _equal_here(truth, answer, timeout)
        try:
            worker = self._idle.pop()
        except IndexError:
            worker = _start()
        reply = _ask(worker, {"truth": truth, "answer": answer, "timeout": timeout})
        if reply is None:
            code = worker.wait()
            _end(worker)
            if code == -signal.SIGPROF:
                raise TimeoutError(f"math-verify took longer than {timeout:g} s to compare {answer[:60]!r}")
            raise RuntimeError(f"the math-verify process ended with code {code}")
        self._idle.append(worker)
        if "error" in reply:
            raise RuntimeError(reply["error"])
        return bool(reply["equal"])

    def close(self) -> None:
        """End the idle workers."""
        while self._idle:
            _end(self._idle.pop())


@functools.cache
def load() -> Callable[[str, str], bool] | None:
    """Import math-verify in this process; None where it cannot be."""
    from corerl_rewards.scorers import verifier_worker

    try:
        return verifier_worker.load()
    except ImportError:
        return None


def _equal_here(truth: str, answer: str, timeout: float) -> bool:
    """As :meth:`Verifier.equal`, in this process: past ``timeout`` the alarm ends it."""
    equal = load()
    if equal is None:
        raise RuntimeError("math-verify cannot be imported")
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_PROF, timeout)
    try:
        return equal(truth, answer)
    except MemoryError:
        raise
    except Exception as error:
        raise RuntimeError(f"math-verify: {type(error).__name__}: {error}") from error
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _start() -> subprocess.Popen[str]:
    return subprocess.Popen(
        _COMMAND,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        encoding="utf-8",
        start_new_session=True,  # Ctrl-C in the terminal is for the run to handle
    )


def _ask(worker: subprocess.Popen[str], request: dict[str, str | float]) -> dict[str, str | bool] | None:
    """The worker's reply, or None when it ended without one."""
    assert worker.stdin is not None and worker.stdout is not None
    try:
        worker.stdin.write(json.dumps(request) + "\n")
        worker.stdin.flush()
    except BrokenPipeError:
        return None
    line = worker.stdout.readline()
    reply: dict[str, str | bool] | None = json.loads(line) if line else None
    return reply


def _end(worker: subprocess.Popen[str]) -> None:
    worker.kill()
    worker.wait()
    for pipe in (worker.stdin, worker.stdout):
        if pipe is not None:
            try:
                pipe.close()
            except BrokenPipeError:  # a request was still in the buffer
                continue
