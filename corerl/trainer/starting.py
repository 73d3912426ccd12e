"""Roles start at the same time where the runtime allows, and the terminal shows what is waited for."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from contextlib import contextmanager
from typing import Any

from corerl.contracts.workers import StartingWorker
from corerl.terminal.notices import MINUTE, SILENCE, say

ENDING = 30.0
"""seconds in which the other starts end once one has failed and their runtime is closed"""

Start = Callable[[], Any]

_NONE: Mapping[str, Start] = {}


class Starts:
    """Starts roles; several at a time in threads of their own."""

    def __init__(self) -> None:
        self._futures: dict[str, Future[Any]] = {}

    def together(self, starts: Mapping[str, Start]) -> dict[str, Any]:
        """What each returns, by role. At the first error the others are left behind, for :meth:`join`."""
        if len(starts) < 2:
            return self.one_by_one(starts)
        self._futures = {name: _in_thread(name, start) for name, start in starts.items()}
        with _shown(lambda: [name for name, future in self._futures.items() if not future.done()]):
            done, _ = wait(self._futures.values(), return_when=FIRST_EXCEPTION)
        return {name: future.result() for name, future in self._futures.items() if future in done}

    def one_by_one(self, starts: Mapping[str, Start], beside: Mapping[str, Start] = _NONE) -> dict[str, Any]:
        """What each returns, by role.

        Args:
            beside: called first; their workers may then still start, and are waited for last. If several fail, the
                first failure is raised, that of such a worker once the present start has ended.
        """
        started: dict[str, Any] = {name: start() for name, start in beside.items()}
        begun = [(name, worker) for name, worker in started.items() if isinstance(worker, StartingWorker)]
        present: list[str] = []
        with _shown(lambda: [name for name, worker in begun if worker.is_starting()] + present):
            for name, start in starts.items():
                present[:] = [name]
                try:
                    started[name] = start()
                finally:
                    for _, worker in begun:
                        if not worker.is_starting():
                            worker.started()
            present.clear()
            for _, worker in begun:
                worker.started()
        return started

    def join(self) -> None:
        """Wait for those that were left behind, whose runtime is closed."""
        wait(self._futures.values(), timeout=ENDING)


def _in_thread(name: str, start: Start) -> "Future[Any]":
    future: Future[Any] = Future()

    def work() -> None:
        try:
            future.set_result(start())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=work, name=f"corerl-start-{name}", daemon=True).start()
    return future


@contextmanager
def _shown(waiting: Callable[[], list[str]]) -> Iterator[None]:
    """Within, the terminal shows now and then what is waited for, and for how long."""
    is_over, began = threading.Event(), time.monotonic()

    def show() -> None:
        pause = SILENCE
        while not is_over.wait(pause):
            if names := waiting():
                say(f"waiting for the start of {', '.join(names)} ({time.monotonic() - began:.0f} s)")
            waited = time.monotonic() - began
            pause = SILENCE if waited < MINUTE else waited

    threading.Thread(target=show, name="corerl-waiting", daemon=True).start()
    try:
        yield
    finally:
        is_over.set()
