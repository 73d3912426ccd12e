"""Responses in several turns: the policy writes, the environment answers, until one of them or a limit ends it.

Each episode is a coroutine: its next turn is generated as soon as the environment has answered its last one, whatever
the others do.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from types import UnionType
from typing import Any

from corerl.batch.rollouts import Episode, Rollouts
from corerl.contracts.config import TrainConfig
from corerl.contracts.rollout_backends import Completion, GenerationRequest, SamplingParams
from corerl.data.prompts import Prompt
from corerl.data.report import Location
from corerl.data.schema import Message, check_messages
from corerl.errors import DataError, RunError
from corerl.rollout.request_queue import RequestQueue
from corerl.seeding import episode_seed
from corerl.terminal.notices import say
from corerl_envs import EndingEnvironment, Environment, Start, Task, Turn
from corerl_envs.calls import Answer, Calls
from corerl_envs.turns import TurnTokenizer


class EpisodePlayer:
    """Plays episodes.

    Args:
        queue: generates the policy's turns.
        turns: encodes what the environment says.
    """

    def __init__(
        self, config: TrainConfig, environment: Environment, queue: RequestQueue, turns: TurnTokenizer
    ) -> None:
        limits = config.rollout.multi_turn
        self._limits, self._max_prompt_length = limits, config.data.max_prompt_length
        self._environment, self._queue, self._turns = environment, queue, turns
        self._calls = Calls(num_workers=limits.num_workers, timeout=limits.tool_timeout)

    def close(self) -> None:
        """Close the environment; one that cannot be closed in its time is left behind."""
        answer = self._calls.wait(self._environment.close)
        self._calls.close()
        if answer.error is not None:
            say(f"the environment's close() {answer.error}")

    async def play(
        self,
        prompt: Prompt,
        seed: int,
        sampling: SamplingParams,
        name: str,
        sample: int,
        on_begin: Callable[[], None] = lambda: None,
    ) -> Rollouts:
        """One episode, which is one response of at most ``sampling.max_tokens``.

        Args:
            seed: of the group.
            name: of the group, for the ids of requests.
            sample: the episode's number in its group.
            on_begin: called just before each request is sent.

        Raises:
            RunError: the environment breaks its contract, or its messages do not fit the chat template or
                ``data.max_prompt_length``.
        """
        episode = _Episode(prompt, seed, sample, f"{name}.{sample}", on_begin)
        try:
            try:
                await self._begin(episode)
                for number in range(self._limits.max_assistant_turns):
                    if episode.going:
                        await self._generate(episode, number, sampling)
                    if episode.going:
                        await self._answer(episode, number, sampling.max_tokens)
            finally:
                await self._end(episode)
        except DataError as error:
            raise RunError(str(error)) from error
        completion, text = episode.completion(self._turns.end_token_id), "\n".join(episode.texts)
        return Rollouts([episode.prompt], [completion], [text], [0], [episode.record()])

    async def _end(self, episode: "_Episode") -> None:
        """Let the environment end what it has begun."""
        if episode.begun and isinstance(self._environment, EndingEnvironment):
            answer = await self._calls.call(self._environment.end, episode.state)
            episode.add(episode.take(answer, float | int | None, "end") or 0.0, "end")

    async def _begin(self, episode: "_Episode") -> None:
        prompt = episode.prompt
        task = Task(prompt.messages, prompt.ground_truth, prompt.data_source, prompt.extra_info)
        answer = await self._calls.call(self._environment.reset, task, episode.seed)
        start = episode.take(answer, Start, "reset")
        if start is None:
            return
        episode.state, episode.begun = start.state, True
        if start.messages is not None:
            messages = self._messages(start.messages, "reset")
            ids = self._turns.prompt(messages)
            if len(ids) > self._max_prompt_length:
                raise RunError(
                    f"the environment began an episode with {len(ids)} tokens, more than data.max_prompt_length = "
                    f"{self._max_prompt_length}: raise it, or shorten the text of reset()"
                )
            episode.prompt = dataclasses.replace(prompt, messages=messages, token_ids=ids)

    async def _generate(self, episode: "_Episode", number: int, sampling: SamplingParams) -> None:
        """Turn ``number`` of the policy."""
        longest = self._limits.max_turn_length or sampling.max_tokens
        [turn] = await self._queue.complete(
            GenerationRequest(
                f"{episode.name}-{number}",
                [*episode.prompt.token_ids, *episode.token_ids],
                dataclasses.replace(
                    sampling,
                    n=1,
                    seed=episode_seed(episode.seed, episode.sample, number),
                    max_tokens=min(longest, sampling.max_tokens - len(episode.token_ids)),
                ),
                episode.prompt.media,
                session=episode.name,
            ),
            episode.on_begin,
        )
        [text] = self._turns.text([turn.token_ids])
        episode.write(turn, text)

    async def _answer(self, episode: "_Episode", number: int, max_tokens: int) -> None:
        """The environment's answer to turn ``number``."""
        answer = await self._calls.call(self._environment.step, episode.state, episode.texts[-1])
        turn = episode.take(answer, Turn, "step")
        if turn is None:
            return
        episode.count(turn)
        if turn.done or number + 1 == self._limits.max_assistant_turns:
            episode.going = False
            return
        messages = self._messages(turn.messages, "step")
        ids = self._turns.between(episode.history(), messages, episode.token_ids[-1])
        if len(episode.token_ids) + len(ids) < max_tokens:
            episode.read(messages, ids)
        else:
            episode.going, episode.finish_reason = False, "length"

    def _messages(self, messages: Sequence[Mapping[str, Any]], method: str) -> list[Message]:
        """Checked, and shortened to ``max_tool_response_length`` characters each."""
        checked = check_messages(list(messages), Location(f"the environment's {method}()", 0), "messages")
        most = self._limits.max_tool_response_length if method == "step" else None
        return [{**message, "content": shorten(message["content"], most)} for message in checked]


