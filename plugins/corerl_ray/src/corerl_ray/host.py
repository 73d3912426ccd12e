"""The process of a worker."""

import faulthandler
import gc
import os
import re
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
import ray.util

from corerl.contracts.dispatch import Place
from corerl.contracts.rollout_backends import EngineLoad
from corerl.contracts.surroundings import leave_launch, reach_directly
from corerl.contracts.workers import PlacedWorker, StartingWorker
from corerl.errors import CoreRLError, RunError
from corerl_ray.kept import Arrays, Kept, keep_tokens
from corerl_ray.mailbox import Answer, Collected, Mailbox, Post
from corerl_ray.packed import Packed
from corerl_ray.signs import Asked, answer_signals

LOG_LINES = 6
LOOK = 1.0
"""seconds between two checks that the parent exists"""
THREADS = {"post": 1, "collect": 1}
"""thread groups of a rollout worker's process, for its mailbox; ``CONTROL`` is for all other calls"""
CONTROL = 4
ENDING = 5.0
"""seconds in which cancelled calls must have ended"""


@dataclass(frozen=True)
class ProcessFacts:
    """Facts of a worker's process.

    Attributes:
        port: a port of its machine that was free a moment ago.
        logs: files with its output.
        oom_kills: number of out-of-memory kills on its machine.
        asked: address for requests of a sign of life.
    """

    pid: int
    node: str
    address: str
    port: int
    logs: tuple[str, ...]
    oom_kills: int
    asked: Asked


@dataclass(frozen=True)
class Failure:
    """An exception as a value, so that its type and attributes are transferred unchanged."""

    kind: type[CoreRLError]
    message: str
    attributes: Mapping[str, Any]

    @classmethod
    def of(cls, error: Exception) -> "Failure":
        """An unexpected exception becomes a RunError; its traceback is in the worker's log."""
        if isinstance(error, CoreRLError):
            return cls(type(error), str(error), vars(error))
        traceback.print_exc()
        frame = traceback.extract_tb(error.__traceback__)[-1]
        text = " ".join(str(error).split())
        return cls(RunError, f"{type(error).__name__}: {text} ({frame.filename}, line {frame.lineno})", {})

    def error(self, who: str) -> CoreRLError:
        """The exception, with the worker named."""
        error = self.kind.__new__(self.kind)
        error.args = (f"{who}: {self.message}",)
        vars(error).update(self.attributes)
        return error


