"""Samples: generation by the rollout backend with a client's weights, and scores by the trained model."""

import dataclasses
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from corerl.contracts.rollout_backends import Completion, GenerationRequest, OnFinished, SamplingParams
from corerl.contracts.tokenizers import ChatTokenizer
from corerl.rollout.event_loop import EventLoop
from corerl_tinker.training.clients import Clients, State
from corerl_tinker.training.scores import Scores


@dataclass(frozen=True, eq=False)
class SampleRequest:
    """A prompt, its sampling and the wanted scores.

    Attributes:
        stop: texts that end a sample; the token that completes one is its last.
        prompt_log_probs: how many of the last tokens of the prompt are scored; 0: none.
        top: likeliest tokens at each scored token of the prompt.
        sample_top: the same, at each sampled token.
        targets: (prompt - 1, K) int64 tokens to score, -1 for none; row i is at the token i + 1 of the prompt.
        draws: tokens to draw at each token of the prompt after the first.
    """

    prompt: Sequence[int]
    sampling: SamplingParams
    stop: tuple[str, ...] = ()
    prompt_log_probs: int = 0
    top: int = 0
    sample_top: int = 0
    targets: NDArray[np.int64] | None = None
    draws: int = 0

    @property
    def scores_prompt(self) -> bool:
        return bool(self.prompt_log_probs or self.top or self.draws or self.targets is not None)


@dataclass(eq=False)
class SampleResult:
    """Samples and scores; of the prompt's T tokens, arrays of scores are (T - 1, ...), from the second on."""

    samples: list[Completion]
    scores: dict[str, NDArray[Any]] = field(default_factory=dict)
    sample_scores: list[dict[str, NDArray[Any]]] = field(default_factory=list)


class Rollout(Protocol):
    """The rollout worker, or a group of them."""

    async def generate(self, requests: Sequence[GenerationRequest], on_finished: OnFinished) -> None: ...


class Sender(Protocol):
    """Sends weights to the rollout workers: a runtime."""

    def send_weights(self, actor: Any, rollout: Any, version: int, *, verify: bool = False) -> None: ...


class Sampler:
    """Generates with the weights of one state at a time; all methods run in the trainer's thread."""

    def __init__(self, trainer: Clients, runtime: Sender, rollout: Rollout, tokenizer: ChatTokenizer) -> None:
        self._trainer, self._runtime, self._rollout, self._tokenizer = trainer, runtime, rollout, tokenizer
        self._loop = EventLoop(background=False)
        self._versions, self._names = itertools.count(1), itertools.count()
        self._sent: State | None = None

    def close(self) -> None:
        self._loop.close()

    def sample(self, state: State, requests: Sequence[SampleRequest]) -> list[SampleResult]:
        """Samples of each request, generated together."""
        if self._sent is not state:
            self._sent = None
            with self._trainer.sending(state) as source:
                self._runtime.send_weights(source, self._rollout, next(self._versions))
            self._sent = state
        made: dict[int, list[Completion]] = {}
        asked = [GenerationRequest(f"tinker-{next(self._names)}", each.prompt, each.sampling) for each in requests]
        self._loop.run(self._rollout.generate(asked, made.__setitem__))
        results = [
            SampleResult([self._ended(sample, request.stop) for sample in made[number]])
            for number, request in enumerate(requests)
        ]
        for request, result in zip(requests, results, strict=True):
            self._score(state, request, result)
        return results

    def _ended(self, sample: Completion, stop: Sequence[str]) -> Completion:
        """The sample up to the token that completes the first text of ``stop``."""
        if not stop or not any(text in self._text(sample.token_ids) for text in stop):
            return sample
        ids = list(sample.token_ids)
        first = next(count for count in range(1, len(ids) + 1) if any(text in self._text(ids[:count]) for text in stop))
        return dataclasses.replace(
            sample, token_ids=ids[:first], log_probs=list(sample.log_probs)[:first], finish_reason="stop"
        )

    def _text(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode([list(ids)], skip_special_tokens=False)[0]

    def _score(self, state: State, request: SampleRequest, result: SampleResult) -> None:
        if request.scores_prompt:
            tokens = list(request.prompt)
            is_one = len(tokens) == 1  # no token has a context: any second one gives arrays, which are cut to nothing
            targets = np.zeros((1, request.targets.shape[1]), np.int64) if request.targets is not None else None
            asked = dataclasses.replace(request, targets=targets) if is_one else request
            found = self._scores(state, asked, tokens * 2 if is_one else tokens)
            found = {name: value[: len(tokens) - 1] for name, value in found.items()}
            result.scores = {name: value.numpy() for name, value in found.items()}
        if request.sample_top:
            for sample in result.samples:
                whole = [*request.prompt, *sample.token_ids]
                alone = dataclasses.replace(request, top=request.sample_top, targets=None, draws=0)
                found = self._scores(state, alone, whole)
                last = {name: value[len(request.prompt) - 1 :].numpy() for name, value in found.items()}
                result.sample_scores.append(last)

    def _scores(self, state: State, request: SampleRequest, tokens: list[int]) -> dict[str, Tensor]:
        """Name -> (tokens - 1, ...) at the tokens from the second on."""
        targets = torch.tensor(tokens[1:])[:, None]
        if request.targets is not None:
            targets = torch.cat([targets, torch.from_numpy(request.targets).clamp(min=0)], dim=1)
        scores = Scores(
            targets[None],
            request.top,
            request.draws,
            torch.tensor([request.sampling.temperature]),
            (torch.Generator().manual_seed(request.sampling.seed),),
        )
        found = self._trainer.forward(state, [tokens[:-1]], scores)
        return {name: value[0, : len(tokens) - 1].cpu() for name, value in found.items()}
