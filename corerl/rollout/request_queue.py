"""Single requests, of many episodes, become calls of the engines."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from corerl.contracts.rollout_backends import Completion, GenerationRequest, OnFinished
from corerl.errors import RunError

Generate = Callable[[Sequence[GenerationRequest], OnFinished], Awaitable[None]]

PART = 8
"""of the samples under way that must have ended before more are sent, as one call"""


@dataclass(frozen=True, eq=False)
class _Waiting:
    request: GenerationRequest
    on_sent: Callable[[], None]
    future: "asyncio.Future[list[Completion]]"


class RequestQueue:
    """The requests that are made in one turn of the event loop go to the engines in one call.

    Args:
        generate: reports each request's position and completions as they finish.
        most: samples under way; other requests wait, in the order in which they came. None: no limit.
    """

    def __init__(self, generate: Generate, most: int | None = None) -> None:
        self._generate, self._most = generate, most
        self._under_way = 0
        self._waiting: deque[_Waiting] = deque()
        self._calls: set[asyncio.Task[None]] = set()
        self._is_called = False

    async def complete(
        self, request: GenerationRequest, on_sent: Callable[[], None] = lambda: None
    ) -> list[Completion]:
        """``request.sampling.n`` completions; raise what the engines' call raises.

        Args:
            on_sent: called just before the request is sent.
        """
        waiting = _Waiting(request, on_sent, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        self._send_soon()
        return await waiting.future

    def _send_soon(self) -> None:
        if not self._is_called:
            self._is_called = True
            asyncio.get_running_loop().call_soon(self._send)

    def _send(self) -> None:
        self._is_called = False
        if self._most is not None and self._under_way > self._most * (1 - 1 / PART):
            return
        sent: list[_Waiting] = []
        while self._waiting and (not self._under_way or self._fits(self._waiting[0])):
            waiting = self._waiting.popleft()
            if not waiting.future.done():  # else nobody waits any more
                self._under_way += waiting.request.sampling.n
                waiting.on_sent()
                sent.append(waiting)
        if sent:
            call = asyncio.get_running_loop().create_task(self._call(sent))
            self._calls.add(call)
            call.add_done_callback(self._calls.discard)

    def _fits(self, waiting: _Waiting) -> bool:
        return self._most is None or self._under_way + waiting.request.sampling.n <= self._most

    async def _call(self, sent: Sequence[_Waiting]) -> None:
        left = dict(enumerate(sent))

        def end(position: int) -> "asyncio.Future[list[Completion]]":
            waiting = left.pop(position)
            self._under_way -= waiting.request.sampling.n
            if self._waiting:
                self._send_soon()
            return waiting.future

        def on_finished(position: int, completions: list[Completion]) -> None:
            if not (future := end(position)).done():
                future.set_result(completions)

        error: BaseException | None = None
        try:
            await self._generate([waiting.request for waiting in sent], on_finished)
        except BaseException as raised:
            error = raised
        for position, waiting in list(left.items()):
            name = waiting.request.request_id
            future = end(position)
            if isinstance(error, asyncio.CancelledError):
                future.cancel()
            elif not future.done():
                future.set_exception(error or RunError(f"the engines gave no responses to request '{name}'"))
        if isinstance(error, asyncio.CancelledError):
            raise error