class WorkerHost:
    """A Ray actor that holds one worker; every method returns its result or a :class:`Failure`.

    Args:
        folder: the controller's working directory; the config's relative paths start there.
        paths: the controller's module search path, added after the worker's own.
        timeout: largest duration of a wait for another worker, in seconds.
        environment: variables of the controller, set before the import of a library that reads them.

    Attributes:
        transport: state of a transport of weights between calls.
        mailbox: the worker's calls of spread methods.
        others: the other nodes of the worker's engine, each a :class:`corerl_ray.nodes.OtherNode`.
    """

    worker: Any
    transport: Any
    mailbox: Mailbox
    others: Sequence[Any] = ()

    def __init__(self, folder: str, paths: Sequence[str], timeout: float, environment: Mapping[str, str]) -> None:
        leave_launch()  # of the program that started the cluster
        os.environ.update(environment)
        reach_directly()
        faulthandler.enable()  # a crash writes its stack to the log
        hear_of_children()
        end_with_parent()
        self.timeout, self.transport = timeout, None
        logs = _own_logs()
        self.asked = answer_signals(Path(logs[0]).parent if logs else None)
        self.address = str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]
        if Path(folder).is_dir():
            os.chdir(folder)
        sys.path += [path for path in paths if path not in sys.path]

    def facts(self) -> ProcessFacts:
        with socket.socket() as free:
            free.bind(("", 0))
            port = free.getsockname()[1]
        node = ray.get_runtime_context().get_node_id()
        return ProcessFacts(os.getpid(), node, self.address, port, _own_logs(), oom_kills(), self.asked)

    def build(
        self, environment: Mapping[str, str], worker: type, args: Sequence[Any], others: Sequence[Any] = ()
    ) -> Place | Failure:
        """Build the worker; returns its share of split work."""
        os.environ.update(environment)
        reach_directly()  # a proxy whose address has a password comes now
        self.others = others
        try:
            if others:
                from corerl_engines import nodes

                nodes.here = nodes.Nodes(self.address, others)
            self.worker = worker(*args)
            if isinstance(self.worker, StartingWorker):
                self.worker.started()
            self.mailbox = Mailbox(self.worker, Failure.of)
            _carry_tensors()
            gc.collect()
            gc.freeze()  # modules and models live as long as the process, and take long to walk through
            if isinstance(self.worker, PlacedWorker):
                return self.worker.place()
        except Exception as error:
            return Failure.of(error)
        return Place(int(environment["RANK"]), int(environment["WORLD_SIZE"]))

    def call(self, method: str, keywords: Mapping[str, Any], *args: Any) -> Any:
        try:
            if method == "close" and self.mailbox.asks:
                self.mailbox.end(ENDING)
            given = [arg.value() if isinstance(arg, Kept | Packed) else arg for arg in args]
            return getattr(self.worker, method)(*given, **keywords)
        except Exception as error:
            return Failure.of(error)

    def keep(self, method: str, keywords: Mapping[str, Any], *args: Any) -> tuple[Any, Any]:
        """As :meth:`call`: a :class:`Failure`, the numbers of an Experience's rows, or None; and the result itself."""
        from corerl.contracts.experience import Experience

        result = self.call(method, keywords, *args)
        if isinstance(result, Failure):
            return result, None
        return (result.numbers() if isinstance(result, Experience) else None), result

    def post(self, posts: Sequence[Post] | Packed) -> None:
        """Begin calls of spread methods; :meth:`collect` has their results."""
        self.mailbox.post(posts.value() if isinstance(posts, Packed) else posts)

    def answer(self, answers: Sequence[Answer]) -> None:
        """Answer requests of calls."""
        self.mailbox.answer(answers)

    def cancel(self, numbers: Sequence[int]) -> None:
        """Cancel calls, by their numbers."""
        self.mailbox.cancel(numbers)

    def collect(self) -> tuple[tuple[Collected, Arrays | None], Any]:
        """Wait for results of calls, at most :data:`corerl_ray.mailbox.LISTEN` seconds.

        The second result, the tokens of the first one's responses, stays in the object store.
        """
        collected = self.mailbox.collect()
        arrays, values = keep_tokens([each for news in collected.news.values() for each in news.finished.values()])
        return (collected, arrays), values

    def engine_load(self) -> EngineLoad | None:
        """The load of the worker's engine, if it reports one."""
        return self.mailbox.engine_load()

    def apply(self, function: Callable[..., Any], *args: Any) -> Any:
        """``function(self, *args)``: a step of a transport of weights in this process."""
        _carry_tensors()
        try:
            return function(self, *args)
        except Exception as error:
            return Failure.of(error)


def _carry_tensors() -> None:
    """Send tensors as the controller does; without torch, whose import takes seconds, a worker sends none."""
    if "torch" in sys.modules:
        from corerl_ray import tensors

        tensors.register()


def hear_of_children() -> None:
    """Undo Ray's ignoring of SIGCHLD, with which every ended subprocess seems to have returned 0."""
    if threading.current_thread() is threading.main_thread():  # required by signal
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def end_with_parent() -> None:
    """End this process within seconds after the end of its parent, its raylet.

    Ray's own checks of the raylet follow the system clock: after a jump of the clock the next may be hours away.
    """
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(LOOK)
        os._exit(1)

    threading.Thread(target=watch, name="corerl-parent", daemon=True).start()


def last_lines(logs: Sequence[str]) -> tuple[list[str], int]:
    """The last lines printed by a process, and :func:`oom_kills`; must run on its machine."""
    lines = [
        line
        for log in logs
        for line in Path(log).read_text(errors="replace").splitlines()[-4 * LOG_LINES :]
        if line.strip() and not line.startswith(":")  # Ray's own marks
    ]
    return lines[-LOG_LINES:], oom_kills()


def oom_kills() -> int:
    """Number of processes that this machine's kernel killed for lack of memory; 0 if unknown."""
    counts = Path("/proc/vmstat")
    found = re.search(r"^oom_kill (\d+)", counts.read_text(), re.MULTILINE) if counts.is_file() else None
    return int(found[1]) if found else 0


def _own_logs() -> tuple[str, ...]:
    if not sys.platform.startswith("linux"):
        return ()
    files = (Path(f"/proc/self/fd/{stream}").readlink() for stream in (1, 2))
    return tuple(str(file) for file in files if file.is_file())
