"""Faults that show with several requests, or with prompts that have something in common."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from corerl.contracts.config import ModelConfig, RolloutConfig
from corerl.contracts.rollout_backends import Completion, GenerationRequest, OnFinished
from corerl_testing.tiny_model import PAD, reference, response_log_probs, tiny_model
from planted.rollout_backends.wrapped import Backend, planted, sampled


class AlwaysAnswers(Backend):
    """no requests give one empty answer"""

    async def generate(
        self, requests: Sequence[GenerationRequest], on_finished: OnFinished | None = None
    ) -> list[list[Completion]]:
        return await super().generate(requests, on_finished) or [[]]


class GreedyForAll(Backend):
    """one greedy request makes its whole call greedy"""

    def ask(self, requests: Sequence[GenerationRequest]) -> list[GenerationRequest]:
        greedy = any(each.sampling.temperature == 0 for each in requests)
        return [sampled(each, temperature=0.0) if greedy else each for each in requests]

    @torch.no_grad()
    def change(self, request: GenerationRequest, completion: Completion) -> Completion:
        tokens, temperature = list(completion.token_ids), request.sampling.temperature
        log_probs = response_log_probs(reference(tiny_model()), list(request.prompt_ids), tokens, temperature)
        return replace(completion, log_probs=log_probs.gather(1, torch.tensor(tokens)[:, None])[:, 0].tolist())


class SampledForAll(Backend):
    """a greedy request beside sampled ones is sampled"""

    def ask(self, requests: Sequence[GenerationRequest]) -> list[GenerationRequest]:
        sampling = any(each.sampling.temperature > 0 for each in requests)
        own = [each.sampling.temperature or (1.0 if sampling else 0.0) for each in requests]
        return [sampled(each, temperature=temperature) for each, temperature in zip(requests, own, strict=True)]


class StopTokensOfAll(Backend):
    """the stop tokens of one request stop all of its call"""

    def ask(self, requests: Sequence[GenerationRequest]) -> list[GenerationRequest]:
        stops = tuple({token for each in requests for token in each.sampling.stop_token_ids})
        return [sampled(each, stop_token_ids=stops) for each in requests]


class TopKOfTheNarrowest(Backend):
    """the smallest top-k of a call holds for all of it"""

    def ask(self, requests: Sequence[GenerationRequest]) -> list[GenerationRequest]:
        narrow = min((each.sampling.top_k for each in requests if each.sampling.top_k > 0), default=-1)
        return [sampled(each, top_k=narrow) for each in requests]


class LimitOfTheLongest(Backend):
    """a call of several requests continues to the largest max_tokens for all"""

    def ask(self, requests: Sequence[GenerationRequest]) -> list[GenerationRequest]:
        longest = max((each.sampling.max_tokens for each in requests), default=1)
        return [sampled(each, max_tokens=longest) for each in requests]


class OneOfEqualSeeds(Backend):
    """requests of a call with the same prompt, seed and limits count as equal, even at different temperatures"""

    async def generate(
        self, requests: Sequence[GenerationRequest], on_finished: OnFinished | None = None
    ) -> list[list[Completion]]:
        outputs = await super().generate(requests, on_finished)
        first: dict[Any, int] = {}
        for place, each in enumerate(requests):
            own = each.sampling
            first.setdefault((tuple(each.prompt_ids), own.seed, own.n, own.max_tokens, own.top_k, own.top_p), place)
        return [
            outputs[first[tuple(each.prompt_ids), own.seed, own.n, own.max_tokens, own.top_k, own.top_p]]
            for each, own in ((each, each.sampling) for each in requests)
        ]


class ChangesPrompts(Backend):
    """a response is appended to the list that the request holds its prompt in"""

    async def generate(
        self, requests: Sequence[GenerationRequest], on_finished: OnFinished | None = None
    ) -> list[list[Completion]]:
        outputs = await super().generate(requests, on_finished)
        for each, completions in zip(requests, outputs, strict=True):
            each.prompt_ids.extend(completions[0].token_ids)  # type: ignore[attr-defined]
        return outputs


class AsTheyFinish(Backend):
    """results are in the order in which requests finish"""

    async def generate(
        self, requests: Sequence[GenerationRequest], on_finished: OnFinished | None = None
    ) -> list[list[Completion]]:
        finished: list[list[Completion]] = []
        await self.inner.generate(requests, lambda _, completions: finished.append(completions))
        return finished


class SwapsLateOnes(Backend):
    """of more than 256 requests the last two change places"""

    async def generate(
        self, requests: Sequence[GenerationRequest], on_finished: OnFinished | None = None
    ) -> list[list[Completion]]:
        outputs = await super().generate(requests, on_finished)
        return [*outputs[:-2], outputs[-1], outputs[-2]] if len(outputs) > 256 else outputs


class BeginsShortPrompts(Backend):
    """a prompt of one token gets a token before it, as if it had none to attend to"""

    def ask(self, requests: Sequence[GenerationRequest]) -> list[GenerationRequest]:
        return [
            replace(each, prompt_ids=[PAD, *each.prompt_ids]) if len(each.prompt_ids) == 1 else each
            for each in requests
        ]


class CutsLongPrompts(Backend):
    """of a prompt of more than 1024 tokens the beginning is dropped"""

    def ask(self, requests: Sequence[GenerationRequest]) -> list[GenerationRequest]:
        return [replace(each, prompt_ids=each.prompt_ids[-1024:]) for each in requests]


class KeepsRoomInTheContext(Backend):
    """a prompt that leaves less than a thirty-second of the context is cut"""

    def __init__(self, model: ModelConfig, rollout: RolloutConfig, *, device: str) -> None:
        super().__init__(model, rollout, device=device)
        context = self.inner._model.config.max_position_embeddings
        self.longest = context - context // 32

    def ask(self, requests: Sequence[GenerationRequest]) -> list[GenerationRequest]:
        return [replace(each, prompt_ids=each.prompt_ids[-self.longest :]) for each in requests]


class StalePrefixes(Backend):
    """the cache of long prompts is kept after the weights change"""

    def __init__(self, model: ModelConfig, rollout: RolloutConfig, *, device: str) -> None:
        super().__init__(model, rollout, device=device)
        self.seen: dict[tuple[int, ...], Any] = {}
        self.weights = reference(tiny_model())

    def update_weights(self, weights: Iterable[tuple[str, Tensor]], version: int, *, verify: bool = False) -> None:
        received = {name: tensor.clone() for name, tensor in weights}
        super().update_weights(received.items(), version, verify=verify)
        self.weights = reference(tiny_model())
        self.weights.load_state_dict(received, strict=False)

    @torch.no_grad()
    def change(self, request: GenerationRequest, completion: Completion) -> Completion:
        if len(request.prompt_ids) < 64:
            return completion
        weights = self.seen.setdefault(tuple(request.prompt_ids[:64]), self.weights)
        tokens = list(completion.token_ids)
        log_probs = response_log_probs(weights, list(request.prompt_ids), tokens, request.sampling.temperature)
        return replace(completion, log_probs=log_probs.gather(1, torch.tensor(tokens)[:, None])[:, 0].tolist())


class SessionsKeepSeeds(Backend):
    """a session goes on with the seed of its first request"""

    def __init__(self, model: ModelConfig, rollout: RolloutConfig, *, device: str) -> None:
        super().__init__(model, rollout, device=device)
        self.seeds: dict[str, int] = {}

    def sampling(self, request: GenerationRequest) -> dict[str, Any]:
        own = request.sampling.seed
        return {"seed": self.seeds.setdefault(request.session, own) if request.session else own}


class SessionsKeepPrefixes(Backend):
    """a session's later prompts begin with its first one, whatever they begin with"""

    def __init__(self, model: ModelConfig, rollout: RolloutConfig, *, device: str) -> None:
        super().__init__(model, rollout, device=device)
        self.prefixes: dict[str, list[int]] = {}

    def ask(self, requests: Sequence[GenerationRequest]) -> list[GenerationRequest]:
        return [self.continued(each) if each.session else each for each in requests]

    def continued(self, each: GenerationRequest) -> GenerationRequest:
        prefix = self.prefixes.setdefault(each.session, list(each.prompt_ids))
        return replace(each, prompt_ids=[*prefix, *each.prompt_ids[len(prefix) :]])


