"""Anthropic Messages: ``/v1/messages``, and ``/v1/messages/count_tokens``."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from corerl.contracts.agents import ChatReply, Model
from corerl_gateway.dialects.allowed import refuse_unknown
from corerl_gateway.dialects.content import PREFIX, calls_of, tool, with_one_system
from corerl_gateway.dialects.exchange import ChatExchange, event, new_id
from corerl_gateway.dialects.message_blocks import read_blocks, system_text
from corerl_gateway.errors import ApiError, invalid, unsupported
from corerl_gateway.fields import Fields
from corerl_gateway.sessions import Session


class Messages(ChatExchange):
    """See :class:`corerl_gateway.dialects.exchange.Exchange`."""

    def __init__(self, fields: Fields, session: Session) -> None:
        super().__init__(fields, session)
        self.messages = read_messages(fields, session)
        self.tools = read_tools(fields)
        self.stop = fields.texts("stop_sequences")
        self.max_tokens = self._limit()
        self._number = new_id("msg_")

    def _limit(self) -> int | None:
        limit = self.fields.whole("max_tokens", 1)
        if limit is None:
            raise invalid("max_tokens", "a whole number, 1 or more")
        return limit

    async def ask(self, model: Model) -> None:
        """See :class:`corerl_gateway.dialects.exchange.Exchange`."""
        await super().ask(model)
        [reply] = self.replies
        self._blocks = list(self._write_blocks(reply))

    def document(self) -> Mapping[str, Any]:
        """See :class:`corerl_gateway.dialects.exchange.Exchange`."""
        return {**self._head(), "content": self._blocks, **self._end(), "usage": self._usage(self.completion_tokens)}

    def events(self) -> Iterator[bytes]:
        """See :class:`corerl_gateway.dialects.exchange.Exchange`."""
        for content in self._contents():
            yield event(content, content["type"])

    def _contents(self) -> Iterator[dict[str, Any]]:
        open_end = {"stop_reason": None, "stop_sequence": None}
        begun = {**self._head(), "content": [], **open_end, "usage": self._usage(0)}
        yield {"type": "message_start", "message": begun}
        for index, block in enumerate(self._blocks):
            yield from block_events(block, index)
        yield {"type": "message_delta", "delta": self._end(), "usage": self._usage(self.completion_tokens)}
        yield {"type": "message_stop"}

    @staticmethod
    def error(error: ApiError) -> Mapping[str, Any]:
        """See :class:`corerl_gateway.dialects.exchange.Exchange`."""
        return {"type": "error", "error": {"type": error.type, "message": error.message}, "request_id": None}

    @staticmethod
    def failure(error: ApiError) -> bytes:
        """See :class:`corerl_gateway.dialects.exchange.Exchange`."""
        return event(Messages.error(error), "error")

    def _head(self) -> dict[str, Any]:
        return {"id": self._number, "type": "message", "role": "assistant", "model": self.name}

    def _usage(self, written: int) -> dict[str, int]:
        cached = {"cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}
        return {"input_tokens": self.prompt_tokens, "output_tokens": written, **cached}

    def _end(self) -> dict[str, Any]:
        reply = self.replies[0]
        reason, text = stop_reason(reply, self.stop)
        return {"stop_reason": reason, "stop_sequence": text}

    def _write_blocks(self, reply: ChatReply) -> Iterator[dict[str, Any]]:
        if reasoning := reply.message.get("reasoning_content"):
            yield {"type": "thinking", "thinking": reasoning, "signature": ""}
        calls = list(calls_of(reply.message))
        text = reply.message.get("content") or ""
        if text or not calls:
            yield {"type": "text", "text": text}
        for number, name, arguments in calls:
            given = _object(arguments)
            self.session.arguments[number] = given, arguments
            yield {"type": "tool_use", "id": number, "name": name, "input": given}


class TokenCount(Messages):
    """``/v1/messages/count_tokens``: no request to the model, and no stream."""

    def __init__(self, fields: Fields, session: Session) -> None:
        super().__init__(fields, session)
        self.stream = False

    def _limit(self) -> int | None:
        return None

    async def ask(self, model: Model) -> None:
        """Count the tokens of the templated chat."""
        self._count = (await model.chat(self.messages, tools=self.tools, max_tokens=0)).prompt_tokens

    def document(self) -> Mapping[str, Any]:
        """See :class:`corerl_gateway.dialects.exchange.Exchange`."""
        return {"input_tokens": self._count}


def read_messages(fields: Fields, session: Session) -> list[dict[str, Any]]:
    """The messages of a request, the system's first."""
    for name in ("mcp_servers", "container"):
        fields.refuse(name, "the client's own tools are the only ones", [], {})
    if (config := fields.inner("output_config")) is not None:
        refuse_unknown(config)
        config.refuse("format", "the policy's output is not constrained; ask for JSON in the prompt")
    messages: list[dict[str, Any]] = []
    if system := system_text(fields):
        messages.append({"role": "system", "content": system})
    for each in fields.items("messages"):
        messages += read_blocks(each, session)
    if all(message["role"] == "system" for message in messages):
        raise invalid("messages", "a list of at least one message of the user")
    messages = with_one_system(messages)
    if (last := messages[-1])["role"] == "assistant":
        if last.get("tool_calls"):
            raise invalid("messages", "a list that has a result for the last tool calls")
        if last.get("reasoning_content") and not last["content"]:
            raise invalid("messages", "a list that ends with the user's turn, or with a text of the assistant")
        last[PREFIX] = True
    return messages