@dataclasses.dataclass
class _Episode:
    """One episode on its way; the environment's tokens are False in ``mask``."""

    prompt: Prompt
    seed: int
    sample: int
    name: str
    on_begin: Callable[[], None]
    state: Any = None
    begun: bool = False
    going: bool = True
    finish_reason: Any = "stop"
    token_ids: list[int] = dataclasses.field(default_factory=list)
    log_probs: list[float] = dataclasses.field(default_factory=list)
    mask: list[bool] = dataclasses.field(default_factory=list)
    messages: list[Message] = dataclasses.field(default_factory=list)
    texts: list[str] = dataclasses.field(default_factory=list)
    versions: list[tuple[int, int]] = dataclasses.field(default_factory=list)
    """(first token, version of the weights) of each run of tokens"""
    reward: float = 0.0
    tool_calls: int = 0
    tool_errors: int = 0
    tool_seconds: float = 0.0
    error: str | None = None

    def take(self, answer: Answer, kind: type | UnionType, method: str) -> Any:
        """The value of a call, or None when it has none: then the episode is over."""
        self.tool_seconds += answer.seconds
        if answer.error is not None:
            self.going, self.error = False, self.error or f"the environment's {method}() {answer.error}"
            return None
        if not isinstance(answer.value, kind):
            wanted = getattr(kind, "__name__", kind)
            raise RunError(
                f"the environment's {method}() returned {type(answer.value).__name__}, not {wanted} (corerl_envs)"
            )
        return answer.value

    def write(self, turn: Completion, text: str) -> None:
        """The policy's turn."""
        for start, _, version in turn.version_runs():
            if not self.versions or self.versions[-1][1] != version:
                self.versions.append((len(self.token_ids) + start, version))
        self.token_ids += turn.token_ids
        self.log_probs += turn.log_probs
        self.mask += [True] * len(turn.token_ids)
        self.texts.append(text)
        self.finish_reason = turn.finish_reason
        if turn.finish_reason == "abort":
            self.going, self.error = False, "its generation was aborted"

    def add(self, reward: float, method: str) -> None:
        if not math.isfinite(reward):
            raise RunError(f"the environment's {method}() returned the reward {reward}: a reward must be finite")
        self.reward += reward

    def count(self, turn: Turn) -> None:
        self.add(turn.reward, "step")
        self.tool_calls += turn.tool_calls
        self.tool_errors += turn.tool_errors

    def history(self) -> list[Message]:
        """The messages before the policy's last turn."""
        return [*self.prompt.messages, *self.messages]

    def read(self, messages: Sequence[Message], ids: Sequence[int]) -> None:
        """What the environment appends."""
        self.messages += [{"role": "assistant", "content": self.texts[-1]}, *messages]
        self.token_ids += ids
        self.log_probs += [0.0] * len(ids)
        self.mask += [False] * len(ids)

    def completion(self, end_token_id: int) -> Completion:
        """All turns as one; an episode that never began is one token that nobody wrote."""
        if not self.token_ids:
            self.token_ids, self.log_probs, self.mask = [end_token_id], [0.0], [False]
        (_, version), *updates = self.versions or [(0, 0)]
        return Completion(self.token_ids, self.log_probs, self.finish_reason, version, tuple(updates))

    def record(self) -> Episode:
        last = [{"role": "assistant", "content": text} for text in self.texts[-1:]]
        return Episode(
            response_mask=self.mask,
            messages=[*self.messages, *last],
            turns=len(self.texts),
            reward=self.reward,
            tool_calls=self.tool_calls,
            tool_errors=self.tool_errors,
            tool_seconds=self.tool_seconds,
            error=self.error,
        )


def episode_metrics(episodes: Sequence[Episode]) -> dict[str, float]:
    """``env/*``: means over episodes, failed ones included; nothing where there are none."""
    if not episodes:
        return {}
    count, calls = len(episodes), sum(episode.tool_calls for episode in episodes)
    turns = [episode.turns for episode in episodes]
    seconds = [episode.tool_seconds for episode in episodes]
    tokens = sum(episode.response_mask.count(False) for episode in episodes)
    return {
        "env/turns/mean": sum(turns) / count,
        "env/turns/max": float(max(turns)),
        "env/reward/mean": sum(episode.reward for episode in episodes) / count,
        "env/tool_calls/mean": calls / count,
        "env/tool_errors/ratio": sum(episode.tool_errors for episode in episodes) / max(1, calls),
        "env/tool_seconds/mean": sum(seconds) / count,
        "env/tool_seconds/max": max(seconds),
        "env/tokens/mean": tokens / count,
        "env/failed/ratio": sum(episode.error is not None for episode in episodes) / count,
    }


def shorten(text: str, most: int | None) -> str:
    """``text`` without its middle, where it is longer than ``most`` characters.

    >>> shorten("0123456789", 7)
    '012…789'
    """
    if most is None or len(text) <= most:
        return text
    head = most // 2
    return f"{text[:head]}…{text[len(text) - (most - 1 - head) :]}"
