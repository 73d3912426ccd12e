"""A rollout backend whose model another server serves."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from corerl.contracts.config import RolloutConfig
from corerl.contracts.rollout_backends import Completion, GenerationRequest, OnFinished
from corerl.errors import RefusedError, RunError
from corerl.rollout.player import all_or_none
from corerl_gateway.remote.server import Server

if TYPE_CHECKING:
    from torch import Tensor

UNDER_WAY = 64
"""requests at a time, unless ``rollout.max_concurrent_requests`` is set"""


class ServedBackend:
    """See :class:`corerl.contracts.rollout_backends.RolloutBackend`.

    A refused request fails alone: the others of its call finish before its error is raised.

    Args:
        complete: asks the server for ``sampling.n`` completions of a request.
    """

    def __init__(
        self,
        server: Server,
        rollout: RolloutConfig,
        complete: Callable[[GenerationRequest], Awaitable[list[Completion]]],
    ) -> None:
        self._server, self._complete = server, complete
        self._places = asyncio.Semaphore(rollout.max_concurrent_requests or UNDER_WAY)
        self._under_way: dict[str, asyncio.Task[object]] = {}
        self._aborted: set[str] = set()

    async def generate(
        self, requests: Sequence[GenerationRequest], on_finished: OnFinished | None = None
    ) -> list[list[Completion]]:
        """See :meth:`corerl.contracts.rollout_backends.RolloutBackend.generate`.

        Raises:
            RefusedError: the server refused a request.
            RunError: the server failed.
        """
        async with self._server.open():
            outcomes = await all_or_none(self._outcome(*each, on_finished) for each in enumerate(requests))
        found: list[list[Completion]] = []
        for outcome in outcomes:
            if isinstance(outcome, RefusedError):
                raise outcome
            found.append(outcome)
        return found

    async def _outcome(
        self, position: int, request: GenerationRequest, on_finished: OnFinished | None
    ) -> list[Completion] | RefusedError:
        name, task = request.request_id, asyncio.current_task()
        assert task is not None
        self._under_way[name] = task
        try:
            async with self._places:
                completions = await self._complete(request)
        except RefusedError as error:
            return error
        except asyncio.CancelledError:
            if name not in self._aborted:
                raise
            completions = [Completion([], [], "abort", 0)] * request.sampling.n
        finally:
            self._aborted.discard(name)
            self._under_way.pop(name, None)
        if on_finished is not None:
            on_finished(position, completions)
        return completions

    def abort(self, request_ids: Sequence[str]) -> None:
        """See :meth:`corerl.contracts.rollout_backends.RolloutBackend.abort`."""
        for name in request_ids:
            if (task := self._under_way.get(name)) is not None:
                self._aborted.add(name)
                task.cancel()

    def update_weights(self, weights: "Iterable[tuple[str, Tensor]]", version: int, *, verify: bool = False) -> None:
        """Refuse: the weights are the server's."""
        raise RunError("the model of another server takes no weights: choose another rollout.name")

    def sleep(self) -> None:
        """Nothing is held here."""

    def wake(self, *, kv_cache: bool = True) -> None:
        """Nothing is held here."""

    def health(self) -> None:
        """A server that does not answer fails requests, not the engine."""

    def close(self) -> None:
        """Connections end with the last request."""
