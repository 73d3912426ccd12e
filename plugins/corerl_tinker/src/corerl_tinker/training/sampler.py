"""Samples: generation by the rollout backend with a client's weights, and scores by the trained model."""

import contextlib
import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from corerl.contracts.rollout_backends import Completion, GenerationRequest, OnFinished, SamplingParams
from corerl.contracts.tokenizers import ChatTokenizer
from corerl.errors import DeadlineError, EngineDeadError
from corerl.rollout.event_loop import EventLoop
from corerl_gateway.notices import say_once
from corerl_tinker.training.clients import Clients, State
from corerl_tinker.training.engine_adapters import EngineAdapters, rounds
from corerl_tinker.training.scores import Scores


@dataclass(frozen=True, eq=False)
class SampleRequest:
    """A prompt, its sampling and the wanted scores.

    Attributes:
        prompt_log_probs: how many of the last tokens of the prompt are scored; 0: none.
        top: likeliest tokens at each scored token of the prompt.
        sample_top: the same, at each sampled token.
        targets: (prompt - 1, K) int64 tokens to score, -1 for none; row i is at the token i + 1 of the prompt.
        draws: tokens to draw at each token of the prompt after the first.
    """

    prompt: Sequence[int]
    sampling: SamplingParams
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


@dataclass(frozen=True, eq=False)
class Group:
    """Requests of one session with the same weights."""

    state: State
    requests: Sequence[SampleRequest]


class Rollout(Protocol):
    """The rollout worker, or a group of them."""

    async def generate(self, requests: Sequence[GenerationRequest], on_finished: OnFinished) -> None: ...

    def restart(self) -> None: ...


class Sender(Protocol):
    """Sends weights to the rollout workers: a runtime."""

    def send_weights(self, actor: Any, rollout: Any, version: int, *, verify: bool = False) -> None: ...


class Sampler:
    """Generates with the weights of several states at a time; all methods run in the trainer's thread.

    Args:
        adapters: number of adapters that the engine holds at a time; 1 for an engine that gets all weights.
    """

    def __init__(
        self, trainer: Clients, runtime: Sender, rollout: Rollout, tokenizer: ChatTokenizer, adapters: int = 1
    ) -> None:
        self._trainer, self._runtime, self._rollout, self._tokenizer = trainer, runtime, rollout, tokenizer
        self._loop = EventLoop(background=False)
        self._names, self._held = itertools.count(), EngineAdapters(adapters)

    def close(self) -> None:
        self._loop.close()

    def sample(self, groups: Sequence[Group]) -> list[list[SampleResult] | Exception]:
        """Samples of each group's requests, or the error of a group, which ends no other.

        Groups of different states are generated together, as many as the engine holds adapters. Two groups of one state
        are not: a backend may compute rows of one adapter in one batch, and the last bits of a group's log-probs would
        depend on the other.
        """
        found: list[list[SampleResult] | Exception] = [[] for _ in groups]
        for places in rounds([each.state.number for each in groups], self._held.count):
            made = self._generated([groups[place] for place in places])
            for place, samples in zip(places, made, strict=True):
                found[place] = samples if isinstance(samples, Exception) else self._results(groups[place], samples)
        return found

    def _generated(self, groups: Sequence[Group]) -> list[list[list[Completion]] | Exception]:
        """The samples of each request of groups with different states; after an error, each group is tried alone."""
        asked, numbers = list[GenerationRequest](), list[range]()
        made: dict[int, list[Completion]] = {}
        try:
            for group, adapter in zip(groups, self._send(groups), strict=True):
                numbers.append(range(len(asked), len(asked) + len(group.requests)))
                asked += [
                    GenerationRequest(f"tinker-{next(self._names)}", each.prompt, each.sampling, adapter=adapter)
                    for each in group.requests
                ]
            self._loop.run(self._rollout.generate(asked, made.__setitem__))
        except Exception as error:
            if isinstance(error, EngineDeadError):  # its requests fail, and later ones find a new engine
                self._held.forget()
                with contextlib.suppress(EngineDeadError):
                    self._rollout.restart()
            elif len(groups) > 1 and not isinstance(error, DeadlineError):
                return [each for group in groups for each in self._generated([group])]
            if len(numbers) < len(groups):
                return [error] * len(groups)
            whole = [all(number in made for number in own) for own in numbers]
            return [self._of(made, own) if is_whole else error for own, is_whole in zip(numbers, whole, strict=True)]
        return [self._of(made, own) for own in numbers]

    def _send(self, groups: Sequence[Group]) -> list[int]:
        """The adapter of each group in the engine, which gets the missing ones."""
        placed = self._held.place(each.state.number for each in groups)
        try:
            for group in groups:
                _, version = placed[group.state.number]
                if version is not None:
                    self._note(group.state)
                    with self._trainer.sending(group.state) as source:
                        self._runtime.send_weights(source, self._rollout, version)
        except BaseException:  # the engine generates nothing until a complete update
            self._held.forget()
            raise
        return [placed[group.state.number][0] for group in groups]

    def _note(self, state: State) -> None:
        if state.sent == self._held.since and self._held.count > 1:
            say_once(
                f"more weights are sampled in turn than the engine holds adapters (rollout.adapters is "
                f"{self._held.count}): those that were replaced are sent again"
            )
        state.sent = self._held.since

    @staticmethod
    def _of(made: Mapping[int, list[Completion]], own: range) -> list[list[Completion]]:
        return [made[number] for number in own]

    def _results(self, group: Group, samples: Sequence[list[Completion]]) -> list[SampleResult] | Exception:
        results = [
            SampleResult([sample.until(request.sampling.stop, self._tokenizer.decode) for sample in own])
            for request, own in zip(group.requests, samples, strict=True)
        ]
        try:
            for request, result in zip(group.requests, results, strict=True):
                self._score(group.state, request, result)
        except Exception as error:
            return error
        return results

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
