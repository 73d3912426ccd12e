"""Faults in aborts, simultaneous calls, reports and closing."""

import asyncio
import contextlib
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from corerl.contracts.rollout_backends import Completion, GenerationRequest, OnFinished
from planted.rollout_backends.wrapped import Backend, planted


class IgnoresAbort(Backend):
    """abort() does nothing"""

    def abort(self, request_ids: Sequence[str]) -> None:
        pass


class AbortsTheCall(Backend):
    """abort() ends all requests of a call"""

    def abort(self, request_ids: Sequence[str]) -> None:
        super().abort([each.request_id for call in self.inner._calls for each in call.requests])


class AbortIsLength(Backend):
    """an aborted request has the finish reason length"""

    def change(self, request: GenerationRequest, completion: Completion) -> Completion:
        return replace(completion, finish_reason="length")


class AbortsWhatRuns(Backend):
    """abort() misses a call that waits for another"""

    def abort(self, request_ids: Sequence[str]) -> None:
        for call in self.inner._calls[:1]:
            call.abort(request_ids)


class OneCallAtATime(Backend):
    """the requests are kept in a variable shared by all calls"""

    async def generate(
        self, requests: Sequence[GenerationRequest], on_finished: OnFinished | None = None
    ) -> list[list[Completion]]:
        self.requests = requests
        await asyncio.sleep(0)
        return await super().generate(self.requests, on_finished)


class SamplingOfTheLastCall(Backend):
    """calls at once are sampled at the temperature of the last one"""

    temperature = 1.0

    async def generate(
        self, requests: Sequence[GenerationRequest], on_finished: OnFinished | None = None
    ) -> list[list[Completion]]:
        if requests:
            self.temperature = requests[-1].sampling.temperature
        await asyncio.sleep(0)
        return await super().generate(requests, on_finished)

    def sampling(self, request: GenerationRequest) -> dict[str, Any]:
        return {"temperature": self.temperature}


class WaitsForItself(Backend):
    """two calls at once wait for each other"""

    running = 0

    async def generate(
        self, requests: Sequence[GenerationRequest], on_finished: OnFinished | None = None
    ) -> list[list[Completion]]:
        self.running += 1
        await asyncio.sleep(0)
        if self.running > 1:
            threading.Event().wait()
        try:
            return await super().generate(requests, on_finished)
        finally:
            self.running -= 1


class CannotBeCancelled(Backend):
    """a cancelled call continues to its end"""

    def sampling(self, request: GenerationRequest) -> dict[str, Any]:
        return {"max_tokens": min(2500, request.sampling.max_tokens)}

    async def generate(
        self, requests: Sequence[GenerationRequest], on_finished: OnFinished | None = None
    ) -> list[list[Completion]]:
        work = asyncio.ensure_future(super().generate(requests, on_finished))
        while not work.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.shield(work)
        return work.result()


class TellsAtTheEnd(Backend):
    """all requests are reported when the last has finished"""

    async def generate(
        self, requests: Sequence[GenerationRequest], on_finished: OnFinished | None = None
    ) -> list[list[Completion]]:
        outputs = await super().generate(requests)
        for position, completions in enumerate(outputs):
            if on_finished is not None:
                on_finished(position, completions)
        return outputs


class TellsHalf(Backend):
    """a request is reported with only its first completion"""

    async def generate(
        self, requests: Sequence[GenerationRequest], on_finished: OnFinished | None = None
    ) -> list[list[Completion]]:
        def half(position: int, completions: list[Completion]) -> None:
            assert on_finished is not None
            on_finished(position, completions[:1])

        return await super().generate(requests, None if on_finished is None else half)


class TellsFromAThread(Backend):
    """on_finished is called in another thread"""

    async def generate(
        self, requests: Sequence[GenerationRequest], on_finished: OnFinished | None = None
    ) -> list[list[Completion]]:
        def told(position: int, completions: list[Completion]) -> None:
            assert on_finished is not None
            thread = threading.Thread(target=on_finished, args=(position, completions))
            thread.start()
            thread.join()

        return await super().generate(requests, None if on_finished is None else told)


class HealthyWhenClosed(Backend):
    """health() answers after close()"""

    def health(self) -> None:
        pass


FAULTS = [
    planted(IgnoresAbort, "abort", "a call whose long requests were aborted had not ended after", patience=0.03),
    planted(AbortsTheCall, "abort", "an abort of one request ended another of its call"),
    planted(AbortIsLength, "abort", "with max_tokens=9 ended with length, length, length"),
    planted(AbortsWhatRuns, "abort_at_once", "a call whose request was aborted at once had not ended", patience=0.03),
    planted(OneCallAtATime, "overlapping_calls", "a request with n=2 gave 1 completions"),
    planted(SamplingOfTheLastCall, "overlapping_calls", "log-probs of calls that overlap, each with its own sampling,"),
    planted(WaitsForItself, "overlapping_calls", "generate() had not ended after", patience=0.05),
    planted(CannotBeCancelled, "cancellation", "was cancelled had not ended after", patience=0.03),
    planted(TellsAtTheEnd, "finished_requests_are_told", "on_finished was told [0, 1, 2]: it must be told each"),
    planted(TellsHalf, "finished_requests_are_told", "was told other completions than generate"),
    planted(TellsFromAThread, "finished_requests_are_told", "on_finished was called in another thread than"),
    planted(HealthyWhenClosed, "close", "after close() health() returned: it must raise RunError"),
]
