"""Responses in several turns: the policy writes, the environment answers, until one of them or a limit ends it.

Episodes advance in waves: the next turn of all that go on is generated in one call, so that the engine can share its
batch; then the environment answers all of them at a time.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import UnionType
from typing import Any

from corerl.batch.rollouts import Episode, Rollouts
from corerl.contracts.config import TrainConfig
from corerl.contracts.dispatch import in_order
from corerl.contracts.environments import EndingEnvironment, Environment, Start, Task, Turn
from corerl.contracts.rollout_backends import Completion, GenerationRequest, SamplingParams
from corerl.data.prompts import Prompt
from corerl.data.report import Location
from corerl.data.schema import Message, check_messages
from corerl.data.turns import TurnTokenizer
from corerl.errors import DataError, RunError
from corerl.seeding import episode_seed
from corerl.terminal.notices import say
from corerl.trainer.engine_restarts import Engines
from corerl.trainer.environment_calls import Answer, call_all
from corerl.trainer.rollout_worker import RolloutWorker


class EpisodePlayer:
    """Plays the episodes of a batch.

    Args:
        rollout: generates the policy's turns.
        turns: encodes what the environment says.
    """

    def __init__(
        self, config: TrainConfig, environment: Environment, rollout: RolloutWorker | Engines, turns: TurnTokenizer
    ) -> None:
        self._limits, self._max_prompt_length = config.rollout.multi_turn, config.data.max_prompt_length
        self._environment, self._rollout, self._turns = environment, rollout, turns

    def close(self) -> None:
        """Close the environment; one that cannot be closed in its time is left behind."""
        [answer] = self._call(self._environment.close, [()])
        if answer.error is not None:
            say(f"the environment's close() {answer.error}")

    def play(
        self, prompts: Sequence[Prompt], sampling: SamplingParams, seeds: Sequence[int], prefix: str
    ) -> Iterator[tuple[list[int], Rollouts]]:
        """``sampling.n`` episodes of each prompt, which are one response each of at most ``sampling.max_tokens``.

        Yields those that have ended, as they do, and their rows: ``n`` consecutive ones belong to a prompt.

        Raises:
            RunError: the environment breaks its contract, or its messages do not fit the chat template or
                ``data.max_prompt_length``.
        """
        episodes = [
            _Episode(prompt, seed, sample, f"{prefix}-{group}.{sample}")
            for group, (prompt, seed) in enumerate(zip(prompts, seeds, strict=True))
            for sample in range(sampling.n)
        ]
        going = dict(enumerate(episodes))
        try:
            self._begin(episodes)
            for number in range(self._limits.max_assistant_turns):
                yield from self._ended(going)
                if going:
                    self._generate(list(going.values()), number, sampling)
                    self._answer([episode for episode in going.values() if episode.going], number, sampling.max_tokens)
            yield from self._ended(going)
        except DataError as error:
            raise RunError(str(error)) from error
        finally:
            self._end(list(going.values()))

    def _ended(self, going: "dict[int, _Episode]") -> Iterator[tuple[list[int], Rollouts]]:
        """Take those that are over out of ``going``."""
        rows = [row for row, episode in going.items() if not episode.going]
        if not rows:
            return
        episodes = [going.pop(row) for row in rows]
        self._end(episodes)
        yield (
            rows,
            Rollouts(
                [episode.prompt for episode in episodes],
                [episode.completion(self._turns.end_token_id) for episode in episodes],
                ["\n".join(episode.texts) for episode in episodes],
                rows,
                [episode.record() for episode in episodes],
            ),
        )

    def _end(self, episodes: "Sequence[_Episode]") -> None:
        """Tell the environment."""
        if not isinstance(self._environment, EndingEnvironment):
            return
        begun = [episode for episode in episodes if episode.begun]
        answers = self._call(self._environment.end, [(episode.state,) for episode in begun])
        for episode, answer in zip(begun, answers, strict=True):
            episode.add(episode.take(answer, float | int | None, "end") or 0.0, "end")

    def _begin(self, episodes: "Sequence[_Episode]") -> None:
        prompts = [episode.prompt for episode in episodes]
        tasks = [Task(each.messages, each.ground_truth, each.data_source, each.extra_info) for each in prompts]
        given = [(task, episode.seed) for task, episode in zip(tasks, episodes, strict=True)]
        for episode, answer in zip(episodes, self._call(self._environment.reset, given), strict=True):
            start = episode.take(answer, Start, "reset")
            if start is None:
                continue
            episode.state, episode.begun = start.state, True
            if start.messages is not None:
                messages = self._messages(start.messages, "reset")
                ids = self._turns.prompt(messages)
                if len(ids) > self._max_prompt_length:
                    raise RunError(
                        f"the environment began an episode with {len(ids)} tokens, more than data.max_prompt_length = "
                        f"{self._max_prompt_length}: raise it, or shorten the text of reset()"
                    )
                episode.prompt = dataclasses.replace(episode.prompt, messages=messages, token_ids=ids)

    def _generate(self, episodes: "Sequence[_Episode]", number: int, sampling: SamplingParams) -> None:
        """Turn ``number`` of all episodes."""
        longest = self._limits.max_turn_length or sampling.max_tokens
        requests = [
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
            )
            for episode in episodes
        ]
        turns = [completion for [completion] in in_order(self._rollout.generate(requests))]
        for episode, turn, text in zip(
            episodes, turns, self._turns.text([turn.token_ids for turn in turns]), strict=True
        ):
            episode.write(turn, text)

    def _answer(self, episodes: "Sequence[_Episode]", number: int, max_tokens: int) -> None:
        """The environment's answers to turn ``number``."""
        given = [(episode.state, episode.texts[-1]) for episode in episodes]
        for episode, answer in zip(episodes, self._call(self._environment.step, given), strict=True):
            turn = episode.take(answer, Turn, "step")
            if turn is None:
                continue
            episode.count(turn)
            if turn.done or number + 1 == self._limits.max_assistant_turns:
                episode.going = False
                continue
            messages = self._messages(turn.messages, "step")
            ids = self._turns.between(episode.history(), messages, episode.token_ids[-1])
            if len(episode.token_ids) + len(ids) < max_tokens:
                episode.read(messages, ids)
            else:
                episode.going, episode.finish_reason = False, "length"

    def _call(self, method: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]) -> list[Answer]:
        limits = self._limits
        return call_all(method, arguments, num_workers=limits.num_workers, timeout=limits.tool_timeout)

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
    state: Any = None
    begun: bool = False
    going: bool = True
    finish_reason: Any = "stop"
    token_ids: list[int] = dataclasses.field(default_factory=list)
    log_probs: list[float] = dataclasses.field(default_factory=list)
    mask: list[bool] = dataclasses.field(default_factory=list)
    messages: list[Message] = dataclasses.field(default_factory=list)
    texts: list[str] = dataclasses.field(default_factory=list)
    weight_version: int | None = None
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
                f"the environment's {method}() returned {type(answer.value).__name__}, not {wanted} "
                "(corerl.contracts.environments)"
            )
        return answer.value

    def write(self, turn: Completion, text: str) -> None:
        """The policy's turn."""
        self.token_ids += turn.token_ids
        self.log_probs += turn.log_probs
        self.mask += [True] * len(turn.token_ids)
        self.texts.append(text)
        self.finish_reason = turn.finish_reason
        if self.weight_version is None:
            self.weight_version = turn.weight_version
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
        return Completion(self.token_ids, self.log_probs, self.finish_reason, self.weight_version or 0)

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
