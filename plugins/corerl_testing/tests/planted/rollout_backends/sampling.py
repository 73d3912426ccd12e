"""Faults in sampled tokens and their log-probs."""

import functools
import itertools
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from corerl.contracts.config import ModelConfig, RolloutConfig
from corerl.contracts.rollout_backends import Completion, GenerationRequest
from corerl_testing.tiny_model import END, reference, response_log_probs, tiny_model
from planted.rollout_backends.wrapped import Backend, planted, sampled

the_model = functools.cache(lambda: reference(tiny_model()))


@torch.no_grad()
def _log_probs_at(temperature: float, request: GenerationRequest, completion: Completion) -> Completion:
    """The completion with the log-probs that the tiny model gives at a temperature."""
    tokens = list(completion.token_ids)
    log_probs = response_log_probs(the_model(), list(request.prompt_ids), tokens, temperature)
    return replace(completion, log_probs=log_probs.gather(1, torch.tensor(tokens)[:, None])[:, 0].tolist())


class Echo(Backend):
    """the response begins with the prompt"""

    def change(self, request: GenerationRequest, completion: Completion) -> Completion:
        return replace(
            completion,
            token_ids=[*request.prompt_ids, *completion.token_ids],
            log_probs=[0.0] * len(request.prompt_ids) + list(completion.log_probs),
        )


class IgnoresN(Backend):
    """n is not looked at"""

    def choose(self, completions: list[Completion]) -> list[Completion]:
        return completions[:1]


class OffByATenth(Backend):
    """log-probs are too low by a constant"""

    def change(self, request: GenerationRequest, completion: Completion) -> Completion:
        return replace(completion, log_probs=[each - 0.1 for each in completion.log_probs])


class Bf16(Backend):
    """the model is loaded in bf16 for every model.dtype"""

    def __init__(self, model: ModelConfig, rollout: RolloutConfig, *, device: str) -> None:
        super().__init__(replace(model, dtype="bf16"), rollout, device=device)


class AfterTopP(Backend):
    """log-probs are those among the tokens that top-p keeps"""

    def change(self, request: GenerationRequest, completion: Completion) -> Completion:
        kept = torch.tensor(request.sampling.top_p).log().item()
        return replace(completion, log_probs=[min(0.0, each - kept) for each in completion.log_probs])


class WithoutTemperature(Backend):
    """log-probs are those of the logits as they are"""

    def change(self, request: GenerationRequest, completion: Completion) -> Completion:
        return _log_probs_at(1.0, request, completion)


class SamplesAtOne(WithoutTemperature):
    """tokens are drawn at temperature 1"""

    def sampling(self, request: GenerationRequest) -> dict[str, Any]:
        return {"temperature": 1.0}

    def change(self, request: GenerationRequest, completion: Completion) -> Completion:
        return super().change(sampled(request, temperature=1.0), completion)


class LongOnesAtOne(Backend):
    """of a request for more than one token all are drawn at temperature 1, as a decoding step without it would do"""

    def sampling(self, request: GenerationRequest) -> dict[str, Any]:
        return {"temperature": 1.0} if request.sampling.max_tokens > 1 and request.sampling.temperature else {}

    def change(self, request: GenerationRequest, completion: Completion) -> Completion:
        return _log_probs_at(request.sampling.temperature, request, completion)


class NumpysNumbers(Backend):
    """tokens are numpy's integers, which JSON does not take"""

    def change(self, request: GenerationRequest, completion: Completion) -> Completion:
        return replace(completion, token_ids=list(np.array(completion.token_ids)))


class IgnoresTopP(Backend):
    """top-p and top-k are not looked at"""

    def sampling(self, request: GenerationRequest) -> dict[str, Any]:
        return {"top_p": 1.0, "top_k": -1}


class IgnoresMinP(Backend):
    """min-p is not looked at"""

    def sampling(self, request: GenerationRequest) -> dict[str, Any]:
        return {"min_p": 0.0}


