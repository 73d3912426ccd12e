"""Requests to many stub engines, handed out as runtime ``ray`` does it (:mod:`corerl_ray.spread`)."""

import asyncio
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from corerl.contracts.rollout_backends import Completion, EngineLoad, GenerationRequest, OnFinished
from corerl_ray.spread import Loads, Spread
from corerl_simulate.engine import StubEngine, total


@dataclass(eq=False)
class _Call:
    """A call of the queue: its division among the engines."""

    on_finished: OnFinished
    ended: "asyncio.Future[None]"
    spread: Spread = field(init=False)


class Engines:
    """All engines of a run, for :class:`corerl.rollout.request_queue.RequestQueue`.

    Args:
        most: samples of one engine, as far as there are others (``runtime.options.rollout_samples``).
    """

    def __init__(self, engines: Sequence[StubEngine], most: int) -> None:
        self.engines = list(engines)
        self._loads = Loads.of(len(self.engines), most)
        self._numbers = itertools.count()
        self._calls: dict[_Call, None] = {}

    async def generate(self, requests: Sequence[GenerationRequest], on_finished: OnFinished) -> None:
        """Generate; return once every request has ended."""
        call = _Call(on_finished, asyncio.get_running_loop().create_future())

        def begin(replica: int, given: list[GenerationRequest]) -> int:
            number = next(self._numbers)
            left = len(given)

            def finished(position: int, completions: list[Completion]) -> None:
                nonlocal left
                left -= 1
                for place, results in call.spread.finished(number, {position: completions}).items():
                    call.on_finished(place, results)
                if not left:
                    call.spread.ended(number)
                    self._hand_out()

            for position, request in enumerate(given):
                self.engines[replica].submit(request, _at(finished, position))
            return number

        call.spread = Spread(requests, self._loads, begin)
        self._calls[call] = None
        try:
            call.spread.hand_out()
            await call.ended
        finally:
            self._calls.pop(call, None)

    def _hand_out(self) -> None:
        """A piece has ended: there is room for others, of any call."""
        for call in list(self._calls):
            call.spread.hand_out()
            if not call.spread.running and not call.ended.done():
                call.ended.set_result(None)

    def load(self) -> EngineLoad | None:
        """The report of all engines together."""
        return total(self.engines)


def _at(finished: Callable[[int, list[Completion]], None], position: int) -> Callable[[list[Completion]], None]:
    return lambda completions: finished(position, completions)
