"""One call of a spread method, in the event loop of its caller, with the requests that replicas make for it."""

import asyncio
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from corerl.contracts.rollout_backends import Completion, GenerationRequest, OnFinished
from corerl.contracts.workers import Requests
from corerl_ray.calls import Wait
from corerl_ray.host import Failure
from corerl_ray.mailbox import Answer, News
from corerl_ray.spread import Spread


@dataclass(eq=False)
class Order:
    """A call of a spread method that has not ended.

    Attributes:
        over: its end, in its event loop.
        engines: take the replicas' own requests; None: the method has none.
        deaths: replicas that ended during the call.
        spread: its requests, as the replicas have them.
    """

    method: str
    requests: Sequence[GenerationRequest]
    on_finished: OnFinished
    wait: Wait
    loop: asyncio.AbstractEventLoop
    over: "asyncio.Future[None]"
    engines: Requests | None = None
    deaths: int = 0
    spread: Spread = field(init=False)
    _asked: dict[tuple[int, int], "asyncio.Task[None]"] = field(default_factory=dict)
    """(number of the call on a replica, of the request) -> the request under way"""

    def hear(self, finished: Mapping[int, list[Completion]]) -> None:
        """In the event loop."""
        for position, completions in finished.items():
            if not self.over.done():
                self.on_finished(position, completions)

    def ask(self, call: int, news: News, answer: Callable[[int, Answer], None]) -> None:
        """Begin and end requests of a call on a replica; in the event loop.

        Args:
            answer: called with ``call`` and the answer to a request.
        """
        if not self.over.done():
            for number, request in news.asked.items():
                self._asked[call, number] = self.loop.create_task(self._complete(call, number, request, answer))
        for number in news.withdrawn:
            self._withdraw((call, number))

    def withdraw(self, calls: Collection[int]) -> None:
        """End the requests of these calls on replicas; in the event loop."""
        for key in [key for key in self._asked if key[0] in calls]:
            self._withdraw(key)

    def _withdraw(self, key: tuple[int, int]) -> None:
        if (task := self._asked.pop(key, None)) is not None:
            task.cancel()

    async def _complete(
        self, call: int, number: int, request: GenerationRequest, answer: Callable[[int, Answer], None]
    ) -> None:
        assert self.engines is not None
        sent = time.perf_counter()

        def on_sent(ago: float = 0.0) -> None:
            nonlocal sent
            sent = time.perf_counter() - ago

        try:
            completions = await self.engines.complete(request, on_sent)
            given = Answer(number, completions, time.perf_counter() - sent)
        except Exception as error:
            given = Answer(number, (), failure=Failure.of(error))
        self._asked.pop((call, number), None)
        answer(call, given)

    def end(self, error: BaseException | None) -> None:
        """In the event loop."""
        for key in list(self._asked):
            self._withdraw(key)
        if self.over.done():
            return
        if error is None:
            self.over.set_result(None)
        else:
            self.over.set_exception(error)
