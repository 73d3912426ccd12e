"""OpenAI chat completions: ``/v1/chat/completions``."""

from collections.abc import Iterator, Mapping
from typing import Any

from corerl.contracts.agents import ChatReply
from corerl_gateway.dialects.content import PREFIX, call, calls_of, content, content_text
from corerl_gateway.dialects.exchange import MOST_SAMPLES, ChatExchange, event, is_cut, new_id
from corerl_gateway.dialects.log_probs import token_log_probs
from corerl_gateway.dialects.tools import client_tools, custom_call, remember_input
from corerl_gateway.errors import ApiError, invalid
from corerl_gateway.fields import Fields
from corerl_gateway.sessions import Session

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
"""role of a message -> role in the chat template"""
RESULTS = ("tool", "function")
"""roles of results; ``function`` is OpenAI's older one"""


class ChatCompletions(ChatExchange):
    """See :class:`corerl_gateway.dialects.exchange.Exchange`."""

    def __init__(self, fields: Fields, session: Session) -> None:
        super().__init__(fields, session)
        refuse(fields)
        self.messages = [read_message(each, session) for each in fields.items("messages")]
        if not self.messages:
            raise invalid("messages", "a list of at least one message")
        if _continues(fields, self.messages[-1]):
            self.messages[-1][PREFIX] = True
        self.tools, self.custom = client_tools(fields, flat=False)
        limit = fields.whole("max_completion_tokens", 1)
        self.max_tokens = fields.whole("max_tokens", 1) if limit is None else limit
        self.stop = fields.texts("stop")
        self.n = fields.whole("n", 1, MOST_SAMPLES) or 1
        self.wants_log_probs = fields.flag("logprobs")
        self.wants_top = bool(fields.whole("top_logprobs", 0, 1))
        options = fields.inner("stream_options")
        self.wants_usage = options is not None and options.flag("include_usage")
        self._number = new_id("chatcmpl-")

    async def ask(self, model: Any) -> None:
        """See :class:`corerl_gateway.dialects.exchange.Exchange`."""
        await super().ask(model)
        self._tokenizer = model.tokenizer

    def document(self) -> Mapping[str, Any]:
        """See :class:`corerl_gateway.dialects.exchange.Exchange`."""
        choices = [
            {
                "index": index,
                "message": self._message(reply),
                "logprobs": self._log_probs(reply),
                "finish_reason": finish_reason(reply),
            }
            for index, reply in enumerate(self.replies)
        ]
        return {**self._head("chat.completion"), "choices": choices, "usage": self._usage()}

    def events(self) -> Iterator[bytes]:
        """See :class:`corerl_gateway.dialects.exchange.Exchange`."""
        head = self._head("chat.completion.chunk")
        last = {"usage": None} if self.wants_usage else {}
        for index, reply in enumerate(self.replies):
            for delta in deltas(self._message(reply)):
                yield event({**head, "choices": [_choice(index, delta)], **last})
            end = {"finish_reason": finish_reason(reply), "logprobs": self._log_probs(reply)}
            yield event({**head, "choices": [_choice(index, {}) | end], **last})
        if self.wants_usage:
            yield event({**head, "choices": [], "usage": self._usage()})
        yield b"data: [DONE]\n\n"

    @staticmethod
    def error(error: ApiError) -> Mapping[str, Any]:
        """See :class:`corerl_gateway.dialects.exchange.Exchange`."""
        return openai_error(error)

    @staticmethod
    def failure(error: ApiError) -> bytes:
        """See :class:`corerl_gateway.dialects.exchange.Exchange`."""
        return event(openai_error(error))

    def _message(self, reply: ChatReply) -> dict[str, Any]:
        message = message_of(reply)
        if "tool_calls" in message:
            message["tool_calls"] = [self._written(each) for each in message["tool_calls"]]
        return message

    def _written(self, made: dict[str, Any]) -> dict[str, Any]:
        """A tool call as the client's tool has it."""
        name, arguments = made["function"]["name"], made["function"]["arguments"]
        if name not in self.custom:
            return made
        given = remember_input(self.session, made["id"], arguments)
        return {"id": made["id"], "type": "custom", "custom": {"name": name, "input": given}}

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self._number, "object": kind, "created": self.created, "model": self.name}

    def _usage(self) -> Mapping[str, int]:
        read, written = self.prompt_tokens, self.completion_tokens
        return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}

    def _log_probs(self, reply: ChatReply) -> Mapping[str, Any] | None:
        if not self.wants_log_probs:
            return None
        return {"content": token_log_probs(self._tokenizer, reply.sampled, self.wants_top), "refusal": None}


