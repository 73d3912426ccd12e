"""The checks of rollout backends, held against ``hf`` with one mistake each."""

import asyncio
import contextlib
import functools
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from corerl.errors import ConfigError, RunError
from corerl.registry.base import Entry, Owner, Selected
from corerl.registry.rollout_backends import Completion, GenerationRequest
from corerl.testing import rollout_backends, rollout_lifecycle
from corerl.testing.devices import VARIABLE
from corerl.testing.results import CheckFailed, CheckSkipped
from corerl.testing.rollout_backends import CHECKS
from corerl.testing.tiny_model import reference, response_log_probs, tiny_model

Hf: Any = pytest.importorskip("corerl_hf.backend").HfBackend
HfOptions: Any = pytest.importorskip("corerl_hf.options").HfOptions

the_reference = functools.cache(lambda: reference(tiny_model()))


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


class Good(Hf):  # type: ignore[misc]
    """``hf`` itself; subclasses change what goes in or comes out."""

    async def generate(self, requests: Sequence[GenerationRequest]) -> list[list[Completion]]:
        asked = [replace(each, sampling=replace(each.sampling, **self.sampling(each))) for each in requests]
        outputs = await super().generate(asked)
        return [
            [self.change(each, completion) for completion in self.choose(completions)]
            for each, completions in zip(requests, outputs, strict=True)
        ]

    def sampling(self, request: GenerationRequest) -> dict[str, Any]:
        return {}

    def choose(self, completions: list[Completion]) -> list[Completion]:
        return completions

    def change(self, request: GenerationRequest, completion: Completion) -> Completion:
        return completion


class Echo(Good):
    def change(self, request: GenerationRequest, completion: Completion) -> Completion:
        return replace(
            completion,
            token_ids=[*request.prompt_ids, *completion.token_ids],
            log_probs=[0.0] * len(request.prompt_ids) + list(completion.log_probs),
        )


class WithoutTemperature(Good):
    """Log-probs of the logits as they are."""

    @torch.no_grad()
    def change(self, request: GenerationRequest, completion: Completion) -> Completion:
        tokens = list(completion.token_ids)
        log_probs = response_log_probs(the_reference(), list(request.prompt_ids), tokens)
        return replace(completion, log_probs=log_probs.gather(1, torch.tensor(tokens)[:, None])[:, 0].tolist())


class AfterTopP(Good):
    """Log-probs among the tokens that were kept."""

    def change(self, request: GenerationRequest, completion: Completion) -> Completion:
        kept = torch.tensor(request.sampling.top_p).log().item()
        return replace(completion, log_probs=[min(0.0, each - kept) for each in completion.log_probs])


class OffByATenth(Good):
    def change(self, request: GenerationRequest, completion: Completion) -> Completion:
        return replace(completion, log_probs=[each - 0.1 for each in completion.log_probs])


class SamplesAtOne(WithoutTemperature):
    """Draws at temperature 1 and reports the log-probs of the temperature that was asked for."""

    def sampling(self, request: GenerationRequest) -> dict[str, Any]:
        return {"temperature": 1.0}


class IgnoresTopP(Good):
    def sampling(self, request: GenerationRequest) -> dict[str, Any]:
        return {"top_p": 1.0, "top_k": -1}


class NeverGreedy(Good):
    def sampling(self, request: GenerationRequest) -> dict[str, Any]:
        return {"temperature": request.sampling.temperature or 1.0}


class OneSample(Good):
    def choose(self, completions: list[Completion]) -> list[Completion]:
        return completions[:1] * len(completions)


class IgnoresN(Good):
    def choose(self, completions: list[Completion]) -> list[Completion]:
        return completions[:1]


class AlwaysAnswers(Good):
    async def generate(self, requests: Sequence[GenerationRequest]) -> list[list[Completion]]:
        return await super().generate(requests) or [[]]


class CutsStopToken(Good):
    def change(self, request: GenerationRequest, completion: Completion) -> Completion:
        if completion.finish_reason != "stop":
            return completion
        return replace(completion, token_ids=completion.token_ids[:-1], log_probs=completion.log_probs[:-1])


class IgnoresStopTokens(Good):
    def sampling(self, request: GenerationRequest) -> dict[str, Any]:
        return {"stop_token_ids": ()}


class StopsAnyway(Good):
    def sampling(self, request: GenerationRequest) -> dict[str, Any]:
        return {"ignore_eos": False}


class OneLimit(Good):
    def sampling(self, request: GenerationRequest) -> dict[str, Any]:
        return {"max_tokens": min(5, request.sampling.max_tokens)}


class IgnoresSeed(Good):
    counter = itertools.count()

    def sampling(self, request: GenerationRequest) -> dict[str, Any]:
        return {"seed": next(self.counter)}


