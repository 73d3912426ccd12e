"""The requests of one episode become one row: token ids, mask, log-probs, versions of the weights."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from corerl.batch.rollouts import Episode, Rollouts
from corerl.contracts.agents import AgentResult, Sampled
from corerl.contracts.rollout_backends import Completion, GenerationRequest
from corerl.contracts.tokenizers import ChatTokenizer
from corerl.errors import RunError
from corerl.rollout.groups import Group
from corerl.rollout.request_queue import RequestQueue
from corerl.seeding import episode_seed


class Recorder:
    """The policy, for one episode (:class:`corerl.contracts.agents.Model`), and its tokens so far.

    Args:
        sample: the episode's number in its group, whose sampling is that of the whole response.

    Attributes:
        failure: of a request; the agent cannot hide it.
    """

    def __init__(
        self, queue: RequestQueue, tokenizer: ChatTokenizer, group: Group, sample: int, max_prompt_length: int
    ) -> None:
        self.tokenizer = tokenizer
        self.failure: Exception | None = None
        self._queue, self._group, self._sample, self._max_prompt_length = queue, group, sample, max_prompt_length
        self._prompt = group.prompt
        self._token_ids: list[int] = []
        self._log_probs: list[float] = []
        self._mask: list[bool] = []
        """which tokens the policy wrote"""
        self._texts: list[str] = []
        """the policy's turns"""
        self._versions: list[tuple[int, int]] = []
        """(first token, version of the weights) of each run of tokens"""
        self._finish_reason: Any = "stop"
        self._requests = 0
        self._is_busy = False

    async def generate(self, token_ids: Sequence[int], *, max_tokens: int | None = None) -> Sampled:
        """See :meth:`corerl.contracts.agents.Model.generate`."""
        if self._is_busy:
            self.failure = RunError("an agent sent a request before the last one was answered: await each request")
            raise self.failure
        self._is_busy = True
        try:
            return await self._generate(list(token_ids), max_tokens)
        except Exception as error:
            self.failure = self.failure or error
            raise
        finally:
            self._is_busy = False

    async def _generate(self, token_ids: list[int], max_tokens: int | None) -> Sampled:
        read = self._appended(token_ids)
        group, name = self._group, f"{self._group.name}.{self._sample}"
        room = group.sampling.max_tokens - len(self._token_ids) - len(read)
        if room < 1:
            self._finish_reason = "length"
            return Sampled((), "", "length")
        sampling = dataclasses.replace(
            group.sampling,
            n=1,
            seed=episode_seed(group.seed, self._sample, self._requests),
            max_tokens=min(room, max_tokens or room),
        )
        request = GenerationRequest(f"{name}-{self._requests}", token_ids, sampling, self._prompt.media, session=name)
        self._requests += 1
        [turn] = await self._queue.complete(request, group.on_begin)
        [text] = self.tokenizer.decode([turn.token_ids])
        self._record(read, turn, text)
        return Sampled(turn.token_ids, text, turn.finish_reason, turn.log_probs)

    def _appended(self, token_ids: list[int]) -> list[int]:
        """The tokens of a request behind the recorded ones; those of a first request are the prompt.

        Raises:
            RunError: the request does not continue the recorded tokens, or the prompt is too long.
        """
        if self._texts:
            known = [*self._prompt.token_ids, *self._token_ids]
            if token_ids[: len(known)] == known:
                return token_ids[len(known) :]
            pairs = enumerate(zip(known, token_ids, strict=False))
            same = next((place for place, (ours, theirs) in pairs if ours != theirs), len(token_ids))
            raise RunError(
                f"request {self._requests} of an episode leaves the {len(known)} tokens of the requests before at "
                f"token {same}: begin it with the last request's tokens and those that were sampled"
            )
        if token_ids != list(self._prompt.token_ids):
            if len(token_ids) > self._max_prompt_length:
                raise RunError(
                    f"an agent began an episode with {len(token_ids)} tokens, more than data.max_prompt_length = "
                    f"{self._max_prompt_length}: raise it, or shorten the first request"
                )
            self._prompt = dataclasses.replace(self._prompt, token_ids=tuple(token_ids))
        return []

    def _record(self, read: list[int], turn: Completion, text: str) -> None:
        self._extend(read, [0.0] * len(read), False)
        for start, _, version in turn.version_runs():
            if not self._versions or self._versions[-1][1] != version:
                self._versions.append((len(self._token_ids) + start, version))
        self._extend(turn.token_ids, turn.log_probs, True)
        self._texts.append(text)
        self._finish_reason = turn.finish_reason

    def _extend(self, token_ids: Sequence[int], log_probs: Sequence[float], sampled: bool) -> None:
        self._token_ids += token_ids
        self._log_probs += log_probs
        self._mask += [sampled] * len(token_ids)

    def rollouts(self, result: AgentResult) -> Rollouts:
        """All requests as one response; without a request it is one token that nobody wrote."""
        error = result.error
        if self._finish_reason == "abort":
            error = error or "its generation was aborted"
        if not self._token_ids:
            error = error or "the agent asked its model for nothing"
            self._extend(self.tokenizer.stop_token_ids[:1], [0.0], False)
        (_, version), *updates = self._versions or [(0, 0)]
        completion = Completion(self._token_ids, self._log_probs, self._finish_reason, version, tuple(updates))
        episode = Episode(
            response_mask=self._mask,
            messages=[*map(dict, result.messages)] or [{"role": "assistant", "content": text} for text in self._texts],
            turns=len(self._texts),
            reward=result.reward,
            components=dict(result.components),
            metrics=dict(result.metrics),
            error=error,
        )
        prompt = self._prompt
        if result.prompt is not None:
            prompt = dataclasses.replace(prompt, messages=[*map(dict, result.prompt)])
        return Rollouts([prompt], [completion], ["\n".join(self._texts)], [0], [episode])