def read_tools(fields: Fields) -> list[dict[str, Any]]:
    """The tools of a request; none if ``tool_choice`` is none."""
    tools = []
    for each in fields.items("tools"):
        if each.text("type", "custom") != "custom":
            raise unsupported(each.path("type"), "the client's own functions are the only tools")
        schema = each.inner("input_schema")
        tools.append(tool(each.text("name"), each.text("description", ""), schema.values if schema else None))
    choice = fields.inner("tool_choice")
    if choice is not None:
        choice.refuse("type", "the policy chooses freely; send 'auto' or 'none'", "auto", "none")
    return [] if choice is not None and choice.get("type") == "none" else tools


def stop_reason(reply: ChatReply, stops: tuple[str, ...]) -> tuple[str, str | None]:
    """The reason of an end, and the text of ``stop_sequences`` that made it."""
    if reply.sampled.finish_reason != "stop":
        return "max_tokens", None
    if reply.message.get("tool_calls"):
        return "tool_use", None
    found = next((stop for stop in stops if stop in reply.sampled.text), None)
    return ("end_turn", None) if found is None else ("stop_sequence", found)


def block_events(block: Mapping[str, Any], index: int) -> Iterator[dict[str, Any]]:
    """From the begin of a block to its end."""
    kind = block["type"]
    if kind == "tool_use":
        begun, deltas = {**block, "input": {}}, [("input_json_delta", "partial_json", json.dumps(block["input"]))]
    elif kind == "thinking":
        begun = {**block, "thinking": ""}
        deltas = [("thinking_delta", "thinking", block["thinking"]), ("signature_delta", "signature", "")]
    else:
        begun, deltas = {**block, "text": ""}, [("text_delta", "text", block["text"])]
    yield {"type": "content_block_start", "index": index, "content_block": begun}
    for name, field, text in deltas:
        yield {"type": "content_block_delta", "index": index, "delta": {"type": name, field: text}}
    yield {"type": "content_block_stop", "index": index}


def _object(arguments: str) -> dict[str, Any]:
    """Arguments as the object that this dialect needs; {} if the policy wrote something else."""
    try:
        value = json.loads(arguments, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _no_constant(name: str) -> None:
    raise ValueError(name)