class OneSeed(Good):
    def sampling(self, request: GenerationRequest) -> dict[str, Any]:
        return {"seed": 0}


class IgnoresUpdate(Good):
    def update_weights(self, weights: Iterable[tuple[str, Tensor]], version: int, *, verify: bool = False) -> None:
        self._version = version


class StaleVersion(Good):
    def update_weights(self, weights: Iterable[tuple[str, Tensor]], version: int, *, verify: bool = False) -> None:
        before: int = self.__dict__["_version"]
        super().update_weights(weights, version)
        self._version = before


class KeepsTheSentTensors(Good):
    """Copies them when they are needed."""

    pending: tuple[list[tuple[str, Tensor]], int] | None = None

    def update_weights(self, weights: Iterable[tuple[str, Tensor]], version: int, *, verify: bool = False) -> None:
        self.pending = list(weights), version

    async def generate(self, requests: Sequence[GenerationRequest]) -> list[list[Completion]]:
        if self.pending:
            super().update_weights(*self.pending)
            self.pending = None
        return await super().generate(requests)


class TakesPart(Good):
    """What an update lacks stays as it was."""

    def update_weights(self, weights: Iterable[tuple[str, Tensor]], version: int, *, verify: bool = False) -> None:
        old = {name: tensor.clone() for name, tensor in self._model.named_parameters()}
        super().update_weights({**old, **dict(weights)}.items(), version)


class NamesNoTensor(Good):
    def update_weights(self, weights: Iterable[tuple[str, Tensor]], version: int, *, verify: bool = False) -> None:
        try:
            super().update_weights(weights, version)
        except RunError as error:
            raise RunError("the update failed") from error


class HalfUpdated(Good):
    """Refuses a broken update and generates from what it took of it."""

    def update_weights(self, weights: Iterable[tuple[str, Tensor]], version: int, *, verify: bool = False) -> None:
        try:
            super().update_weights(weights, version)
        finally:
            self._not_ready = ""


class WakesUpEmpty(Good):
    def wake(self, *, kv_cache: bool = True) -> None:
        super().wake(kv_cache=kv_cache)
        for parameter in self._model.parameters():
            parameter.data.zero_()
        self._not_ready = ""


class IgnoresAbort(Good):
    def abort(self, request_ids: Sequence[str]) -> None:
        pass


class AbortsTheCall(Good):
    def abort(self, request_ids: Sequence[str]) -> None:
        super().abort([each.request_id for call in self._calls for each in call.requests])


class AbortIsLength(Good):
    def change(self, request: GenerationRequest, completion: Completion) -> Completion:
        return replace(completion, finish_reason="length")


class OneCallAtATime(Good):
    """Keeps what it was asked in a place that all calls share."""

    async def generate(self, requests: Sequence[GenerationRequest]) -> list[list[Completion]]:
        self.requests = requests
        await asyncio.sleep(0)
        return await super().generate(self.requests)


class CannotBeCancelled(Good):
    async def generate(self, requests: Sequence[GenerationRequest]) -> list[list[Completion]]:
        work = asyncio.ensure_future(super().generate(requests))
        while not work.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.shield(work)
        return work.result()


class HealthyWhenClosed(Good):
    def health(self) -> None:
        pass


class TellsAtTheEnd(Good):
    async def generate(self, requests: Sequence[GenerationRequest], on_finished: Any = None) -> list[list[Completion]]:
        outputs = await super().generate(requests)
        for position, completions in enumerate(outputs):
            on_finished(position, completions)
        return outputs


class TellsHalf(Good):
    async def generate(self, requests: Sequence[GenerationRequest], on_finished: Any = None) -> list[list[Completion]]:
        def half(position: int, completions: list[Completion]) -> None:
            on_finished(position, completions[:1])

        return await Hf.generate(self, requests, half)  # type: ignore[no-any-return]


def run(backend: Any, name: str) -> None:
    entry: Entry[Any] = Entry("rollout backend", "b", backend, Owner("tests"), options=HfOptions)
    dict(rollout_backends.checks(Selected(entry, HfOptions())))[name]()


@pytest.mark.parametrize("name", ["completions", "broken_updates", "close"])
def test_a_good_backend_passes(name: str) -> None:
    """All checks of ``hf`` itself are run by the tests of its plugin."""
    run(Good, name)


