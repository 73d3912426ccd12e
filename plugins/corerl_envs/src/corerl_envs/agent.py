"""Agent ``environment``: the policy writes, the environment answers, until one of them or a limit ends the episode."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from types import UnionType
from typing import Any

from corerl.contracts.agents import AgentContext, AgentResult, Model, Task
from corerl.contracts.tokenizers import MediaTokenizer
from corerl.data import Location, Message, check_messages
from corerl.errors import DataError, RunError
from corerl.terminal import say
from corerl_agents.calls import Answer, Calls, shorten
from corerl_agents.turns import Media, TurnTokenizer, images_of, joined
from corerl_envs.contract import EndingEnvironment, Environment, Start, Turn

KEY = "rollout.multi_turn.environment"


class EnvironmentAgent:
    """Drives the environment of the config."""

    def __init__(self, context: AgentContext) -> None:
        self._limits = limits = context.config.rollout.multi_turn
        self._turns = TurnTokenizer(context.tokenizer, context.config.data.apply_chat_template_kwargs)
        self._environment: Environment = context.part(KEY)()
        self._calls = Calls(num_workers=limits.num_workers, timeout=limits.tool_timeout)

    def close(self) -> None:
        """Close the environment; one that cannot be closed in its time is left behind."""
        answer = self._calls.wait(self._environment.close)
        self._calls.close()
        if answer.error is not None:
            say(f"the environment's close() {answer.error}")

    async def run(self, task: Task, model: Model) -> AgentResult:
        """Play one episode.

        Raises:
            RunError: the environment breaks its contract.
            DataError: its messages do not fit the chat template.
        """
        episode = _Episode(task, list(task.prompt_ids))
        try:
            await self._begin(episode)
            for number in range(self._limits.max_assistant_turns):
                if episode.going:
                    await self._generate(episode, model)
                if episode.going:
                    await self._answer(episode, is_last=number + 1 == self._limits.max_assistant_turns)
        finally:
            await self._end(episode)
        return episode.result()

    async def _end(self, episode: "_Episode") -> None:
        """Let the environment end what it has begun."""
        if episode.begun and isinstance(self._environment, EndingEnvironment):
            answer = await self._calls.call(self._environment.end, episode.state)
            episode.reward = finite(episode.take(answer, float | int | None, "end") or 0.0, "end")

    async def _begin(self, episode: "_Episode") -> None:
        answer = await self._calls.call(self._environment.reset, episode.task, episode.task.seed)
        start = episode.take(answer, Start, "reset")
        if start is None:
            return
        episode.state, episode.begun = start.state, True
        if start.messages is not None:
            episode.prompt = self._messages(start.messages, "reset")
            text = self._turns.render(episode.prompt)
            episode.spelled += self._turns.spelled(text)
            ids, episode.media = self._encode(text, episode.prompt, inside=False)
            episode.token_ids = list(ids)

    async def _generate(self, episode: "_Episode", model: Model) -> None:
        """The policy's next turn, if there is room for it."""
        ids = [*episode.token_ids, *episode.answer_ids]
        media: dict[str, Any] = {} if episode.media is None else {"media": episode.media}
        sampled = await model.generate(ids, max_tokens=self._limits.max_turn_length, **media)
        if sampled.finish_reason == "abort":
            episode.fail("its generation was aborted")
        if sampled.token_ids:
            episode.write(sampled.token_ids, sampled.text)
        else:
            episode.going = False

    async def _answer(self, episode: "_Episode", *, is_last: bool) -> None:
        """The environment's answer to the policy's turn."""
        answer = await self._calls.call(self._environment.step, episode.state, episode.texts[-1])
        turn = episode.take(answer, Turn, "step")
        if turn is None:
            return
        episode.count(turn)
        if turn.done or is_last:
            episode.going = False
            return
        episode.answer = self._messages(turn.messages, "step")
        text = self._turns.text_between(episode.history(), episode.answer, episode.token_ids[-1])
        episode.spelled += self._turns.spelled(text)
        try:
            ids, media = self._encode(text, episode.answer, inside=True)
        except DataError as error:
            if not images_of(episode.answer):
                raise
            episode.fail(f"its images do not fit its texts, which may repeat the policy's ({error})")
            return
        episode.answer_ids = ids
        if media is not None:
            known = self._media_of(episode.task) if episode.media is None else episode.media
            episode.media = joined(known, media, len(episode.token_ids), len(ids))

    def _encode(self, text: str, messages: Sequence[Message], *, inside: bool) -> tuple[tuple[int, ...], Media | None]:
        """A part of the chat in tokens, with its media; None: the tokenizer knows no media."""
        return self._turns.encode(text, images_of(messages), inside=inside)

    def _media_of(self, task: Task) -> Media:
        """The media of the row's prompt."""
        messages = [dict(message) for message in task.messages]
        ids, media = self._encode(self._turns.render(messages, task.tools), messages, inside=False)
        if list(ids) != list(task.prompt_ids):
            raise RunError("the row's chat has other tokens in an episode than in the data")
        return media or {}

    def _messages(self, messages: Sequence[Mapping[str, Any]], method: str) -> list[Message]:
        """Checked, texts shortened to ``max_tool_response_length`` characters each, and images processed."""
        where = f"the environment's {method}()"
        checked = check_messages(list(messages), Location(where, 0), "messages")
        if checked[-1]["role"] == "assistant":
            raise DataError(f"{where}: ends with a message of the assistant, behind which a second turn would open")
        most = self._limits.max_tool_response_length if method == "step" else None
        return [{**message, "content": self._content(message["content"], most, where)} for message in checked]

    def _content(self, content: Any, most: int | None, where: str) -> Any:
        """A text, or parts of text and references to images."""
        if isinstance(content, str):
            return shorten(content, most)
        return [self._part(part, most, where) for part in content]

    def _part(self, part: Mapping[str, Any], most: int | None, where: str) -> dict[str, Any]:
        if part["type"] == "text" and isinstance(part.get("text"), str):
            return {"type": "text", "text": shorten(part["text"], most)}
        if part["type"] != "image":
            raise DataError(f"{where}: a message has a part of type {part['type']!r}, not text or image")
        tokenizer = self._turns.tokenizer
        if not isinstance(tokenizer, MediaTokenizer):
            raise DataError(f"{where}: a message has an image, and the model reads text alone")
        alone = [{"role": "user", "content": [{"type": "image"}]}]
        _, references = tokenizer.place_media(alone, {"images": [part.get("image")]}, where)
        return {"type": "image", "image": references["images"][0]}


