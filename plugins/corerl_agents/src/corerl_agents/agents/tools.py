"""Agent ``tools``: the policy calls tools until a turn of it has no call."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from corerl.contracts.agents import AgentContext, AgentResult, Model, Task
from corerl.errors import ConfigError
from corerl.terminal import say
from corerl_agents.agents.chat import first_messages
from corerl_agents.agents.mcp import Sessions
from corerl_agents.agents.options import ToolsOptions
from corerl_agents.agents.toolbox import FunctionTool, Result, Tool, by_name, call
from corerl_agents.calls import Calls, shorten

Message = Mapping[str, Any]


class ToolsAgent:
    """Gives the policy Python functions and the tools of MCP servers.

    A turn with calls is answered with their results, which are found at the same time; a turn without a call, or
    ``rollout.multi_turn.max_assistant_turns``, ends the episode. A failure of a tool is its result, for the policy.

    Raises:
        ConfigError: there is no tool, a function cannot be loaded, or two tools have one name.
    """

    def __init__(self, context: AgentContext, *, options: ToolsOptions) -> None:
        if not options.functions and not options.servers:
            raise ConfigError("rollout.agent", "'tools' needs a tool: name functions or servers")
        self._options, self._limits = options, context.config.rollout.multi_turn
        self._calls = Calls(num_workers=self._limits.num_workers, timeout=self._limits.tool_timeout)
        timeout = self._limits.tool_timeout
        self._functions: list[Tool] = [FunctionTool(reference, self._calls, timeout) for reference in options.functions]
        by_name(self._functions)
        self._sessions = Sessions(options.servers, options.start_timeout, timeout) if options.servers else None
        self._shared = contextlib.AsyncExitStack()
        self._of_run: asyncio.Task[Sequence[Tool]] | None = None
        self._names_tools = True

    def close(self) -> None:
        """End everything that was started."""
        self._calls.close()
        if self._sessions is not None:
            self._sessions.close()

    async def run(self, task: Task, model: Model) -> AgentResult:
        """Play one episode.

        Raises:
            RunError: an MCP server does not start.
            DataError: the chat template refuses the messages.
        """
        if task.tools and self._names_tools:
            self._names_tools = False
            say("the rows' column 'tools' is not read: the agent 'tools' shows the policy its own")
        async with self._tools() as tools:
            episode = _Episode(first_messages(task, self._options.system), by_name(tools))
            for number in range(self._limits.max_assistant_turns):
                is_last = number + 1 == self._limits.max_assistant_turns
                if not await self._turn(episode, model, is_last=is_last):
                    break
        prompt = episode.prompt if self._options.system else None
        return AgentResult(messages=episode.messages, prompt=prompt, metrics=episode.metrics())

    @contextlib.asynccontextmanager
    async def _tools(self) -> AsyncIterator[Sequence[Tool]]:
        if self._sessions is None:
            yield self._functions
        elif self._options.sessions == "episode":
            async with self._sessions.tools() as tools:
                yield [*self._functions, *tools]
        else:
            yield [*self._functions, *await self._shared_tools(self._sessions)]

    async def _shared_tools(self, sessions: Sessions) -> Sequence[Tool]:
        """Opened by the first episode; an episode that is cancelled does not end it."""
        if self._of_run is None or (self._of_run.done() and self._of_run.exception() is not None):
            self._of_run = asyncio.create_task(self._shared.enter_async_context(sessions.tools()))
        return await asyncio.shield(self._of_run)

    async def _turn(self, episode: "_Episode", model: Model, *, is_last: bool) -> bool:
        """One turn of the policy and the answers to its calls; whether another turn follows."""
        reply = await model.chat(
            [*episode.prompt, *episode.messages], tools=episode.schemas, max_tokens=self._limits.max_turn_length
        )
        if not reply.sampled.token_ids:
            return False
        episode.messages.append(reply.message)
        calls = reply.message.get("tool_calls") or ()
        if not calls or is_last:
            return False
        most = self._options.max_calls
        done = calls[:most]
        results = await asyncio.gather(*(call(episode.tools, **_named(each)) for each in done))
        results += [Result(f"error: a turn has {most} calls at most", is_error=True)] * (len(calls) - len(done))
        for each, result in zip(calls, results, strict=True):
            episode.answer(each, result, shorten(result.text, self._limits.max_tool_response_length))
        return True


def _named(called: Mapping[str, Any]) -> dict[str, str]:
    return {"name": called["function"]["name"], "arguments": called["function"]["arguments"]}


@dataclass
class _Episode:
    """One episode on its way.

    Attributes:
        prompt: the first messages.
        messages: those after them.
    """

    prompt: list[Message]
    tools: Mapping[str, Tool]
    messages: list[Message] = field(default_factory=list)
    results: list[Result] = field(default_factory=list)

    @property
    def schemas(self) -> list[Mapping[str, Any]]:
        return [tool.schema for tool in self.tools.values()]

    def answer(self, called: Mapping[str, Any], result: Result, text: str) -> None:
        """Keep the answer to a call."""
        self.results.append(result)
        name = called["function"]["name"]
        self.messages.append({"role": "tool", "tool_call_id": called["id"], "name": name, "content": text})

    def metrics(self) -> dict[str, float | tuple[float, float]]:
        """See :attr:`corerl.contracts.agents.AgentResult.metrics`."""
        errors = sum(result.is_error for result in self.results)
        return {
            "agent/tool_calls": len(self.results),
            "agent/tool_errors/ratio": (errors, len(self.results)),
            "agent/tool_call_seconds": sum(result.seconds for result in self.results),
        }
