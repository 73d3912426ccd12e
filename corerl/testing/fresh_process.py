"""A call in a process that has made no call before it: a function that remembers gives something else there.

One server process imports torch and waits. It forks for each call, and each child imports the implementation anew.
"""

import atexit
import os
import pickle
import select
import signal
import subprocess
import sys
import time
from typing import Any, BinaryIO

from corerl.registry import modules
from corerl.registry.base import Selected
from corerl.testing.results import CheckFailed, CheckSkipped

SECONDS = 600.0
"""until an answer, the import of torch included"""

_ANSWERED = 77
"""exit code of a child that has sent its answer"""

_SERVER = "from corerl.testing.fresh_process import serve; serve()"


def call_elsewhere(selected: Selected[Any], *arguments: Any) -> Any:
    """What the entry's target returns for ``arguments`` when that is the first call of its process.

    Raises:
        CheckSkipped: another process cannot import the target, or this system has no ``os.fork``.
        CheckFailed: the target raises there, or there is no answer within ``SECONDS``.
    """
    if not hasattr(os, "fork"):
        raise CheckSkipped("this system cannot fork processes")
    files = [module.__file__ for name, module in list(sys.modules.items()) if name.startswith("corerl_file_")]
    job = pickle.dumps((_reference(selected), selected.options, arguments))
    kind, answer = pickle.loads(_Server.running().ask(pickle.dumps((sys.path, files, job))))
    if kind == "raised":
        raise CheckFailed(f"in a fresh process {answer}")
    return answer


def _reference(selected: Selected[Any]) -> str:
    """``module:attribute`` of the target."""
    if isinstance(selected.entry.target, str):
        return modules.whole_path(selected.entry.target)
    target: Any = selected.entry.target
    name = getattr(target, "__module__", None) or type(target).__module__
    module = sys.modules.get(name)
    if name != "__main__":
        for attribute, value in vars(module).items() if module else ():
            if value is target:
                return f"{getattr(module, '__file__', '') if name.startswith('corerl_file_') else name}:{attribute}"
    raise CheckSkipped("another process cannot import it: it is not at the top level of a module")


class _Server:
    """The parent's end."""

    _present: "_Server | None" = None

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _SERVER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            start_new_session=True,
        )
        self._owner = os.getpid()

    @classmethod
    def running(cls) -> "_Server":
        present = cls._present
        if present is None or present._owner != os.getpid() or present._process.poll() is not None:
            cls._present = present = cls()
            atexit.register(present.close)
        return present

    def ask(self, job: bytes) -> bytes:
        """
        Raises:
            CheckFailed: the answer is late.
        """
        assert self._process.stdin is not None and self._process.stdout is not None
        _write(self._process.stdin, job)
        deadline = time.monotonic() + SECONDS
        size = int.from_bytes(self._read(8, deadline), "big")
        return self._read(size, deadline)

    def _read(self, size: int, deadline: float) -> bytes:
        assert self._process.stdout is not None
        file, parts = self._process.stdout.fileno(), bytearray()
        while len(parts) < size:
            ready, _, _ = select.select([file], [], [], max(0.0, deadline - time.monotonic()))
            part = os.read(file, size - len(parts)) if ready else b""
            if not part:
                self.close()
                raise CheckFailed(f"a first call in a fresh process gave no answer within {SECONDS:g} s")
            parts += part
        return bytes(parts)

    def close(self) -> None:
        """End the server, and a child that is at work."""
        if self._owner == os.getpid() and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


def _write(file: BinaryIO | Any, data: bytes) -> None:
    file.write(len(data).to_bytes(8, "big") + data)
    file.flush()


def serve() -> None:
    """The server: a child for each job, until the parent closes its end."""
    import torch  # noqa: F401  # before the fork, so that a child need not

    import corerl.objective  # noqa: F401

    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # prints of an implementation are no answers
    jobs = sys.stdin.buffer
    while len(head := jobs.read(8)) == 8:
        data = jobs.read(int.from_bytes(head, "big"))
        child = os.fork()
        if child == 0:
            try:
                _write(answers, pickle.dumps(_answer(data)))
                os._exit(_ANSWERED)
            finally:
                os._exit(1)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code != _ANSWERED:
            _write(
                answers, pickle.dumps(("raised", f"it ended its process, or gave what no process can send ({code})"))
            )


def _answer(data: bytes) -> tuple[str, Any]:
    path, files, job = pickle.loads(data)
    sys.path[:] = path
    try:
        for file in files:
            modules.load_file(file)
        reference, options, arguments = pickle.loads(job)
        target = modules.load_object(reference)
        return "returned", target(*arguments, **({} if options is None else {"options": options}))
    except Exception as error:
        return "raised", f"it raised {type(error).__name__}: {error}"
