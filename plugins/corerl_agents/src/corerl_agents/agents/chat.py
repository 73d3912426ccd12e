"""Agent ``chat``: the policy answers the row's messages, once."""

from collections.abc import Mapping
from typing import Any

from corerl.contracts.agents import AgentContext, AgentResult, Model, Task
from corerl_agents.agents.options import ChatOptions


class ChatAgent:
    """Asks the policy once, through :meth:`corerl.contracts.agents.Model.chat`."""

    def __init__(self, context: AgentContext, *, options: ChatOptions) -> None:
        self._system, self._most = options.system, context.config.rollout.multi_turn.max_turn_length

    async def run(self, task: Task, model: Model) -> AgentResult:
        """Play one episode."""
        prompt = first_messages(task, self._system)
        reply = await model.chat(prompt, tools=task.tools, max_tokens=self._most)
        return AgentResult(messages=[reply.message], prompt=prompt if self._system else None)


def first_messages(task: Task, system: str) -> list[Mapping[str, Any]]:
    """The row's messages, behind a system message."""
    return [*([{"role": "system", "content": system}] if system else ()), *task.messages]
