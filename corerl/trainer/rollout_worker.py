"""The role that generates: a worker that holds the rollout backend, in whatever process."""

import asyncio
import contextlib
import functools
import inspect
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor

from corerl.contracts.config import TrainConfig
from corerl.contracts.dispatch import dispatch
from corerl.contracts.rollout_backends import Completion, GenerationRequest, LoggingBackend
from corerl.errors import CoreRLError, DeadlineError, EngineDeadError, RunError
from corerl.models import resolve_device
from corerl.plugins import load_plugins
from corerl.registry.parts import select_rollout_backend

ABORT_SECONDS = 30
"""that requests have to end once they are aborted"""


class RolloutWorker:
    """The rollout backend."""

    def __init__(self, config: TrainConfig) -> None:
        plugins = load_plugins(tuple(config.plugins.load), tuple(config.plugins.disable))
        backend = select_rollout_backend(config.rollout, plugins.registries).load()
        self.timeout = config.rollout.timeout
        self._start = functools.partial(
            backend, config.model, config.rollout, device=resolve_device(config.actor.device)
        )
        self.backend, self._is_closed = self._start(), False
        self._runners: dict[int, asyncio.Runner] = {}

    @dispatch("spread")
    def generate(self, requests: Sequence[GenerationRequest]) -> Iterator[dict[int, list[Completion]]]:
        """Position of a request -> its completions, as they finish; generates while it is asked for more.

        All within ``rollout.timeout`` seconds, in the thread that asks; calls may overlap.

        Raises:
            DeadlineError: it took longer; the requests were aborted.
            EngineDeadError: the engine has ended, or answers no more.
        """
        with self._death_told():
            yield from self._generate(requests)

    def _generate(self, requests: Sequence[GenerationRequest]) -> Iterator[dict[int, list[Completion]]]:
        finished: dict[int, list[Completion]] = {}
        given: set[int] = set()
        news = asyncio.Event()

        def on_finished(position: int, completions: list[Completion]) -> None:
            finished[position] = completions
            news.set()

        runner = self._runner()
        tells = "on_finished" in inspect.signature(self.backend.generate).parameters
        calling = self.backend.generate(requests, *((on_finished,) if tells else ()))
        work = runner.get_loop().create_task(calling)
        work.add_done_callback(lambda _: news.set())
        deadline = time.monotonic() + self.timeout
        try:
            while True:
                runner.run(self._until(news, deadline, len(requests) - len(given), len(requests)))
                news.clear()
                is_done = work.done()
                if is_done:
                    finished.update((row, each) for row, each in enumerate(work.result()) if row not in given)
                given |= finished.keys()
                if finished:
                    yield finished.copy()
                    finished.clear()
                if is_done:
                    return
        finally:
            if not work.done():
                with contextlib.suppress(RunError):  # of an engine that answers nothing
                    self.backend.abort([request.request_id for request in requests])
                runner.run(_ended(work))

    async def _until(self, news: asyncio.Event, deadline: float, unfinished: int, prompts: int) -> None:
        try:
            await asyncio.wait_for(news.wait(), deadline - time.monotonic())
        except TimeoutError:
            log = f"; {self.backend.last_lines()}" if isinstance(self.backend, LoggingBackend) else ""
            raise DeadlineError(
                f"{unfinished} of {prompts} prompts had no responses after rollout.timeout = {self.timeout:g} s{log}"
            ) from None

    def update_weights(self, weights: Iterable[tuple[str, Tensor]], version: int, *, verify: bool = False) -> None:
        """For :meth:`corerl.contracts.runtimes.Runtime.send_weights`.

        Raises:
            EngineDeadError: the engine has ended; the weights were read to their end, as who sends them expects.
        """
        coming = iter(weights)
        try:
            with self._death_told():
                self.backend.update_weights(coming, version, verify=verify)
        except EngineDeadError:
            deque(coming, maxlen=0)
            raise

    @dispatch("all")
    def sleep(self) -> None:
        with self._death_told():
            self.backend.sleep()

    @dispatch("all")
    def wake(self, *, kv_cache: bool = True) -> None:
        with self._death_told():
            self.backend.wake(kv_cache=kv_cache)

    @dispatch("revive")
    def restart(self) -> None:
        """Start the engine again, with the weights of ``model.path``, if it has ended.

        Raises:
            EngineDeadError: it does not start any more.
        """
        if self._death():
            with contextlib.suppress(RunError):  # it has nothing left to lose
                self.backend.close()
            self._is_closed = True
            try:
                self.backend = self._start()
            except CoreRLError as error:  # whatever its kind: the same start has succeeded before
                raise EngineDeadError(f"the engine could not be started again: {error}") from error
            self._is_closed = False

    @dispatch("all")
    def close(self) -> None:
        if not self._is_closed:
            self.backend.close()
        for runner in self._runners.values():
            if not runner.get_loop().is_running():
                runner.close()

    def _runner(self) -> asyncio.Runner:
        """Of this thread: an engine's clients live in its event loop."""
        return self._runners.setdefault(threading.get_ident(), asyncio.Runner())

    @contextmanager
    def _death_told(self) -> Iterator[None]:
        """An error of an engine that has ended becomes an EngineDeadError."""
        try:
            yield
        except RunError as error:
            if why := self._death():
                raise EngineDeadError(str(error) if why in str(error) else f"{error}; {why}") from error
            raise

    def _death(self) -> str:
        """Why the engine answers no more; '' when it does."""
        try:
            self.backend.health()
        except RunError as error:
            return str(error)
        return ""


async def _ended(work: asyncio.Task[list[list[Completion]]]) -> None:
    """Give aborted requests their time, and no more."""
    await asyncio.wait([work], timeout=ABORT_SECONDS)
    if work.cancel():
        await asyncio.wait([work], timeout=ABORT_SECONDS)