class HalfOfTopK(Backend):
    """only half of the top-k tokens are kept"""

    def sampling(self, request: GenerationRequest) -> dict[str, Any]:
        return {"top_k": max(1, request.sampling.top_k // 2)} if request.sampling.top_k > 0 else {}


class NarrowTopP(Backend):
    """top-p keeps half of its probability"""

    def sampling(self, request: GenerationRequest) -> dict[str, Any]:
        return {"top_p": request.sampling.top_p / 2} if request.sampling.top_p < 1 else {}


class NeverGreedy(Backend):
    """temperature 0 samples"""

    def sampling(self, request: GenerationRequest) -> dict[str, Any]:
        return {"temperature": request.sampling.temperature or 1.0}


class OneSample(Backend):
    """all samples of a request are copies of the first"""

    def choose(self, completions: list[Completion]) -> list[Completion]:
        return completions[:1] * len(completions)


class RepeatsAfterSixteen(Backend):
    """the seeds of samples repeat after sixteen"""

    def choose(self, completions: list[Completion]) -> list[Completion]:
        return [completions[number % 16] for number in range(len(completions))]


class SeedByNumberOfSamples(Backend):
    """the seed of a sample depends on the number of samples"""

    def sampling(self, request: GenerationRequest) -> dict[str, Any]:
        return {"seed": request.sampling.seed + 1000 * request.sampling.n}


class SeedByPlace(Backend):
    """the seed of a sample depends on the position of its request in the call"""

    def ask(self, requests: Sequence[GenerationRequest]) -> list[GenerationRequest]:
        return [sampled(each, seed=each.sampling.seed + 1000 * place) for place, each in enumerate(requests)]


class SeedByObject(Backend):
    """each object mixes a number of its own into the seeds"""

    def __init__(self, model: ModelConfig, rollout: RolloutConfig, *, device: str) -> None:
        super().__init__(model, rollout, device=device)
        self.own = int.from_bytes(os.urandom(4))

    def sampling(self, request: GenerationRequest) -> dict[str, Any]:
        return {"seed": request.sampling.seed ^ self.own}


class IgnoresSeed(Backend):
    """every request gets the next seed of a counter"""

    counter = itertools.count()

    def sampling(self, request: GenerationRequest) -> dict[str, Any]:
        return {"seed": next(self.counter)}


class OneSeed(Backend):
    """the seed is always 0"""

    def sampling(self, request: GenerationRequest) -> dict[str, Any]:
        return {"seed": 0}


class CutsStopToken(Backend):
    """the stop token is not part of the response"""

    def change(self, request: GenerationRequest, completion: Completion) -> Completion:
        if completion.finish_reason != "stop":
            return completion
        return replace(completion, token_ids=completion.token_ids[:-1], log_probs=completion.log_probs[:-1])


class IgnoresStopTokens(Backend):
    """stop tokens do not stop"""

    def sampling(self, request: GenerationRequest) -> dict[str, Any]:
        return {"stop_token_ids": ()}


class NoStopForOneSample(Backend):
    """stop tokens do not stop a request with one sample"""

    def sampling(self, request: GenerationRequest) -> dict[str, Any]:
        return {"stop_token_ids": ()} if request.sampling.n == 1 else {}


class StopsFromTheSecond(Backend):
    """a first token that is a stop token is dropped, as of a response that must not be empty"""

    def change(self, request: GenerationRequest, completion: Completion) -> Completion:
        if completion.finish_reason != "stop" or len(completion.token_ids) > 1:
            return completion
        return replace(completion, token_ids=(), log_probs=())


class LengthBeforeStop(Backend):
    """a stop token that is also the last token allowed counts as length"""

    def change(self, request: GenerationRequest, completion: Completion) -> Completion:
        full = len(completion.token_ids) == request.sampling.max_tokens
        return replace(completion, finish_reason="length" if full else completion.finish_reason)


class StopsAtTheModelsEnd(Backend):
    """the model's own end of a turn stops too"""

    def sampling(self, request: GenerationRequest) -> dict[str, Any]:
        return {"stop_token_ids": (*request.sampling.stop_token_ids, END)}


class StopsAnyway(Backend):
    """ignore_eos is not looked at"""

    def sampling(self, request: GenerationRequest) -> dict[str, Any]:
        return {"ignore_eos": False}


class OneLimit(Backend):
    """all requests share the limit of 5 tokens"""

    def sampling(self, request: GenerationRequest) -> dict[str, Any]:
        return {"max_tokens": min(5, request.sampling.max_tokens)}


FAULTS = [
    planted(Echo, "completions", "a response begins with the prompt"),
    planted(IgnoresN, "completions", "a request with n=3 gave 1 completions"),
    planted(OffByATenth, "log_probs", "log-probs at temperature 1 are up to 0.1 off"),
    planted(Bf16, "log_probs", "errors of this size are those of bf16 arithmetic, and fp32 was asked for"),
    planted(AfterTopP, "log_probs_before_top_p_and_top_k", "log-probs with top_p=0.6 are up to"),
    planted(WithoutTemperature, "log_probs_at_a_temperature", "log-probs at temperatures 0.5 and 2 are up to"),
    planted(SamplesAtOne, "samples_follow_the_softmax", "512 tokens drawn at temperature 0.5 have a mean log-prob of"),
    planted(
        LongOnesAtOne,
        "later_tokens_follow_the_softmax",
        "second and later tokens drawn at temperature 0.5 have log-probs",
    ),
    planted(NumpysNumbers, "completions", "token_ids must be Python's integers"),
    planted(IgnoresTopP, "top_p_and_top_k", "with {'top_k': 4} a token was drawn that"),
    planted(IgnoresMinP, "min_p", "with min_p=0.3 a token was drawn that is"),
    planted(HalfOfTopK, "samples_follow_what_is_kept", "512 tokens drawn with {'top_k': 5"),
    planted(NarrowTopP, "samples_follow_what_is_kept", "512 tokens drawn with {'top_p': 0.7"),
    planted(NeverGreedy, "greedy", "at temperature 0 a token was chosen that is not the most likely one"),
    planted(OneSample, "samples_differ", "hold only 1 different responses"),
    planted(
        RepeatsAfterSixteen,
        "samples_do_not_depend_on_their_number",
        "33 samples of one prompt hold only 16 different responses",
    ),
    planted(
        SeedByNumberOfSamples,
        "samples_do_not_depend_on_their_number",
        "the 16 samples of a request with n=16 and the first 16 of 33 have the same seed",
    ),
    planted(SeedByPlace, "alone_or_in_a_batch", "a request in a batch and in one of another order have the same"),
    planted(SeedByObject, "another_engine", "a request to one engine and the first to another have the same seed"),
    planted(IgnoresSeed, "seed", "the same seed, prompt and weights gave other tokens"),
    planted(OneSeed, "seed", "another seed gave the same tokens"),
    planted(CutsStopToken, "stop_tokens", "with the finish reason stop ends with the tokens ["),
    planted(IgnoresStopTokens, "stop_tokens", "a response goes on after a stop token"),
    planted(NoStopForOneSample, "stop_tokens", "a response goes on after a stop token"),
    planted(StopsFromTheSecond, "stop_token_first", "whose first token is a stop token has 0 tokens"),
    planted(LengthBeforeStop, "stop_token_first", "has 1 tokens and the finish reason length"),
    planted(StopsAtTheModelsEnd, "only_stop_tokens_stop", "without stop tokens a response ended after [258]"),
    planted(StopsAnyway, "ignore_eos", "with ignore_eos and max_tokens=9 ended after 1 tokens with 'stop'"),
    planted(OneLimit, "max_tokens", "with max_tokens (1, 17, 5, 30) ended with [(1, 'length'), (5, 'length')"),
]