@pytest.mark.parametrize(
    ("backend", "name", "words"),
    [
        (Echo, "completions", "a response begins with the prompt"),
        (IgnoresN, "completions", "a request with n=3 gave 1 completions"),
        (OffByATenth, "log_probs", "log-probs at temperature 1 are up to 0.1 off"),
        (AlwaysAnswers, "no_requests", r"no requests gave \[\[\]\]: it must be an empty list"),
        (AfterTopP, "log_probs_before_top_p_and_top_k", "log-probs with top_p=0.6 are up to"),
        (WithoutTemperature, "log_probs_at_a_temperature", "log-probs at temperatures 0.5 and 2 are up to"),
        (SamplesAtOne, "samples_follow_the_softmax", "512 tokens drawn at temperature 0.5 have a mean log-prob of"),
        (IgnoresTopP, "top_p_and_top_k", r"with {'top_k': 4} a token was drawn that \d+ others stand before"),
        (NeverGreedy, "greedy", "at temperature 0 a token was chosen that is not the most likely one"),
        (OneSample, "samples_differ", "hold only 1 different responses"),
        (CutsStopToken, "stop_tokens", r"with the finish reason stop ends with the tokens \["),
        (IgnoresStopTokens, "stop_tokens", "a response goes on after a stop token"),
        (StopsAnyway, "ignore_eos", "with ignore_eos and max_tokens=9 ended after 1 tokens with 'stop'"),
        (OneLimit, "max_tokens", r"with max_tokens \(1, 17, 5, 30\) ended with \[\(1, 'length'\), \(5, 'length'\)"),
        (IgnoresSeed, "seed", "the same seed, prompt and weights gave other tokens"),
        (OneSeed, "seed", "another seed gave the same tokens"),
        (IgnoresUpdate, "update_is_used", r"log-probs after a weight update \(.*\) are up to"),
        (KeepsTheSentTensors, "update_is_used", r"log-probs after a weight update \(.*\) are up to"),
        (StaleVersion, "update_is_used", r"after the update to version 5 the completions carry \[0\]"),
        (
            TakesPart,
            "broken_updates",
            r"an update that lacks a tensor \('model.layers.1.mlp.up_proj.weight'\) was taken",
        ),
        (NamesNoTensor, "broken_updates", "was refused without naming 'model.layers.1.mlp.up_proj.weight'"),
        (HalfUpdated, "broken_updates", "log-probs after an update that lacks a tensor are up to"),
        (WakesUpEmpty, "sleep_and_wake", r"log-probs after sleep\(\), wake\(kv_cache=False\) and no update are up to"),
        (TellsAtTheEnd, "finished_requests_are_told", r"on_finished was told \[0, 1, 2\]: it must be told each"),
        (TellsHalf, "finished_requests_are_told", "was told other completions than generate"),
        (IgnoresAbort, "abort", "a call whose long requests were aborted had not ended after 0.3 s"),
        (AbortsTheCall, "abort", "an abort of one request ended another of its call"),
        (AbortIsLength, "abort", "with max_tokens=9 ended with length, length, length"),
        (OneCallAtATime, "overlapping_calls", "max_tokens=15 gave 18 tokens"),
        (CannotBeCancelled, "cancellation", "was cancelled had not ended after 0.3 s"),
        (HealthyWhenClosed, "close", r"after close\(\) health\(\) returned: it must raise RunError"),
    ],
)
def test_a_mistake_is_caught(backend: Any, name: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if backend in (IgnoresAbort, CannotBeCancelled):
        monkeypatch.setattr(rollout_lifecycle, "SOON", 0.3)
        monkeypatch.setattr(rollout_lifecycle, "FOREVER", 1500)
    with pytest.raises(CheckFailed, match=words):
        run(backend, name)


def test_a_backend_that_tells_nothing_is_passed_over() -> None:
    with pytest.raises(CheckSkipped, match="takes no on_finished"):
        run(Good, "finished_requests_are_told")


def test_a_backend_for_another_device_is_passed_over() -> None:
    def cuda_only(model: Any, rollout: Any, *, device: str, options: Any) -> Any:
        raise ConfigError("actor.device", "this engine runs on cuda")

    if torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(CheckSkipped, match=r"it does not run here: .* runs on cuda"):
        run(cuda_only, "log_probs")


def test_a_wider_tolerance_lets_a_rounder_engine_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)

    class Rounded(Good):
        def change(self, request: GenerationRequest, completion: Completion) -> Completion:
            return replace(completion, log_probs=[round(each, 2) for each in completion.log_probs])

    with pytest.raises(CheckFailed, match=r"tolerance 0\.0001"):
        run(Rounded, "log_probs")
    entry: Entry[Any] = Entry("rollout backend", "b", Rounded, Owner("tests"), options=HfOptions)
    dict(rollout_backends.checks(Selected(entry, HfOptions()), tolerance=0.02))["log_probs"]()


def test_every_check_is_yielded() -> None:
    entry: Entry[Any] = Entry("rollout backend", "b", Good, Owner("tests"))
    assert [name for name, _ in rollout_backends.checks(Selected(entry))] == list(CHECKS)
