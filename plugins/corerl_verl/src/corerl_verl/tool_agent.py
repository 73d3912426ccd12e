"""Agent ``verl_tools``: the policy calls verl's tools, and a simulated user of verl answers turns without a call."""

import asyncio
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from corerl.contracts.agents import AgentContext, AgentResult, Model, Task
from corerl.errors import ConfigError
from corerl_verl.options import VerlToolsOptions
from corerl_verl.toolbox import KEY, Limits, Outcome, Toolbox, interactions


class VerlToolAgent:
    """Plays the episodes of verl's ``ToolAgentLoop``.

    A turn with calls gets the answers of the first ``max_calls`` of them; a turn without a call gets the message of the
    row's interaction, or ends the episode, as ``rollout.multi_turn.max_assistant_turns`` does.

    Raises:
        ConfigError: neither a tool nor an interaction, or one that cannot be loaded.
    """

    def __init__(self, context: AgentContext, *, options: VerlToolsOptions) -> None:
        self._options, self._multi_turn = options, context.config.rollout.multi_turn
        self._toolbox = Toolbox(options.tools, options.functions)
        self._interactions = interactions(options.interactions)
        if not self._toolbox.tools and not self._interactions:
            raise ConfigError(KEY, "'verl_tools' needs a tool: name tools, functions or interactions")
        limits = self._multi_turn
        self._limits = Limits(limits.tool_timeout, limits.max_tool_response_length, options.truncate_side)

    async def run(self, task: Task, model: Model) -> AgentResult:
        """Play one episode."""
        episode = _Episode(task)
        schemas = self._toolbox.schemas(task.extra_info.get("tool_selection"))
        user = await self._user(task)
        for number in range(self._multi_turn.max_assistant_turns):
            reply = await model.chat(episode.chat, tools=schemas, max_tokens=self._multi_turn.max_turn_length)
            if not reply.sampled.token_ids:
                break
            episode.messages.append(reply.message)
            full = reply.sampled.finish_reason == "length" and self._multi_turn.max_turn_length is None
            is_last = full or number + 1 == self._multi_turn.max_assistant_turns
            if is_last or not await self._respond(episode, reply.message.get("tool_calls") or (), user):
                break
        return AgentResult(messages=episode.messages, metrics=episode.metrics())

    async def _respond(self, episode: "_Episode", calls: Sequence[Mapping[str, Any]], user: "_User | None") -> bool:
        """Append the answers to a turn; whether another turn follows."""
        if calls:
            done = calls[: self._options.max_calls]
            for each, outcome in zip(done, await self._answers(episode, done), strict=True):
                episode.answer(each, outcome)
            return True
        if user is None:
            return False
        ends, message, score = await user.answer(episode.chat)
        episode.messages.append({"role": "user", "content": message})
        episode.scores.append(score)
        return not ends

    async def _answers(self, episode: "_Episode", calls: Sequence[Mapping[str, Any]]) -> list[Outcome]:
        row, session = episode.task.extra_info, episode.session
        functions = [each["function"] for each in calls]
        return await asyncio.gather(
            *(self._toolbox.call(each["name"], each["arguments"], row, session, self._limits) for each in functions)
        )

    async def _user(self, task: Task) -> "_User | None":
        """The interaction that the row names in ``interaction_kwargs``; the only one without a name."""
        kwargs = dict(task.extra_info.get("interaction_kwargs") or {})
        if not self._interactions or (not kwargs and len(self._interactions) > 1):
            return None
        name = kwargs.get("name", next(iter(self._interactions)))
        if name not in self._interactions:
            known = ", ".join(self._interactions)
            raise ConfigError(KEY, f"the row's interaction_kwargs name '{name}'; interactions are {known}")
        user = _User(self._interactions[name], uuid.uuid4().hex, kwargs)
        await user.interaction.start_interaction(user.instance, **kwargs)
        return user


@dataclass(frozen=True)
class _User:
    """An episode of an interaction, whose object is that of all episodes.

    Attributes:
        instance: the episode's name.
        kwargs: of the row, to each call.
    """

    interaction: Any
    instance: str
    kwargs: Mapping[str, Any]

    async def answer(self, chat: list[Mapping[str, Any]]) -> tuple[bool, str, float]:
        """(Whether the episode ends, message, score of the turn)."""
        ends, message, score, _ = await self.interaction.generate_response(self.instance, chat, **self.kwargs)
        return ends, message, float(score or 0.0)


@dataclass
class _Episode:
    """One episode on its way.

    Attributes:
        messages: after the row's.
        session: what a tool's ``execute`` gets as ``agent_data``.
    """

    task: Task
    messages: list[Mapping[str, Any]] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    session: Any = None

    def __post_init__(self) -> None:
        kwargs = self.task.extra_info.get("tools_kwargs") or {}
        self.session = SimpleNamespace(tools_kwargs=kwargs, extra_fields={}, messages=self.messages)

    @property
    def chat(self) -> list[Mapping[str, Any]]:
        return [*self.task.messages, *self.messages]

    def answer(self, called: Mapping[str, Any], outcome: Outcome) -> None:
        """Keep the answer to a call."""
        self.outcomes.append(outcome)
        name = called["function"]["name"]
        self.messages.append({"role": "tool", "tool_call_id": called["id"], "name": name, "content": outcome.content})

    def metrics(self) -> dict[str, float | tuple[float, float]]:
        """See :attr:`corerl.contracts.agents.AgentResult.metrics`; verl's rewards of calls and turns are no score."""
        number = len(self.outcomes)
        found: dict[str, float | tuple[float, float]] = {
            "agent/tool_calls": number,
            "agent/tool_errors/ratio": (sum(outcome.is_error for outcome in self.outcomes), number),
            "agent/tool_rewards": sum(outcome.reward for outcome in self.outcomes),
        }
        return found | ({"agent/turn_scores": sum(self.scores)} if self.scores else {})