@dataclasses.dataclass
class _Episode:
    """One episode on its way.

    Attributes:
        token_ids: prompt, turns of the policy, and the answers that the policy read.
        prompt: messages of the environment's own; None: the row's.
        answer, answer_ids: of the environment, as long as the policy has not read them.
        media: of all of these tokens; None: those of the row's prompt.
    """

    task: Task
    token_ids: list[int]
    state: Any = None
    begun: bool = False
    going: bool = True
    prompt: list[Message] | None = None
    answer: Sequence[Message] = ()
    answer_ids: Sequence[int] = ()
    media: Media | None = None
    messages: list[Message] = dataclasses.field(default_factory=list)
    texts: list[str] = dataclasses.field(default_factory=list)
    tokens: int = 0
    reward: float = 0.0
    turn_rewards: list[float] = dataclasses.field(default_factory=list)
    tool_calls: int = 0
    tool_errors: int = 0
    tool_seconds: float = 0.0
    spelled: int = 0
    error: str | None = None

    def take(self, answer: Answer, kind: type | UnionType, method: str) -> Any:
        """The value of a call, or None when it has none: then the episode is over."""
        self.tool_seconds += answer.seconds
        if answer.error is not None:
            self.fail(f"the environment's {method}() {answer.error}")
            return None
        if not isinstance(answer.value, kind):
            wanted = getattr(kind, "__name__", kind)
            raise RunError(
                f"the environment's {method}() returned {type(answer.value).__name__}, not {wanted} "
                "(corerl_envs.contract)"
            )
        return answer.value

    def fail(self, error: str) -> None:
        self.going, self.error = False, self.error or error

    def write(self, token_ids: Sequence[int], text: str) -> None:
        """The policy's turn, after it has read the answer to the one before."""
        self.token_ids += [*self.answer_ids, *token_ids]
        self.tokens += len(self.answer_ids)
        self.messages += [*self.answer, {"role": "assistant", "content": text}]
        self.texts.append(text)
        self.answer, self.answer_ids = (), ()

    def count(self, turn: Turn) -> None:
        self.turn_rewards.append(finite(turn.reward, "step"))
        self.tool_calls += turn.tool_calls
        self.tool_errors += turn.tool_errors

    def history(self) -> list[Message]:
        """The messages before the policy's last turn."""
        before = self.task.messages if self.prompt is None else self.prompt
        return [*map(dict, before), *self.messages[:-1]]

    def result(self) -> AgentResult:
        total = 0.0
        for reward in (*self.turn_rewards, self.reward):
            total += reward
        return AgentResult(
            reward=self.reward,
            turn_rewards=self.turn_rewards,
            components={"environment": total},
            metrics={
                "env/turns": len(self.texts),
                "env/reward": total,
                "env/tool_calls": self.tool_calls,
                "env/tool_errors/ratio": (self.tool_errors, self.tool_calls),
                "env/tool_seconds": self.tool_seconds,
                "env/tokens": self.tokens,
                "agent/spelled_control_tokens": self.spelled,
                "env/failed/ratio": (self.error is not None, 1),
            },
            messages=self.messages,
            prompt=self.prompt,
            error=self.error,
        )


def finite(reward: float, method: str) -> float:
    """The reward; RunError if it is NaN or infinite."""
    if not math.isfinite(reward):
        raise RunError(f"the environment's {method}() returned the reward {reward}: a reward must be finite")
    return reward
