"""Single requests, of many episodes, become calls of the engines."""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from corerl.contracts.rollout_backends import Completion, EngineLoad, GenerationRequest, OnFinished
from corerl.errors import RunError, WorkerLateError
from corerl.rollout.limits import EngineLimit, FixedLimit

Generate = Callable[[Sequence[GenerationRequest], OnFinished], Awaitable[None]]
Abort = Callable[[Sequence[str]], Coroutine[Any, Any, None]]

LOOK = 0.25
"""seconds between two looks at the engines' load"""
IDLE = 600.0
"""seconds in which the engines end what was given up"""
SESSIONS = 65_536
"""the latest that are known to have begun"""


@dataclass(slots=True, eq=False)
class _Waiting:
    request: GenerationRequest
    on_sent: Callable[[], None]
    future: "asyncio.Future[list[Completion]]"
    call: "asyncio.Task[None] | None" = None
    """under way in the engines"""


class RequestQueue:
    """The requests that are made in one turn of the event loop go to the engines in one call.

    Requests beyond the largest number of samples under way wait: first those of sessions that have begun, which are the
    later turns of episodes, then others, each in the order in which they came.

    Args:
        generate: reports each request's position and completions as they finish.
        most: samples under way. None: as many as the engines can use.
        load: the engines' last report; None: they make none, and no request waits.
        abort: ends requests in the engines, by their ids. A request that nobody awaits any more is ended there.
    """

    def __init__(
        self,
        generate: Generate,
        most: int | None = None,
        load: Callable[[], EngineLoad | None] | None = None,
        abort: Abort | None = None,
    ) -> None:
        self._generate, self._abort = generate, abort
        self._limit = FixedLimit(most) if most is not None or load is None else EngineLimit(load)
        self._under_way = 0
        self._later_turns: deque[_Waiting] = deque()
        self._first_turns: deque[_Waiting] = deque()
        self._begun: OrderedDict[str, None] = OrderedDict()
        """sessions"""
        self._is_looking = False
        self._calls: set[asyncio.Task[None]] = set()
        self._is_called = False
        self._abandoned: list[_Waiting] = []
        """requests whose callers were cancelled in this turn of the event loop"""

    async def complete(
        self, request: GenerationRequest, on_sent: Callable[[], None] = lambda: None
    ) -> list[Completion]:
        """``request.sampling.n`` completions; raise what the engines' call raises.

        Args:
            on_sent: called just before the request is sent.
        """
        waiting = _Waiting(request, on_sent, asyncio.get_running_loop().create_future())
        (self._later_turns if request.session in self._begun else self._first_turns).append(waiting)
        self._send_soon()
        try:
            return await waiting.future
        except asyncio.CancelledError:
            if not self._abandoned:
                asyncio.get_running_loop().call_soon(self._end_abandoned)
            self._abandoned.append(waiting)
            raise

    async def idle(self) -> None:
        """Wait until the engines have ended every request; WorkerLateError after :data:`IDLE` seconds."""
        try:
            async with asyncio.timeout(IDLE):
                while self._calls:
                    await asyncio.wait(self._calls)
        except TimeoutError:
            raise WorkerLateError(f"the engines have not ended requests without callers within {IDLE:g} s") from None

    def _end_abandoned(self) -> None:
        """End in the engines what nobody awaits, unless the call itself is cancelled."""
        abandoned, self._abandoned = self._abandoned, []
        names = [each.request.request_id for each in abandoned if each.call is not None and not each.call.cancelling()]
        if names and self._abort is not None:
            self._keep(self._abort(names))

    def _keep(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Run ``work`` beside the caller."""
        task = asyncio.get_running_loop().create_task(work)
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)
        return task

    def _send_soon(self) -> None:
        if not self._is_called:
            self._is_called = True
            asyncio.get_running_loop().call_soon(self._send)

    def measured(self) -> Mapping[str, float]:
        """Metrics of the engines' load since the last call."""
        return self._limit.measured()

    def _send(self) -> None:
        self._is_called = False
        begins = self._limit.begins(self._under_way)
        sent = self._taken(self._later_turns)
        if begins and not self._later_turns:
            sent += self._taken(self._first_turns)
        if sent:
            call = self._keep(self._call(sent))
            for waiting in sent:
                waiting.call = call
        if not self._is_looking and self._under_way and isinstance(self._limit, EngineLimit):
            self._is_looking = True
            asyncio.get_running_loop().call_later(LOOK, self._look)

    def _taken(self, waiting: "deque[_Waiting]") -> list[_Waiting]:
        """Those of the first requests that fit; at least one if nothing is under way."""
        taken: list[_Waiting] = []
        while waiting and (not self._under_way or self._fits(waiting[0])):
            first = waiting.popleft()
            if not first.future.done():  # else nobody waits any more
                self._under_way += first.request.sampling.n
                self._remember(first.request.session)
                first.on_sent()
                taken.append(first)
        return taken

    def _fits(self, waiting: _Waiting) -> bool:
        return self._limit.fits(self._under_way + waiting.request.sampling.n)

    def _remember(self, session: str) -> None:
        """The session has begun; the oldest of more than ``SESSIONS`` are forgotten."""
        if not session:
            return
        self._begun[session] = None
        self._begun.move_to_end(session)
        if len(self._begun) > SESSIONS:
            self._begun.popitem(last=False)

    def _look(self) -> None:
        """Follow the engines' load while requests are under way."""
        self._is_looking = False
        self._limit.look()
        self._send()

    async def _call(self, sent: Sequence[_Waiting]) -> None:
        left = dict(enumerate(sent))

        def end(position: int) -> "asyncio.Future[list[Completion]]":
            waiting = left.pop(position)
            waiting.call = None
            self._under_way -= waiting.request.sampling.n
            self._limit.ended(waiting.request.sampling.n)
            if self._later_turns or self._first_turns:
                self._send_soon()
            return waiting.future

        def on_finished(position: int, completions: list[Completion]) -> None:
            if not (future := end(position)).done():
                future.set_result(sent[position].request.with_media(completions))

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