def refuse(fields: Fields) -> None:
    """Raise ApiError for what a policy in training cannot do."""
    form = fields.inner("response_format")
    if form is not None:
        form.refuse("type", "the policy's output is not constrained; ask for JSON in the prompt", "text")
    fields.refuse("functions", "send 'tools'", [])
    fields.refuse("function_call", "send 'tool_choice'", "auto", "none")
    fields.refuse("modalities", "the policy writes text alone", ["text"])
    fields.refuse("audio", "the policy writes text alone")
    fields.refuse("web_search_options", "the client's own functions are the only tools")


def _continues(fields: Fields, last: dict[str, Any]) -> bool:
    """Whether the policy continues the last message."""
    continues = fields.flag("continue_final_message")
    fields.refuse(
        "add_generation_prompt", "the policy's turn is begun, or continue_final_message is true", not continues
    )
    if continues and last["role"] != "assistant":
        raise invalid("continue_final_message", "false, since the last message is not the assistant's")
    return continues


def read_message(fields: Fields, session: Session) -> dict[str, Any]:
    """A message for :meth:`corerl.contracts.agents.Model.chat`."""
    role = fields.text("role")
    if role not in (*ROLES, *RESULTS):
        raise invalid(fields.path("role"), f"one of {', '.join((*ROLES, *RESULTS))}")
    read = content_text if role == "assistant" else content
    message: dict[str, Any] = {"role": ROLES.get(role, role), "content": read(fields)}
    if name := fields.text("name", ""):
        message["name"] = name
    if role == "assistant":
        if calls := [_read_call(each, session) for each in fields.items("tool_calls")]:
            message["tool_calls"] = calls
        if (function := fields.inner("function_call")) is not None:
            message["function_call"] = {"name": function.text("name"), "arguments": function.text("arguments", "")}
        if fields.flag(PREFIX):
            message[PREFIX] = True
        for name in ("reasoning_content", "reasoning"):
            if reasoning := fields.text(name, ""):
                message["reasoning_content"] = reasoning
        if message["content"] is None:
            message["content"] = ""
    elif message["content"] is None:
        raise invalid(fields.path("content"), "a text or a list of parts")
    if role == "tool":
        message["tool_call_id"] = fields.text("tool_call_id")
    return message


def _read_call(fields: Fields, session: Session) -> dict[str, Any]:
    if (custom := fields.inner("custom")) is not None:
        return custom_call(session, fields.text("id"), custom)
    function = fields.inner("function")
    if function is None:
        raise invalid(fields.path("function"), "an object")
    return call(fields.text("id"), function.text("name"), function.text("arguments", ""))


def message_of(reply: ChatReply) -> dict[str, Any]:
    """The message of an answer."""
    calls = [call(*each) for each in calls_of(reply.message)]
    content = reply.message.get("content")
    message: dict[str, Any] = {"role": "assistant", "content": content or (None if calls else ""), "refusal": None}
    if reasoning := reply.message.get("reasoning_content"):
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = calls
    return message


def finish_reason(reply: ChatReply) -> str:
    if is_cut(reply):
        return "length"
    return "tool_calls" if reply.message.get("tool_calls") else "stop"


def deltas(message: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The parts of a message, in the order of its text."""
    yield {"role": "assistant", "content": ""}
    for name in ("reasoning_content", "content"):
        if message.get(name):
            yield {name: message[name]}
    for index, each in enumerate(message.get("tool_calls", ())):
        kind, text = each["type"], "arguments" if each["type"] == "function" else "input"
        yield {"tool_calls": [{**each, "index": index, kind: {"name": each[kind]["name"], text: ""}}]}
        yield {"tool_calls": [{"index": index, kind: {text: each[kind][text]}}]}


def _choice(index: int, delta: Mapping[str, Any]) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}


def openai_error(error: ApiError) -> Mapping[str, Any]:
    """The form of errors of OpenAI's dialects."""
    content = {
        "message": error.message,
        "type": error.type,
        "param": error.parameter or None,
        "code": error.code or None,
    }
    return {"error": content}
