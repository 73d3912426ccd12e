"""Single requests, of many episodes, become calls of the engines."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from corerl.contracts.rollout_backends import Completion, GenerationRequest, OnFinished
from corerl.errors import RunError

Generate = Callable[[Sequence[GenerationRequest], OnFinished], Awaitable[None]]


class RequestQueue:
    """The requests that are made in one turn of the event loop go to the engines in one call.

    Args:
        generate: tells each request's position and completions as they finish.
    """

    def __init__(self, generate: Generate) -> None:
        self._generate = generate
        self._waiting: list[tuple[GenerationRequest, asyncio.Future[list[Completion]]]] = []
        self._calls: set[asyncio.Task[None]] = set()

    async def complete(self, request: GenerationRequest) -> list[Completion]:
        """``request.sampling.n`` completions; raise what the engines' call raises."""
        loop = asyncio.get_running_loop()
        if not self._waiting:
            loop.call_soon(self._send)
        future: asyncio.Future[list[Completion]] = loop.create_future()
        self._waiting.append((request, future))
        return await future

    def _send(self) -> None:
        waiting, self._waiting = [each for each in self._waiting if not each[1].done()], []
        if not waiting:  # all were cancelled, and so was all that a call begun now would be ended with
            return
        call = asyncio.get_running_loop().create_task(self._call(waiting))
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)

    async def _call(self, waiting: "list[tuple[GenerationRequest, asyncio.Future[list[Completion]]]]") -> None:
        def on_finished(position: int, completions: list[Completion]) -> None:
            future = waiting[position][1]
            if not future.done():
                future.set_result(completions)

        try:
            await self._generate([request for request, _ in waiting], on_finished)
        except asyncio.CancelledError:
            for _, future in waiting:
                future.cancel()
            raise
        except BaseException as error:
            for _, future in waiting:
                if not future.done():
                    future.set_exception(error)
        else:
            for request, future in waiting:
                if not future.done():
                    future.set_exception(RunError(f"the engines gave no responses to request '{request.request_id}'"))
