"""The role that generates: a worker that holds the rollout backend, in whatever process."""

import asyncio
import contextlib
import dataclasses
import functools
import inspect
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from torch import Tensor

from corerl.contracts.adapters import are_sent
from corerl.contracts.config import TrainConfig
from corerl.contracts.dispatch import dispatch
from corerl.contracts.rollout_backends import (
    BoundedBackend,
    Completion,
    EngineLoad,
    GenerationRequest,
    LoadReporting,
    LoggingBackend,
    OnFinished,
    RolloutBackend,
    StartingBackend,
)
from corerl.errors import CoreRLError, DeadlineError, EngineDeadError, RunError
from corerl.foreign import contained
from corerl.models import overridden, resolve_device
from corerl.plugins import load_plugins
from corerl.registry.parts import select_rollout_backend
from corerl.terminal.notices import say

T = TypeVar("T")

ABORT_SECONDS = 30
"""that requests have to end once they are aborted"""


class RolloutWorker:
    """The rollout backend."""

    def __init__(self, config: TrainConfig) -> None:
        plugins = load_plugins(tuple(config.plugins.load), tuple(config.plugins.disable))
        backend, device = (
            select_rollout_backend(config.rollout, plugins.registries),
            resolve_device(config.actor.device),
        )
        self.timeout = config.rollout.timeout
        self._longest = config.data.max_prompt_length + config.data.max_response_length
        rollout = config.rollout
        if config.model.lora_rank:
            strategy = plugins.registries.training_strategies.select(config.actor.strategy, "actor.strategy").entry
            is_adapter = are_sent(config, strategy.facts, backend.entry.facts)
            rollout = dataclasses.replace(rollout, lora="adapter" if is_adapter else "merged")
        self._start = functools.partial(backend.load(), overridden(config.model, weights=True), rollout, device=device)
        self.backend, self._is_closed = self._start(), False

    def is_starting(self) -> bool:
        """For :class:`corerl.contracts.workers.StartingWorker`."""
        return isinstance(self.backend, StartingBackend) and self.backend.is_starting()

    def started(self) -> None:
        """For :class:`corerl.contracts.workers.StartingWorker`."""
        if isinstance(self.backend, StartingBackend):
            self.backend.started()
        most = self.backend.longest_sequence() if isinstance(self.backend, BoundedBackend) else None
        if most is not None and most < self._longest:
            say(
                f"the engine computes sequences of at most {most} tokens, by its memory or its model, and a row may "
                f"have {self._longest} (data.max_prompt_length + data.max_response_length): longer responses are cut "
                "off, which response_length/clip_ratio counts, or refused; lower one of the two keys, or give the "
                "engine more memory"
            )

    @dispatch("spread")
    async def generate(self, requests: Sequence[GenerationRequest], on_finished: OnFinished) -> None:
        """Generate, all within ``rollout.timeout`` seconds; calls may overlap.

        Args:
            on_finished: called once for each request, in the event loop's thread, with its position and completions.

        Raises:
            DeadlineError: it took longer; the requests were aborted.
            EngineDeadError: the engine has ended, or answers no more.
        """
        given: set[int] = set()
        is_over = False

        def finished(position: int, completions: list[Completion]) -> None:
            if not is_over:  # else they were aborted
                given.add(position)
                on_finished(position, completions)

        takes_callback = "on_finished" in inspect.signature(self.backend.generate).parameters
        with self._naming_death():
            generate = functools.partial(self.backend.generate, requests, *((finished,) if takes_callback else ()))
            work = asyncio.ensure_future(contained(generate, "the rollout backend"))
            try:
                done, _ = await asyncio.wait([work], timeout=self.timeout)
                if not done:
                    raise self._late(len(requests) - len(given), len(requests))
                for position, completions in enumerate(work.result()):
                    if position not in given:
                        on_finished(position, completions)
            finally:
                is_over = True
                if not work.done():
                    with contextlib.suppress(RunError):  # of an engine that answers nothing
                        self.backend.abort([request.request_id for request in requests])
                    await _ended(work)

    def _late(self, unfinished: int, prompts: int) -> DeadlineError:
        log = f"; {self.backend.last_lines()}" if isinstance(self.backend, LoggingBackend) else ""
        return DeadlineError(
            f"{unfinished} of {prompts} prompts had no responses after rollout.timeout = {self.timeout:g} s{log}"
        )

    def engine_load(self) -> EngineLoad | None:
        """The engine's last report of its load; None: it makes none."""
        return self.backend.engine_load() if isinstance(self.backend, LoadReporting) else None

    @dispatch("all")
    def abort(self, request_ids: Sequence[str]) -> None:
        """End these requests; unknown ids are ignored."""
        self.backend.abort(request_ids)

    @dispatch("all")
    def apply(self, function: Callable[[Any], Any]) -> Any:
        """``function(self)``, for the hook ``around_step``."""
        return function(self)

    def update_weights(self, weights: Iterable[tuple[str, Tensor]], version: int, *, verify: bool = False) -> None:
        """For :meth:`corerl.contracts.runtimes.Runtime.send_weights`.

        Raises:
            EngineDeadError: the engine has ended; the weights were read to their end, as who sends them expects.
        """
        coming = iter(weights)
        try:
            with self._naming_death():
                self.backend.update_weights(coming, version, verify=verify)
        except EngineDeadError:
            deque(coming, maxlen=0)
            raise

    def on_backend(self, function: Callable[[RolloutBackend], T]) -> T:
        """For :class:`corerl_torch.weights.pieces.BackendWorker`."""
        with self._naming_death():
            return function(self.backend)

    @dispatch("all")
    def sleep(self) -> None:
        with self._naming_death():
            self.backend.sleep()

    @dispatch("all")
    def wake(self, *, kv_cache: bool = True) -> None:
        with self._naming_death():
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
                self.started()
            except CoreRLError as error:  # whatever its kind: the same start has succeeded before
                raise EngineDeadError(f"the engine could not be started again: {error}") from error
            self._is_closed = False

    @dispatch("all")
    def close(self) -> None:
        if not self._is_closed:
            self.backend.close()

    @contextmanager
    def _naming_death(self) -> Iterator[None]:
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


async def _ended(work: "asyncio.Future[list[list[Completion]]]") -> None:
    """Give aborted requests their time, and no more."""
    await asyncio.wait([work], timeout=ABORT_SECONDS)
    if work.cancel():
        await asyncio.wait([work], timeout=ABORT_SECONDS)
