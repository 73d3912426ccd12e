"""Chats of agents at a server: they reach the rollout backend ``openai`` as tokens of text."""

import functools
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from corerl.contracts.agents import ChatFactory, ChatReply, Model
from corerl.errors import DataError
from corerl_gateway.remote.text_tokens import TextTokenizer, line_of, lines_of, text_of

if TYPE_CHECKING:
    from corerl.contracts.config import TrainConfig

KEYS = ("role", "content", "name", "tool_calls", "function_call", "tool_call_id", "reasoning_content")
"""of messages; clients add others"""


class ServedChat:
    """The chats of one episode (:class:`corerl.contracts.agents.Chat`).

    The server's messages stay as it wrote them, if the client changes nothing but ids, spelling and reasoning.
    """

    def __init__(self, model: Model, template_kwargs: Mapping[str, Any]) -> None:
        self._model, self._kwargs = model, template_kwargs
        self._written: dict[str, Mapping[str, Any]] = {}

    async def complete(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        max_tokens: int | None = None,
        stop: Sequence[str] = (),
    ) -> ChatReply:
        """See :meth:`corerl.contracts.agents.Model.chat`.

        Raises:
            DataError: the policy shall continue the last message, which servers do in forms of their own.
        """
        if messages and messages[-1].get("prefix"):
            raise DataError("rollout backend 'openai' continues no turn that the client has begun: send it as finished")
        fields = {"tools": list(tools), "stop": list(stop), "chat_template_kwargs": dict(self._kwargs)}
        lines = lines_of([self._own(message) for message in messages], {k: v for k, v in fields.items() if v})
        [ids] = TextTokenizer().encode(["".join(lines)])
        sampled = await self._model.generate(ids, max_tokens=max_tokens)
        message: Mapping[str, Any] = {"role": "assistant", "content": ""}
        if sampled.token_ids:
            message = json.loads(text_of(sampled.token_ids))
            self._written[_key(message)] = message
        return ChatReply(message, sampled, len(ids))

    def _own(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        if message["role"] == "assistant" and (written := self._written.get(_key(message))) is not None:
            return written
        return {name: message[name] for name in KEYS if message.get(name) is not None}


def _key(message: Mapping[str, Any]) -> str:
    """Equal for messages with the same text and the same calls."""
    calls = [[call["function"]["name"], call["function"]["arguments"]] for call in message.get("tool_calls") or ()]
    return line_of({"content": message.get("content") or "", "calls": calls})


def make_chats(config: "TrainConfig") -> ChatFactory:
    """The chats of a run's episodes."""
    return functools.partial(ServedChat, template_kwargs=config.data.apply_chat_template_kwargs)