class SharesWeights(Backend):
    """two engines of a process have one version between them"""

    version = 0

    def update_weights(self, weights: Iterable[tuple[str, Tensor]], version: int, *, verify: bool = False) -> None:
        super().update_weights(weights, version, verify=verify)
        SharesWeights.version = version

    def change(self, request: GenerationRequest, completion: Completion) -> Completion:
        return replace(completion, weight_version=SharesWeights.version)


FAULTS = [
    planted(AlwaysAnswers, "no_requests", "no requests gave [[]]: it must be an empty list"),
    planted(GreedyForAll, "greedy_beside_sampled", "a request beside greedy ones and alone have the same seed"),
    planted(
        SampledForAll, "greedy_beside_sampled", "at temperature 0 a token was chosen that is not the most likely one"
    ),
    planted(StopTokensOfAll, "limits_of_each_request", "and [(9, 'length')] is right"),
    planted(TopKOfTheNarrowest, "limits_of_each_request", "without top_k and top_p drew from few tokens only"),
    planted(LimitOfTheLongest, "limits_of_each_request", "a request with max_tokens=9"),
    planted(OneOfEqualSeeds, "greedy_beside_sampled", "at temperature 0 a token was chosen that is not the most"),
    planted(ChangesPrompts, "completions", "generate() changed the prompt_ids of a request"),
    planted(AsTheyFinish, "many_requests", "the outer list must follow the requests"),
    planted(SwapsLateOnes, "many_requests", "the outer list must follow the requests"),
    planted(BeginsShortPrompts, "prompts_of_one_token", "log-probs after prompts of one token are up to"),
    planted(CutsLongPrompts, "long_prompt", "log-probs after a prompt of 1500 tokens are up to"),
    planted(
        KeepsRoomInTheContext,
        "another_engine",
        "after a prompt that nearly fills the context of 512 of an untied model are",
    ),
    planted(StalePrefixes, "common_beginnings", "that was generated from before, after a weight update, are up to"),
    planted(SessionsKeepSeeds, "sessions", "a request with a session and without have the same seed"),
    planted(SessionsKeepPrefixes, "sessions", "log-probs of sessions with one another's prefixes are up to"),
    planted(SharesWeights, "another_engine", "after a weight update of another engine the completions carry"),
]
