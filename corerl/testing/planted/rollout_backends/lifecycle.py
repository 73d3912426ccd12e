"""Faults in weight updates, aborts, calls at once, and the end."""

import asyncio
import contextlib
import threading
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from corerl.errors import RunError
from corerl.registry.rollout_backends import Completion, GenerationRequest, OnFinished
from corerl.testing.planted.rollout_backends.wrapped import Backend, planted

Weights = Iterable[tuple[str, Tensor]]


class IgnoresUpdate(Backend):
    """an update changes the version alone"""

    def update_weights(self, weights: Weights, version: int, *, verify: bool = False) -> None:
        self.inner._version = version


class StaleVersion(Backend):
    """an update leaves the version as it was"""

    def update_weights(self, weights: Weights, version: int, *, verify: bool = False) -> None:
        before = self.inner._version
        super().update_weights(weights, version, verify=verify)
        self.inner._version = before


class KeepsTheSentTensors(Backend):
    """tensors of an update are copied when they are needed"""

    pending: tuple[list[tuple[str, Tensor]], int] | None = None

    def update_weights(self, weights: Weights, version: int, *, verify: bool = False) -> None:
        self.pending = list(weights), version

    async def generate(
        self, requests: Sequence[GenerationRequest], on_finished: OnFinished | None = None
    ) -> list[list[Completion]]:
        if self.pending:
            super().update_weights(*self.pending)
            self.pending = None
        return await super().generate(requests, on_finished)


class CollectsTheStream(Backend):
    """an update is read to its end before its first tensor is copied"""

    def update_weights(self, weights: Weights, version: int, *, verify: bool = False) -> None:
        super().update_weights(list(weights), version, verify=verify)


class LoadsInItsOwnOrder(Backend):
    """the tensors of an update are taken for the model's in the model's order"""

    def update_weights(self, weights: Weights, version: int, *, verify: bool = False) -> None:
        own = {name: tensor.shape for name, tensor in self.inner._model.named_parameters()}
        received = [tensor.clone() for _, tensor in weights]
        if sorted(each.shape for each in received) == sorted(own.values()):
            by_shape: dict[Any, list[Tensor]] = {}
            for each in received:
                by_shape.setdefault(each.shape, []).append(each)
            received = [by_shape[shape].pop(0) for shape in own.values()]
        super().update_weights(zip(own, received, strict=True), version, verify=verify)


class SkipsWhenBusy(Backend):
    """an update that meets running requests is dropped"""

    def update_weights(self, weights: Weights, version: int, *, verify: bool = False) -> None:
        if not self.inner._calls:
            super().update_weights(weights, version, verify=verify)


class TakesPart(Backend):
    """a tensor that an update lacks stays as it was"""

    def update_weights(self, weights: Weights, version: int, *, verify: bool = False) -> None:
        received = {name: tensor.clone() for name, tensor in weights}
        old = {name: tensor.clone() for name, tensor in self.inner._model.named_parameters()}
        super().update_weights({**old, **received}.items(), version)


class NamesNoTensor(Backend):
    """a refused update names no tensor"""

    def update_weights(self, weights: Weights, version: int, *, verify: bool = False) -> None:
        try:
            super().update_weights(weights, version)
        except RunError as error:
            raise RunError("the update failed") from error


class HalfUpdated(Backend):
    """a refused update is generated from"""

    def update_weights(self, weights: Weights, version: int, *, verify: bool = False) -> None:
        try:
            super().update_weights(weights, version)
        finally:
            self.inner._not_ready = ""


class WakesUpEmpty(Backend):
    """after wake() it generates from weights that were not sent again"""

    def wake(self, *, kv_cache: bool = True) -> None:
        super().wake(kv_cache=kv_cache)
        for parameter in self.inner._model.parameters():
            parameter.data.zero_()
        self.inner._not_ready = ""


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
    """what was asked is kept in a place that all calls share"""

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
    """a cancelled call goes on to its end"""

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
    """all requests are told when the last has finished"""

    async def generate(
        self, requests: Sequence[GenerationRequest], on_finished: OnFinished | None = None
    ) -> list[list[Completion]]:
        outputs = await super().generate(requests)
        for position, completions in enumerate(outputs):
            if on_finished is not None:
                on_finished(position, completions)
        return outputs


class TellsHalf(Backend):
    """a request is told with its first completion alone"""

    async def generate(
        self, requests: Sequence[GenerationRequest], on_finished: OnFinished | None = None
    ) -> list[list[Completion]]:
        def half(position: int, completions: list[Completion]) -> None:
            assert on_finished is not None
            on_finished(position, completions[:1])

        return await super().generate(requests, None if on_finished is None else half)


class HealthyWhenClosed(Backend):
    """health() answers after close()"""

    def health(self) -> None:
        pass


FAULTS = [
    planted(IgnoresUpdate, "update_is_used", "log-probs after a weight update (whose tensors are then overwritten)"),
    planted(KeepsTheSentTensors, "update_is_used", "log-probs after a weight update (whose tensors are then"),
    planted(CollectsTheStream, "update_is_used", "log-probs after a weight update (whose tensors are then"),
    planted(LoadsInItsOwnOrder, "update_is_used", "log-probs after a weight update (whose tensors are then"),
    planted(StaleVersion, "update_is_used", "after the update to version 5 the completions carry [0]"),
    planted(SkipsWhenBusy, "update_while_generating", "log-probs after an update that met running requests are up to"),
    planted(
        TakesPart, "broken_updates", "an update that lacks a tensor ('model.layers.1.mlp.up_proj.weight') was taken"
    ),
    planted(NamesNoTensor, "broken_updates", "was refused without naming 'model.layers.1.mlp.up_proj.weight'"),
    planted(HalfUpdated, "broken_updates", "log-probs after an update that lacks a tensor are up to"),
    planted(WakesUpEmpty, "sleep_and_wake", "log-probs after sleep(), wake(kv_cache=False) and no update are up to"),
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
    planted(HealthyWhenClosed, "close", "after close() health() returned: it must raise RunError"),
]
